"""The program that samples one container: what it takes, and the node's letter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.node.sampler.usage_reports import UsageSpool, parse_usage_reports
from gpusage_hooks.types import Usage
from gpusage_yarn.usage.node import (
    LINE_LENGTH,
    LOG_BYTES,
    LOG_COUNT,
    REPORT_FILE,
    append_report,
    job_of,
    main,
    says_out_of_memory,
)
from nvml import built_nvml
from waiting import wait_until

NOW_S = 4e9
SEEN = Usage(number="", manager="yarn", job_id="container_1", user="", gpu="g", started_at_s=NOW_S, ended_at_s=NOW_S)

WORDS = "CUDA out of memory"
FAILED_TASK = f"""ERROR Executor: Exception in task 0.0 in stage 0.0 (TID 0)
torch.OutOfMemoryError: {WORDS}. Tried to allocate 2.00 GiB.
\tat org.apache.spark.scheduler.Task.run(Task.scala:147)
INFO YarnCoarseGrainedExecutorBackend: Driver commanded a shutdown
"""


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
    environment = {"GPUSAGE_OUT_OF_MEMORY": WORDS, "GPUSAGE_LOGS": str(tmp_path)}
    (tmp_path / "launch_container.sh").write_text(FAILED_TASK)  # the user's own words
    (tmp_path / "stderr").symlink_to(tmp_path / "launch_container.sh")  # somebody else's, for all we know
    assert not says_out_of_memory(environment)
    (tmp_path / "task.log").write_text(FAILED_TASK + "x" * LOG_BYTES)
    assert not says_out_of_memory(environment)
    (tmp_path / "task.err").write_text("x" * LOG_BYTES + f"\n{FAILED_TASK}")
    assert says_out_of_memory(environment)
    assert not says_out_of_memory({})
    assert not says_out_of_memory({**environment, "GPUSAGE_LOGS": "null"})


@pytest.mark.parametrize(
    ("end", "lacked"),
    [
        (FAILED_TASK, True),
        (f"{WORDS} at batch 64, trying 32\n" + "step\n" * 300, False),  # a program that tries batch sizes
        (FAILED_TASK.replace(WORDS, "no such file"), False),
        (FAILED_TASK.replace("torch.", "x" * LINE_LENGTH), False),
    ],
)
def test_a_program_that_handled_the_error_has_not_run_out_of_memory(end: str, lacked: object, tmp_path: Path) -> None:
    (tmp_path / "stderr").write_text(end)
    assert says_out_of_memory({"GPUSAGE_OUT_OF_MEMORY": WORDS, "GPUSAGE_LOGS": str(tmp_path)}) is lacked


def test_of_many_logs_only_some_are_read_and_stderr_first(tmp_path: Path) -> None:
    environment = {"GPUSAGE_OUT_OF_MEMORY": WORDS, "GPUSAGE_LOGS": str(tmp_path)}
    for index in range(2 * LOG_COUNT):
        (tmp_path / f"{index}.log").write_text("step\n")
    (tmp_path / "stderr").write_text(FAILED_TASK)
    assert says_out_of_memory(environment)
    (tmp_path / "stderr").write_text("step\n")
    logs = [path for path in tmp_path.glob("*[rg]") if path.name != "stderr"]
    logs[LOG_COUNT - 1].write_text(FAILED_TASK)
    assert not says_out_of_memory(environment)
    logs[LOG_COUNT - 2].write_text(FAILED_TASK)
    assert says_out_of_memory(environment)


@pytest.mark.parametrize(
    ("dies", "driver", "outcome"),
    [
        ("container", "library", "out_of_memory"),
        ("container", "none", "out_of_memory"),
        ("NodeManager", "library", "unknown"),
    ],
)
def test_a_container_that_outlives_its_nodemanager_has_not_ended(
    dies: str, driver: str, outcome: str, tmp_path: Path
) -> None:
    logs, folder = tmp_path / "logs", tmp_path / "usage"
    logs.mkdir()
    (logs / "stderr").write_text(FAILED_TASK)
    (tmp_path / "facts").write_text("utilization 40\n")
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(built_nvml(tmp_path)) if driver == "library" else "",
        "NVML_STANDIN": str(tmp_path / "facts"),
        "GPUSAGE_OUT_OF_MEMORY": WORDS,
        "GPUSAGE_LOGS": str(logs),
    }
    container = f"container_9{os.getpid():07}_0001_01_000002"
    words = [sys.executable, "-m", "gpusage_yarn.usage.node", container, "0", "40", str(folder)]
    with subprocess.Popen(["sh", "-c", '"$@" & echo $!; wait', "sh", *words], env=environment, stdout=-1) as parent:
        assert parent.stdout is not None
        sampler = int(parent.stdout.readline())
        wait_until(lambda: any(folder.glob("*.device")))
        if dies == "NodeManager":
            parent.kill()
        else:
            os.kill(sampler, signal.SIGTERM)
        wait_until((folder / REPORT_FILE).exists)
        parent.kill()
    (usage,) = parse_usage_reports((folder / REPORT_FILE).read_text())
    assert usage.outcome == outcome
