"""What a client of the CUDA driver sees, with a stand-in for the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage.node.dividing.granted import ClientView, query_client_view, whole_sm_count
from mps import driver_in


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the variables of a client that a daemon holds to 40 % of 132 SMs."""
    library = driver_in(tmp_path)
    if library is None:
        pytest.skip("the stand-in for the CUDA driver needs a C compiler")
    monkeypatch.setenv("GPUSAGE_CUDA_LIBRARY", str(library))
    (tmp_path / "running").write_text("-d\n")
    return {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}


def test_a_client_sees_its_part_and_the_whole_gpu_is_known_beside_it(limits: dict[str, str]) -> None:
    assert query_client_view(limits) == ClientView(
        sm_count=52, memory_bytes=80 * 2**30, thread_percent="40"
    )  # 132 x 40 % = 52.8
    assert whole_sm_count(limits) == 132


def test_a_client_sees_no_variable_of_this_process(limits: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in limits.items():
        monkeypatch.setenv(name, value)
    assert query_client_view({}) == ClientView(sm_count=132, memory_bytes=80 * 2**30)


def test_without_a_driver_the_whole_gpu_is_not_known(limits: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSAGE_CUDA_LIBRARY", "/none.so")
    assert whole_sm_count(limits) is None


def test_a_gpu_that_hangs_keeps_nobody_waiting(limits: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpusage.node.dividing.granted._LIMIT_S", 0.0)
    assert query_client_view(limits) is None
    assert whole_sm_count(limits) is None
