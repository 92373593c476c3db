"""From the letters that nodes show to usage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.node.sampler.usage_reports import append_usage_reports
from gpusage_hooks.types import Allocation, Usage
from gpusage_yarn.cluster.resource_manager import RefusedError
from gpusage_yarn.share_plan import TYPE
from gpusage_yarn.usage.collection import application_of, collect_usage

CONTAINER = "container_1_0002_01_000002"
SEEN = Usage(
    number="", manager="yarn", job_id=CONTAINER, user="", gpu="Tesla V100-SXM2-16GB", started_at_s=5.0, ended_at_s=9.0
)
REPORT: dict[str, Any] = {
    "id": "application_1_0002",
    "user": "alice",
    "name": "train",
    "applicationType": TYPE,
    "state": "FINISHED",
    "finalStatus": "SUCCEEDED",
    "diagnostics": "gpusage: exit status 0",
    "applicationTags": "gpusage-share-40,gpusage-number-69215f4a0c3e",
    "startedTime": 4000,
    "finishedTime": 20000,
}
STARVED = replace(SEEN, outcome="out_of_memory", granted=Allocation(division="percentage", share_percent=40))
STORY = f"{CONTAINER} ran out of GPU memory in its share of 40, and its command ran again with a whole GPU"


def _start(usage: Usage) -> float:
    return usage.started_at_s


def collected(*usages: Usage, listed: bool = False, **changes: str) -> tuple[Usage, ...]:
    """Return what is collected where one node shows *usages*; the ResourceManager knows one application."""
    report = {**REPORT, **changes}

    def get(path: str) -> dict[str, Any]:
        if path.startswith("apps?"):
            kind, failed = f"applicationTypes={report['applicationType']}&" in path, "finalStatus=FAILED" in path
            matches = listed and (kind or (failed and report["finalStatus"] == "FAILED"))
            return {"apps": {"app": [report]} if matches else None}
        if path == f"apps/{report['id']}":
            return {"app": report}
        raise RefusedError(path, 404)

    return collect_usage(get, [append_usage_reports("", usages, 10.0), "no letter"], builtin_catalogue())


def test_a_letter_is_told_as_its_application_s() -> None:
    (usage,) = collected(SEEN)
    assert (usage.job_id, usage.user, usage.job_name) == ("application_1_0002", "alice", "train")
    assert (usage.number, usage.outcome, usage.gpu) == ("69215f4a0c3e", "completed", "v100-sxm2-16gb")
    assert (usage.started_at_s, usage.ended_at_s) == (5.0, 9.0)


def test_the_container_that_starved_is_told_apart_from_the_one_that_ran_after_it() -> None:
    again = replace(SEEN, job_id="container_1_0002_01_000003", started_at_s=10.0, ended_at_s=19.0)
    reported = collected(SEEN, again, listed=True, diagnostics=f"gpusage: exit status 0. {STORY}")
    assert [(usage.started_at_s, usage.outcome) for usage in sorted(reported, key=_start)] == [
        (5.0, "out_of_memory"),
        (10.0, "completed"),
    ]


def test_a_miss_without_a_letter_is_told_too() -> None:
    (usage,) = collected(listed=True, diagnostics=f"gpusage: exit status 0. {STORY}")
    assert (usage.outcome, usage.started_at_s) == ("out_of_memory", 4.0)


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [("SPARK", "out_of_memory"), ("Apache Flink", "completed"), ("YARN", "completed"), (TYPE, "completed")],
)
def test_what_a_container_says_counts_for_more_than_the_end_of_spark_s_master(kind: str, outcome: str) -> None:
    """Spark in client mode always ends as SUCCEEDED; another's job that ended well has handled what it wrote of."""
    (usage,) = collected(STARVED, applicationType=kind)
    assert usage.outcome == outcome


@pytest.mark.parametrize("later_s", [-1.0, 1.0])
def test_one_container_out_of_memory_decides_for_all_of_the_same_share(later_s: float) -> None:
    other = replace(STARVED, job_id="container_1_0002_01_000003", outcome="unknown", ended_at_s=9.0 + later_s)
    for order in ((STARVED, other), (other, STARVED)):
        outcomes = [usage.outcome for usage in collected(*order, applicationType="SPARK")]
        assert outcomes == ["out_of_memory", "out_of_memory"]
    whole = replace(other, granted=Allocation())
    assert [usage.outcome for usage in collected(STARVED, whole, applicationType="SPARK")][1] == "completed"
    stranger = replace(other, job_id="container_1_0003_01_000002")
    assert [usage.outcome for usage in collected(stranger, applicationType="SPARK")] == []


def test_a_failure_under_another_s_master_is_told_without_a_letter() -> None:
    failed = {"finalStatus": "FAILED", "diagnostics": "Job aborted"}
    (usage,) = collected(listed=True, applicationType="SPARK", **failed)
    assert (usage.number, usage.outcome, usage.gpu) == ("69215f4a0c3e", "failed", "")
    (sampled,) = collected(SEEN, listed=True, applicationType="SPARK", **failed)  # and once only
    assert (sampled.outcome, sampled.gpu) == ("failed", "v100-sxm2-16gb")
    assert collected(listed=True, applicationType="SPARK", applicationTags="", **failed) == ()
    assert collected(listed=True, **failed) == ()


def test_what_goes_on_and_what_nobody_knows_is_not_told() -> None:
    assert collected(SEEN, state="RUNNING", finalStatus="UNDEFINED") == ()
    assert collected(replace(SEEN, job_id="container_1_0099_01_000002"), replace(SEEN, job_id="12")) == ()


@pytest.mark.parametrize(("final", "outcome"), [("FAILED", "failed"), ("KILLED", "cancelled"), ("ENDED", "unknown")])
def test_the_end_is_the_application_s(final: str, outcome: str) -> None:
    (usage,) = collected(SEEN, finalStatus=final)
    assert usage.outcome == outcome


@pytest.mark.parametrize(
    ("diagnostics", "outcome"),
    [
        ("gpusage: exit status 1. container_1 on n: no such file", "failed"),
        ("gpusage: exit status 143. container_1 on n: terminated", "interrupted"),
        ("gpusage: exit status 127. container_1 on n: train: not found", "interrupted"),
        ("gpusage: exit status 1. c is running 5B beyond the 'PHYSICAL' memory limit. Current usage", "interrupted"),
        ("gpusage: exit status 1. c is running beyond virtual memory limits. Current usage", "interrupted"),
    ],
)
def test_who_was_ended_from_outside_is_told_from_who_failed(diagnostics: str, outcome: str) -> None:
    (usage,) = collected(SEEN, finalStatus="FAILED", diagnostics=diagnostics)
    assert usage.outcome == outcome


def test_a_container_of_a_later_resource_manager_has_an_epoch() -> None:
    assert application_of("container_e17_1700_0001_01_000002") == "application_1700_0001"


@given(st.text())
def test_any_text_is_a_container_or_none(text: str) -> None:
    assert application_of(text) == "" or application_of(text).startswith("application_")
