"""gpusage-mps, the executable behind the NodeManager's auxiliary service, with a stand-in for the control daemon."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

COMMAND = Path(__file__).resolve().parents[3] / "plugins/yarn/gpusage_yarn/node/gpusage-mps"
CONTROL = """#!/bin/sh
state=$CUDA_MPS_PIPE_DIRECTORY/control
case ${1:-} in
  -d) test ! -e "$state" && echo "$CUDA_VISIBLE_DEVICES${2:+ $2}" >"$state" ;;
  *) test -e "$state" || exit 1; read -r words; test "$words" != quit || rm "$state" ;;
esac
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return what the auxiliary service sets, with the stand-in first on the PATH."""
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(CONTROL)
    control.chmod(0o755)
    return {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "a b" / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "a b" / "log"),
    }


def call(environment: dict[str, str], *arguments: str) -> int:
    return subprocess.run([str(COMMAND), *arguments], check=False, env=environment, capture_output=True).returncode


def test_each_word_ends_with_0_where_what_it_says_holds(environment: dict[str, str]) -> None:
    words = ["status", "stop", "start", "status", "start", "stop", "status"]
    assert [call(environment, word, "GPU-1") for word in words] == [1, 0, 0, 0, 0, 0, 1]


def test_the_daemon_gets_its_gpu_and_its_folders(environment: dict[str, str]) -> None:
    call(environment, "start", "GPU-1")
    assert Path(environment["CUDA_MPS_PIPE_DIRECTORY"], "control").read_text() == "GPU-1\n"
    assert Path(environment["CUDA_MPS_LOG_DIRECTORY"]).is_dir()


def test_the_daemon_serves_several_users_only_where_the_site_wants_that(environment: dict[str, str]) -> None:
    call({**environment, "GPUSAGE_ACROSS_USERS": "yes"}, "start", "GPU-1")
    assert Path(environment["CUDA_MPS_PIPE_DIRECTORY"], "control").read_text() == "GPU-1 -multiuser-server\n"


def test_any_other_word_is_wrong_usage(environment: dict[str, str]) -> None:
    assert call(environment, "restart", "GPU-1") == 2
    assert call(environment) == 2
