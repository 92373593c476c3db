"""Applications that ran out of their share's GPU memory, as the ResourceManager lists them."""

from __future__ import annotations

from typing import Any

import pytest

from gpusage_hooks.types import Usage
from gpusage_yarn.cluster.tags import find_decision_number, make_tags
from gpusage_yarn.share_plan import Plan
from gpusage_yarn.usage.collection import collect_misses, parse_misses

STORY = "container_1_2_01_000002 ran out of GPU memory in its share of 40, and its command ran again with a whole GPU"
STARVED: dict[str, Any] = {
    "id": "application_1_2",
    "user": "alice",
    "name": "train\nx",
    "finalStatus": "SUCCEEDED",
    "diagnostics": f"gpusage: exit status 0. {STORY}",
    "applicationTags": ",".join(make_tags(Plan(share=40, labels=("a100",)), "69215f4a0c3e")),
    "startedTime": 1_700_000_000_500,
    "finishedTime": 1_700_000_060_000,
}


def of(**changes: object) -> list[Usage]:
    return [*parse_misses({"apps": {"app": [{**STARVED, **changes}]}})]


def test_an_application_that_starved_is_told_with_its_decision_s_number() -> None:
    """Also where its second run went well: the miss is what is to be remembered."""
    (usage,) = of()
    assert (usage.manager, usage.job_id, usage.user, usage.job_name) == ("yarn", "application_1_2", "alice", "train x")
    assert (usage.number, usage.outcome) == ("69215f4a0c3e", "out_of_memory")
    assert (usage.started_at_s, usage.ended_at_s) == (1_700_000_000.5, 1_700_000_060.0)
    assert usage.gpu_utilization is None


@pytest.mark.parametrize("diagnostics", ["", None, "gpusage: exit status 1. container_1 on n: CUDA out of memory"])
def test_another_end_is_no_miss(diagnostics: str | None) -> None:
    """The user's own words are none of the master's."""
    assert of(diagnostics=diagnostics) == []


@pytest.mark.parametrize("tags", ["", None, "gpusage-number-xyz", "gpusage-number-69215f4a0c3eff", "agpusage-number"])
def test_a_miss_without_a_number_is_told_without_one(tags: str | None) -> None:
    (usage,) = of(applicationTags=tags)
    assert usage.number == ""


def test_yarn_is_asked_for_what_ended_lately_and_may_know_of_nothing() -> None:
    requested: list[str] = []

    def get(path: str) -> dict[str, Any]:
        requested.append(path)
        return {"apps": None}

    assert collect_misses(get) == ()
    assert "states=FINISHED&finishedTimeBegin=" in requested[0]


def test_an_application_has_ten_tags_at_most_and_the_number_is_among_them() -> None:
    tags = make_tags(Plan(share=40, labels=tuple(f"l{index}" for index in range(16))), "69215f4a0c3e")
    assert len(tags) == 10
    assert find_decision_number(",".join(tags)) == "69215f4a0c3e"
