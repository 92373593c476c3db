"""What a client of MPS reads back, with stand-ins for the CUDA driver and for the control daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpusage.node.dividing import PROBE
from mps import driver_in


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = driver_in(tmp_path_factory.mktemp("driver"))
    if library is None:
        pytest.skip("no C compiler")
    return str(library)


def probe(library: str, **environment: str) -> dict[str, object]:
    command = [sys.executable, "-I", "-S", str(PROBE), library]
    text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return {name: value for name, value in json.loads(text).items() if value is not None}


def daemon(folder: Path, options: str = "-d", partitions: str = "") -> str:
    """Return the pipe folder of a daemon that runs with *options*."""
    (folder / "running").write_text(options)
    (folder / "partitions").write_text(partitions)
    return str(folder)


def test_a_percentage_without_a_daemon_is_ignored(driver: str) -> None:
    seen = probe(driver, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="40")
    assert seen == {"thread_percent": "40", "sm_count": 132, "memory_bytes": 80 * 2**30, "trouble": ""}


def test_a_client_sees_its_part_of_the_sms(driver: str, tmp_path: Path) -> None:
    pipe = daemon(tmp_path)
    seen = probe(driver, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="40", CUDA_MPS_PIPE_DIRECTORY=pipe)
    assert seen["sm_count"] == 52  # 132 x 40 % = 52.8


def test_a_client_without_a_partition_cannot_start_where_the_gpu_is_partitioned(driver: str, tmp_path: Path) -> None:
    pipe = daemon(tmp_path, "-d -S", "Dx1AAAA 7\n")
    assert probe(driver, CUDA_MPS_PIPE_DIRECTORY=pipe)["trouble"] == "a client cannot start: cuInit ended with 915"
    seen = probe(driver, CUDA_MPS_PIPE_DIRECTORY=pipe, CUDA_MPS_SM_PARTITION="GPU-1/Dx1AAAA")
    assert (seen["sm_count"], seen["trouble"]) == (56, "")  # 7 chunks of 8 SMs


def test_a_host_without_a_driver_says_so() -> None:
    assert probe("libcuda-of-nobody.so.1") == {"trouble": "not read back: the node has no CUDA driver"}
