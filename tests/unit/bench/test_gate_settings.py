"""Both sides of the gate's bench get MPS's variables from the node's own program; the daemon alone is a stand-in."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_each_way_of_sharing_reaches_both_sides_and_leaves_no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import gate  # a script of bench/

    shown = {}
    with gate.mps("cpu", stand_in=True) as node:
        for name in gate.SETTINGS:
            with gate.clients(node, name) as sides:
                assert not isinstance(sides, str), sides
                shown[name] = [{key[9:]: value for key, value in side.items() if "_MPS_" in key} for side in sides]
                (pipe,) = {Path(side["CUDA_MPS_PIPE_DIRECTORY"]) for side in sides}
                assert (pipe / "running").exists()
            assert not (pipe / "running").exists()
    monkeypatch.delitem(sys.modules, "gate")
    assert [side["ACTIVE_THREAD_PERCENTAGE"] for side in shown["percentage"]] == ["60", "40"]
    assert len({side["SM_PARTITION"] for side in shown["partition"]}) == 2
    assert [side["CLIENT_PRIORITY"] for side in shown["priority"]] == ["0", "1"]
    assert all("SM_PARTITION" not in side for name in ("plain", "gate") for side in shown[name])


def test_without_a_gpu_only_what_needs_no_mps_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import gate  # a script of bench/

    with gate.mps("cpu", stand_in=False) as node, gate.clients(node, "partition") as refused:
        assert refused == "only under MPS"
