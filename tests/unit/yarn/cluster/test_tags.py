"""Room that was given to applications which wait for their containers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.service.reservations import Reservation
from gpusage_hooks.errors import RequestError
from gpusage_yarn.cluster.documents import Document
from gpusage_yarn.cluster.resource_manager import UnreachableError
from gpusage_yarn.cluster.snapshot import ClusterSnapshot, ContainerSize, NodeState, build_cluster, read_snapshot
from gpusage_yarn.cluster.tags import find_decision_number, make_tags, parse_claims, parse_plan_tags, require_tags
from gpusage_yarn.share_plan import Plan

PLAN = Plan(share=50, labels=("A100", "h100"), containers=3)
HALVES = Reservation(manager="yarn", site_types=("A100", "h100"), share_percent=50, count=3)


def application(running: int = 0, **fields: str | None) -> dict[str, Any]:
    """Return an application of `PLAN` as the ResourceManager lists it, tags in small letters."""
    tags = ",".join(make_tags(PLAN)).lower()
    return {"applicationType": "GPUSAGE", "applicationTags": tags, "runningContainers": running, **fields}


def claimed(*applications: dict[str, Any]) -> list[Reservation]:
    return [*parse_claims({"apps": {"app": list(applications)}}, ("A100", "h100"))]


@pytest.mark.parametrize(("running", "count"), [(-1, 3), (0, 3), (1, 3), (2, 2), (3, 1)])
def test_an_application_claims_what_it_has_no_container_for(running: int, count: int) -> None:
    """The first container is the master's."""
    assert claimed(application(running)) == [replace(HALVES, count=count)]


@pytest.mark.parametrize(
    "one",
    [
        application(4),
        application(applicationTags=""),
        application(applicationTags=None),
        application(applicationTags="gpusage-share-50,gpusage-label-other"),
        application(applicationTags="gpusage-share-0,gpusage-label-h100"),
        application(applicationTags="gpusage-share-999999,gpusage-label-h100"),
    ],
)
def test_one_that_has_all_or_tells_nothing_claims_nothing(one: dict[str, Any]) -> None:
    assert claimed(one) == []


def test_the_cluster_has_less_room_by_what_is_pending() -> None:
    """Two free GPUs; three halves of them leave one half."""
    node = NodeState(name="n", label="a100", usable=True, total=ContainerSize(share=200), free=ContainerSize(share=200))
    snapshot = ClusterSnapshot(version="", nodes=(node,), labels=(), queues=(), resource_types={})
    (before,) = build_cluster(snapshot, builtin_catalogue()).pools
    (after,) = build_cluster(
        replace(snapshot, reservations=(replace(HALVES, site_types=("a100",)),)), builtin_catalogue()
    ).pools
    assert before.has_room(100)
    assert (after.has_room(50), after.has_room(51)) == (True, False)


def test_a_cluster_that_does_not_tell_of_its_applications_is_taken_as_its_nodes_show_it() -> None:
    def get(path: str) -> Document:
        if path.startswith("apps"):
            message = "not told"
            raise UnreachableError(message)
        return {}

    assert read_snapshot(get).reservations == ()


def test_tags_of_the_user_stand_beside_ours_and_push_out_only_later_labels() -> None:
    plan = Plan(share=40, labels=tuple(f"l{number}" for number in range(9)))
    tags = make_tags(plan, "69215f4a0c3e", ("team a", "run:7"))
    assert len(tags) == 10
    assert {"team a", "run:7"} < set(tags)
    assert find_decision_number(",".join(tags)) == "69215f4a0c3e"
    assert parse_plan_tags(",".join(tags)) == (40, plan.labels[:5])


@pytest.mark.parametrize("tags", [[""], ["a,b"], ["ä"], ["x" * 101], ["GPUSAGE-share-100"], ["a"] * 6])
def test_a_tag_that_yarn_does_not_take_or_that_could_be_ours_is_refused(tags: list[str]) -> None:
    with pytest.raises(RequestError, match=r"(Tag|tags) "):
        require_tags(tags)
