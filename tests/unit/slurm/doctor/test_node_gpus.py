"""What else divides a node's GPUs, as its processes and nvidia-smi show it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpusage_slurm.doctor.node_gpus import exclusive_gpus, foreign_mps_daemons


def process(folder: Path, number: int, command: str, pipe: str = "") -> None:
    """Write what /proc shows of a process."""
    (folder / str(number)).mkdir()
    (folder / str(number) / "cmdline").write_text(command.replace(" ", "\0"))
    variable = f"CUDA_MPS_PIPE_DIRECTORY={pipe}" if pipe else "A=1"
    (folder / str(number) / "environ").write_text(f"PATH=/bin\0{variable}\0")


def test_an_mps_daemon_is_foreign_unless_its_pipes_lie_in_our_folder(tmp_path: Path) -> None:
    process(tmp_path, 1, "/usr/bin/nvidia-cuda-mps-control -d", "/run/gpusage-mps/GPU-1/1000/pipe")
    process(tmp_path, 2, "/usr/bin/nvidia-cuda-mps-control -d", "/site/pipe")
    process(tmp_path, 3, "nvidia-cuda-mps-control -f")
    process(tmp_path, 4, "nvidia-cuda-mps-control", "/site/pipe")  # somebody asks a daemon
    process(tmp_path, 5, "vi nvidia-cuda-mps-control.txt", "/site/pipe")
    (tmp_path / "6").mkdir()  # it ended meanwhile
    assert sorted(foreign_mps_daemons(tmp_path)) == ["2 (/site/pipe)", "3 (/tmp/nvidia-mps)"]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 0, Default; echo 1, Exclusive_Process; echo 2, Prohibited", ["1 (Exclusive_Process)", "2 (Prohibited)"]),
        ("echo 0, Exclusive_Process; exit 9", []),
    ],
)
def test_a_gpu_that_one_program_alone_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: list[str]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert [*exclusive_gpus()] == expected


def test_without_nvidia_smi_no_compute_mode_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert [*exclusive_gpus()] == []
