"""What gpusaged does before the first question."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from gpusage.decisions.advisor import make_advisor
from gpusage.service.snapshots import warm_up_predictors
from gpusage_hooks.types import Cluster, DecisionRequest, GpuPool

advisor = make_advisor()
pool = GpuPool(gpu="v100-sxm2-16gb", site_type="v100", gpu_count=1, free_gpu_count=1, mps_per_gpu=100)
warm_up_predictors(advisor, Cluster(manager="slurm", version="24.11.5", pools=(pool,)))
known = set(sys.modules)
advisor.parse(DecisionRequest(manager="slurm", fields={"comment": "model=a.onnx", "tres_per_node": "gres:gpu:1"}))
print(*sorted(set(sys.modules) - known))
"""


def test_the_first_question_imports_no_adapter() -> None:
    """In a process of its own. The import takes as long as half of the 40 ms that slurmctld waits."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == ([], "")
