"""What really holds a container to its share, asked of a stand-in for the CUDA driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage.node.dividing.granted import NOT_READ_BACK
from gpusage_hooks.types import Allocation
from gpusage_hooks.units import MIB
from gpusage_yarn.usage.node import read_allocation
from mps import driver_in

ALLOCATION = Allocation(
    division="percentage", share_percent=40, thread_percent=40, memory_limit_bytes=512 * MIB, limited_by="cap"
)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return a container's variables; the driver sees 132 SMs."""
    library = driver_in(tmp_path)
    if library is None:
        pytest.skip("the stand-in for the CUDA driver needs a C compiler")
    monkeypatch.setenv("GPUSAGE_CUDA_LIBRARY", str(library))
    return {
        "CUDA_VISIBLE_DEVICES": "0",
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=512M",
        "HOME": "/",
    }


def test_a_percentage_that_a_daemon_holds_is_what_a_client_sees(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "running").write_text("-d\n")
    assert read_allocation(40, environment) == ALLOCATION


def test_what_a_site_lets_a_share_use_beyond_itself_is_seen(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "running").write_text("-d\n")
    granted = read_allocation(40, {**environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "80"})
    assert (granted.share_percent, granted.thread_percent) == (40, 80)


def test_a_percentage_without_a_daemon_holds_nobody(environment: dict[str, str]) -> None:
    granted = read_allocation(40, environment)
    assert (granted.division, granted.share_percent, granted.thread_percent) == ("whole", 40, None)
    assert granted.trouble == "no MPS daemon holds the client: it sees all SMs"


def test_a_driver_that_is_not_there_is_said(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSAGE_CUDA_LIBRARY", "/none.so")
    assert read_allocation(40, environment).trouble == "not read back: the node has no CUDA driver"


def test_where_the_container_is_another_user_s_nothing_is_asked() -> None:
    assert read_allocation(40, {}) == Allocation(division="percentage", share_percent=40, trouble=NOT_READ_BACK)


def test_a_whole_gpu_is_held_by_nothing(environment: dict[str, str]) -> None:
    assert read_allocation(100, environment) == Allocation()
