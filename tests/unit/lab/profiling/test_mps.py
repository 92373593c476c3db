from __future__ import annotations

from pathlib import Path

import pytest

from gpusage_lab.profiling import mps, suites
from gpusage_lab.profiling.crew import environment
from gpusage_lab.profiling.items import Side

SIDE = Side(job=suites.job("timm:a"), percent=40)
STAND_IN = """#!/bin/sh
# As nvidia-cuda-mps-control does: one daemon a pipe directory.
echo "$* $CUDA_MPS_PIPE_DIRECTORY" >>"{log}"
if [ "$1" = -d ]; then touch "$CUDA_MPS_PIPE_DIRECTORY/control"; exit; fi
[ -e "$CUDA_MPS_PIPE_DIRECTORY/control" ] || exit 1
read -r command
echo "$command" >>"{log}"
case $command in quit) rm "$CUDA_MPS_PIPE_DIRECTORY/control" ;; get_server_list) echo 4711 ;; esac
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "site"))
    (tmp_path / "site").mkdir()
    program = tmp_path / "control"
    program.write_text(STAND_IN.format(log=tmp_path / "log"))
    program.chmod(0o755)
    return program


def test_a_daemon_of_our_own_is_stopped_again(control: Path, tmp_path: Path) -> None:
    with mps.running("GPU-1", str(control)) as daemon:
        assert daemon is not None
        pipe = Path(daemon.environment["CUDA_MPS_PIPE_DIRECTORY"])
        assert pipe != tmp_path / "site"
        assert daemon.has_clients
    assert "quit" in (tmp_path / "log").read_text()
    assert not pipe.exists()


def test_a_daemon_of_our_own_is_stopped_also_when_the_campaign_is(control: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), mps.running("GPU-1", str(control)):
        raise KeyboardInterrupt
    assert "quit" in (tmp_path / "log").read_text()


def test_the_sites_daemon_is_used_and_left_alone(control: Path, tmp_path: Path) -> None:
    (tmp_path / "site/control").touch()
    with mps.running("GPU-1", str(control)) as daemon:
        assert daemon is not None
        assert daemon.environment == {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "site")}
    assert (tmp_path / "site/control").exists()


def test_where_the_daemon_does_not_start_there_is_no_mps(tmp_path: Path) -> None:
    with mps.running("GPU-1", str(tmp_path / "missing")) as daemon:
        assert daemon is None


def test_a_side_has_its_part_of_the_gpu_only_under_mps() -> None:
    daemon = mps.Mps(control="control", environment={"CUDA_MPS_PIPE_DIRECTORY": "/pipe"})
    assert environment(SIDE, mps=daemon) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/pipe",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
    }
    assert environment(SIDE, mps=None) == mps.without_mps()
