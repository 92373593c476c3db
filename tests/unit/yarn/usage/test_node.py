"""The program that samples one container: what it takes, and the node's letter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.node.sampler.usage_reports import UsageSpool, parse_usage_reports
from gpusage_hooks.types import Usage
from gpusage_yarn.usage.node import LOG_BYTES, REPORT_FILE, append_report, job_of, main, says_out_of_memory

NOW_S = 4e9
SEEN = Usage(number="", manager="yarn", job_id="container_1", user="", gpu="g", started_at_s=NOW_S, ended_at_s=NOW_S)


def test_each_container_s_usage_is_added_to_the_letter(tmp_path: Path) -> None:
    folder = UsageSpool(tmp_path / "usage", "")
    for job_id in ("container_1", "container_2"):
        append_report(folder, replace(SEEN, job_id=job_id))
    reported = parse_usage_reports((folder.path / REPORT_FILE).read_text())
    assert {usage.job_id for usage in reported} == {"container_1", "container_2"}


@pytest.mark.parametrize(
    "words", [("../x", "0", "40"), ("container_1", "0,1", "40"), ("container_1", "0", "0"), ("container_1", "0", "400")]
)
def test_words_that_are_none_of_the_listener_s_start_nothing(words: tuple[str, ...], tmp_path: Path) -> None:
    main([*words, str(tmp_path / "usage")])
    assert not (tmp_path / "usage").exists()


def test_a_container_is_known_by_yarn_s_own_variable_and_cgroup() -> None:
    job = job_of("container_1", "GPU-1")
    assert (job.identity.variable, job.identity.cgroups) == ("CONTAINER_ID=container_1", ("container_1",))
    assert job.devices == ("GPU-1",)


def test_a_container_s_logs_say_that_its_gpu_had_no_memory_left(tmp_path: Path) -> None:
    environment = {"GPUSAGE_OUT_OF_MEMORY": "CUDA out of memory", "GPUSAGE_LOGS": str(tmp_path)}
    (tmp_path / "launch_container.sh").write_text("echo CUDA out of memory")  # the user's own words
    (tmp_path / "stderr").symlink_to(tmp_path / "launch_container.sh")  # somebody else's, for all we know
    assert not says_out_of_memory(environment)
    (tmp_path / "task.log").write_text("CUDA out of memory\n" + "x" * LOG_BYTES)
    assert not says_out_of_memory(environment)
    (tmp_path / "task.err").write_text("x" * LOG_BYTES + "\ntorch.OutOfMemoryError: CUDA out of memory.\nbye\n")
    assert says_out_of_memory(environment)
    assert not says_out_of_memory({})
    assert not says_out_of_memory({**environment, "GPUSAGE_LOGS": "null"})
