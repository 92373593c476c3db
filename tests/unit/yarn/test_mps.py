"""gpusage-mps, the executable behind the NodeManager's auxiliary service, with a stand-in for the control daemon."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from gpusage.node.dividing import PROGRAM
from mps import control_in


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return what the auxiliary service sets, with the stand-in first on the PATH."""
    control_in(tmp_path)
    return {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "a b" / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "a b" / "log"),
    }


def call(environment: dict[str, str], *arguments: str) -> int:
    return subprocess.run([str(PROGRAM), *arguments], check=False, env=environment, capture_output=True).returncode


def test_each_word_ends_with_0_where_what_it_says_holds(environment: dict[str, str]) -> None:
    words = ["status", "stop", "start", "status", "start", "stop", "status"]
    assert [call(environment, word, "GPU-1") for word in words] == [1, 0, 0, 0, 0, 0, 1]


def test_the_daemon_gets_its_gpu_and_its_folders(environment: dict[str, str]) -> None:
    call(environment, "start", "GPU-1")
    assert Path(environment["CUDA_MPS_PIPE_DIRECTORY"], "running").read_text() == "-d device=GPU-1\n"
    assert Path(environment["CUDA_MPS_LOG_DIRECTORY"]).is_dir()


def test_the_daemon_serves_several_users_only_where_the_site_wants_that(environment: dict[str, str]) -> None:
    call({**environment, "GPUSAGE_ACROSS_USERS": "yes"}, "start", "GPU-1")
    assert Path(environment["CUDA_MPS_PIPE_DIRECTORY"], "running").read_text() == "-d -multiuser-server device=GPU-1\n"


def test_any_other_word_is_wrong_usage(environment: dict[str, str]) -> None:
    assert call(environment, "restart", "GPU-1") == 2
    assert call(environment) == 2


def test_a_daemon_that_died_and_left_its_pipe_is_started_again(environment: dict[str, str]) -> None:
    call(environment, "start", "GPU-1")
    pipe = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
    (pipe / "running").rename(pipe / "stale")
    assert [call(environment, word, "GPU-1") for word in ("status", "start", "status")] == [1, 0, 0]


def test_containers_have_percentages_whatever_else_the_environment_wishes(environment: dict[str, str]) -> None:
    submit_options = {"GPUSAGE_DIVISION": "partition", "GPUSAGE_MPS_PROTOCOL": "3", "STANDIN_VERSION": "13040"}
    call({**environment, **submit_options}, "start", "GPU-1")
    assert Path(environment["CUDA_MPS_PIPE_DIRECTORY"], "running").read_text() == "-d device=GPU-1\n"


def test_a_daemon_that_does_not_answer_is_waited_for_no_longer_than_the_limit(environment: dict[str, str]) -> None:
    call(environment, "start", "GPU-1")
    began_s = time.monotonic()
    assert call({**environment, "STANDIN_HANGS": "yes", "GPUSAGE_LIMIT_S": "1"}, "status", "GPU-1") != 0
    assert time.monotonic() - began_s < 50
