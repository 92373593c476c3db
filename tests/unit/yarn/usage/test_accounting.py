"""What the ResourceManager counted of applications -> runs of jobs with GPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage_hooks.types import Allocation, Usage
from gpusage_yarn.cluster.documents import with_repeated_names
from gpusage_yarn.usage.collection import accounting_path, parse_accounting

SHARE = "gpusage.io/share"
APPLICATION: dict[str, Any] = {
    "id": "application_1_0002",
    "user": "alice",
    "name": "train\n7",
    "queue": "root.physics",
    "state": "FINISHED",
    "finalStatus": "SUCCEEDED",
    "diagnostics": "gpusage: exit status 0",
    "applicationTags": "",
    "appNodeLabelExpression": "v100",
    "startedTime": 1_000_000,
    "launchTime": 2_000_000,
    "finishedTime": 9_200_000,
}


def entries(**seconds: int) -> dict[str, Any]:
    """Return how the ResourceManager tells it, with the numbers as texts."""
    names = {"gpu": "yarn.io/gpu", "share": SHARE}
    return {"entry": [{"key": names.get(key, key), "value": str(value)} for key, value in seconds.items()]}


def parsed(**changes: object) -> tuple[Usage, ...]:
    document = {"apps": {"app": [{**APPLICATION, **changes}]}}
    return tuple(parse_accounting(document, SHARE, builtin_catalogue()))


def test_an_application_has_its_gpus_as_the_mean_over_its_time() -> None:
    # Two GPUs for half of 7,200 s: one for the whole of it.
    (usage,) = parsed(resourceSecondsMap=entries(vcores=9, gpu=7200))
    assert usage == Usage(
        number="",
        manager="yarn",
        job_id="application_1_0002",
        user="alice",
        user_id="alice",
        account="root.physics",
        partition="v100",
        job_name="train 7",
        gpu="v100-sxm2-16gb",
        gpu_count=1.0,
        outcome="completed",
        started_at_s=2000.0,
        ended_at_s=9200.0,
    )


def test_a_share_counts_as_its_part_of_a_gpu() -> None:
    # 40 hundredths for 3,600 of the 7,200 s
    tags = "gpusage-share-40,gpusage-number-69215f4a0c3e,gpusage-label-a100"
    seconds = entries(share=40 * 3600)
    (usage,) = parsed(applicationTags=tags, appNodeLabelExpression="", resourceSecondsMap=seconds)
    assert (usage.number, usage.gpu, usage.partition) == ("69215f4a0c3e", "a100-sxm4-40gb", "")
    assert usage.granted == Allocation(division="percentage", share_percent=40)
    assert usage.gpu_count == pytest.approx(0.5)


def test_a_share_of_which_nothing_is_known_is_the_mean_of_what_was_held() -> None:
    (usage,) = parsed(resourceSecondsMap=entries(share=25 * 7200))
    assert (usage.granted.share_percent, usage.gpu_count) == (25, 1.0)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="nothing counted"),
        pytest.param({"resourceSecondsMap": {"entry": {"key": "vcores", "value": "63"}}}, id="no GPU"),
        pytest.param({"resourceSecondsMap": entries(gpu=5), "finishedTime": 2_000_000}, id="never ran"),
    ],
)
def test_what_held_no_gpu_is_left_out(changes: dict[str, object]) -> None:
    assert parsed(**changes) == ()


def test_hadoops_maps_that_repeat_a_name_are_read_whole() -> None:
    """As 3.4.2 writes them; a plain reader of JSON keeps the last entry alone."""
    text = '{"entry":{"key":"yarn.io/gpu","value":"7200"},"entry":{"key":"memory-mb","value":"9"}}'
    seconds = json.loads(text, object_pairs_hook=with_repeated_names)
    assert [usage.gpu_count for usage in parsed(resourceSecondsMap=seconds)] == [1.0]


def test_only_applications_that_ended_in_the_time_are_asked_for() -> None:
    path = accounting_path(1.0, 2.5)
    assert path.startswith("apps?states=FINISHED,FAILED,KILLED&finishedTimeBegin=1000&finishedTimeEnd=2500")
