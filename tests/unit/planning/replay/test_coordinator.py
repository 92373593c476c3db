"""The coordinator over a real socket, with real bodies of jobs."""

from __future__ import annotations

import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

from emulated import emulated
from gpusage_planning.replay import body
from gpusage_planning.replay.virtual_gpus import Coordinator, parsed
from waiting import LIMIT_S, wait_until

SLURM = {"SLURMD_NODENAME": "h100-1", "CUDA_VISIBLE_DEVICES": "3"}
SHARE = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2M"}


def test_a_line_says_where_a_job_is_and_what_it_may_use() -> None:
    job, seat = parsed(body.hello("7", {**SLURM, **SHARE}), ("rtx_3090", "h100"))
    assert (job, seat.node, seat.gpu_type, seat.device) == (7, "h100-1", 1, 3)
    assert (seat.thread_percent, seat.memory_cap_bytes) == (25, 2 * 1024 * 1024)


def test_a_node_that_bodies_know_by_its_port_has_its_name() -> None:
    line = body.hello("7", {"NM_PORT": "18171", "CUDA_VISIBLE_DEVICES": "1", **SHARE})
    seat = parsed(line, ("rtx_3090",), {"18171": "rtx_3090-2"})[1]
    assert (seat.node, seat.gpu_type, seat.device) == ("rtx_3090-2", 0, 1)


def test_a_whole_gpu_has_no_limits() -> None:
    seat = parsed(body.hello("7", SLURM), ("h100",))[1]
    assert (seat.thread_percent, seat.memory_cap_bytes) == (100, inf)


@pytest.mark.parametrize("text", ["", "7 h100-1 0 100", "7 a100-1 0 100 0", "x h100-1 0 100 0"])
def test_any_other_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parsed(text, ("h100",))


def started(socket: Path, job: int, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-S", body.__file__, str(socket), str(job)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def test_bodies_end_as_their_jobs_do(tmp_path: Path) -> None:
    """One does its work, one has too small a cap, one is ended from outside."""
    here = emulated(1000.0, 1000.0, 1e9, kinds=[0, 1, 0])
    coordinator = Coordinator(here, ("h100",), 10_000)
    with coordinator.listening(tmp_path / "s"):
        done = started(tmp_path / "s", 0, SLURM)
        starves = started(tmp_path / "s", 1, SLURM | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1M"})
        killed = started(tmp_path / "s", 2, SLURM | {"CUDA_VISIBLE_DEVICES": "1"})
        assert "CUDA out of memory" in starves.communicate(timeout=LIMIT_S)[1]
        done.communicate(timeout=LIMIT_S)
        assert (done.returncode, starves.returncode) == (0, 1)
        wait_until(lambda: 2 in here)
        killed.kill()
        killed.communicate()
        wait_until(lambda: 2 not in here)
    assert {stay.job: stay.ending for stay in here.stays} == {0: "done", 1: "out_of_memory", 2: "gone"}
    assert coordinator.done == 1
