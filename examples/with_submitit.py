"""Submits training by submitit, with the model said to gpusage in the job's comment.

    pip install submitit
    python examples/with_submitit.py examples/models/resnet50.onnx

submitit has no argument of its own for a comment: `slurm_additional_parameters` puts it into the script, and gpusage
reads it there as it reads one on sbatch's command line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import submitit


def train(epochs: int) -> str:
    """Stand for the real training; submitit runs it on the node."""
    return f"trained for {epochs} epochs"


def submit(model: Path, folder: Path) -> submitit.Job[str]:
    """Return the job of `train`, submitted with one GPU, the model's path and its batch.

    Args:
        model: A path that the login node can read; a comma in it needs quotes.
        folder: On a file system that login node and compute nodes share.
    """
    executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
    executor.update_parameters(
        name="resnet50",
        timeout_min=60,
        slurm_additional_parameters={"gres": "gpu:1", "comment": f"model={model.resolve()},batch=64,mode=train"},
    )
    return executor.submit(train, 90)


if __name__ == "__main__":
    print(submit(Path(sys.argv[1]), Path("submitit")).job_id)
