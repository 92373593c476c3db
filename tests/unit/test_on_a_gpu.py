"""The script for a GPU's first minute runs here to its end, on stand-ins whose answers docs/slurm.md expects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mps import driver_in
from walls import fake_gpus, real_hierarchy

SCRIPT = Path(__file__).parents[1] / "on_a_gpu.py"


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone limits cgroups")
def test_it_asks_everything_and_leaves_nothing() -> None:
    root = real_hierarchy()
    if root is None:
        pytest.skip("cgroups of one's own need root")
    with tempfile.TemporaryDirectory(prefix="gpusage-gpu-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the other user's client is there as well
        with fake_gpus(folder, cgroups=str(root)) as gpus:
            done = gpus.run(sys.executable, SCRIPT, "--cgroups", root, "--program", folder / "fake-gpu")
    assert done.stderr == ""
    answers = dict(json.loads(line) for line in done.stdout.splitlines())
    assert {question: answer["mib"] for question, answer in answers.items() if "mib" in answer} == {
        "pinned limit, all": 4096,
        "and an unseen GPU": 81559,
        "one user": 64,
        "another user": 0,
        "first process": 2560,
        "second process, all": 4096 - 2560,
        "managed memory beyond it": 8 * 4096,
        "client of a daemon outside, all": 4096,
        "a process that is there before its limit": 2560,
        "and the next process": 0,
        "the cgroup made again": 2 * 4096,
    }
    assert answers["another user"]["text"] == "CUDA_ERROR_NOT_PERMITTED"
    assert not [*root.glob("gpusage-try-*")]


def test_its_client_of_cuda_allocates_until_it_is_refused(tmp_path: Path) -> None:
    if driver_in(tmp_path) is None:
        pytest.skip("the stand-in for CUDA's driver needs a C compiler")
    response = tmp_path / "response"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1000M"}
    subprocess.run([sys.executable, SCRIPT, "take", "all", "--say", response], env=environment, check=True)
    assert json.loads(response.read_text()) == {"mib": 960, "code": 2, "free_mib": 79 * 1024, "total_mib": 80 * 1024}
