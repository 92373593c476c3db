"""Room that was given to applications which wait for their containers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.service.ledger import Claim
from gpusage_yarn.cluster import NodeState, Size, View, cluster_of, read_view
from gpusage_yarn.documents import Document
from gpusage_yarn.pending import claims, tags_of
from gpusage_yarn.plan import Plan
from gpusage_yarn.rest import SilentError

PLAN = Plan(share=50, labels=("A100", "h100"), containers=3)
HALVES = Claim(manager="yarn", site_types=("A100", "h100"), share_percent=50, count=3)


def application(running: int = 0, **fields: str | None) -> dict[str, Any]:
    """Return an application of `PLAN` as the ResourceManager lists it, tags in small letters."""
    tags = ",".join(tags_of(PLAN)).lower()
    return {"applicationType": "GPUSAGE", "applicationTags": tags, "runningContainers": running, **fields}


def claimed(*applications: dict[str, Any]) -> list[Claim]:
    return [*claims({"apps": {"app": list(applications)}}, ("A100", "h100"))]


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
    node = NodeState(name="n", label="a100", usable=True, total=Size(share=200), free=Size(share=200))
    view = View(version="", nodes=(node,), labels=(), queues=(), resource_types={})
    (before,) = cluster_of(view, builtin_catalogue()).pools
    (after,) = cluster_of(replace(view, claims=(replace(HALVES, site_types=("a100",)),)), builtin_catalogue()).pools
    assert before.has_room(100)
    assert (after.has_room(50), after.has_room(51)) == (True, False)


def test_a_cluster_that_does_not_tell_of_its_applications_is_taken_as_its_nodes_show_it() -> None:
    def get(path: str) -> Document:
        if path.startswith("apps"):
            message = "not told"
            raise SilentError(message)
        return {}

    assert read_view(get).claims == ()
