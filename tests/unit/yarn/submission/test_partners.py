"""A plan that goes to a partner's node while that has room."""

from __future__ import annotations

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_yarn.cluster.documents import Document
from gpusage_yarn.cluster.snapshot import ClusterSnapshot, ContainerSize, NodeState
from gpusage_yarn.share_plan import Plan
from gpusage_yarn.submission.planning import application_nodes, restrict_to_nodes

ID = "application_1795251805121_0002"
PLAN = Plan(share=40, labels=("v100", "a100"), memory_mib=512, vcores=1)


def node(name: str, label: str, share: int = 100) -> NodeState:
    size = ContainerSize(share=share, memory_mib=4096, vcores=8)
    return NodeState(
        name=name, label=label, usable=True, total=ContainerSize(share=100, memory_mib=4096, vcores=8), free=size
    )


def snapshot(*nodes: NodeState) -> ClusterSnapshot:
    return ClusterSnapshot(version="", nodes=nodes, labels=(), queues=(), resource_types={})


SITE = snapshot(
    node("v:1", "v100", 50), node("v:2", "v100"), node("v:3", "v100", 30), node("a:1", "a100"), node("c:1", "")
)


@pytest.mark.parametrize(
    ("there", "avoid", "labels"),
    [
        ({"v:1", "c:1"}, ("v:2",), ("v100", "a100")),  # the full node needs not be avoided
        ({"a:1"}, (), ("a100", "v100")),
        ({"a:1", "v:2"}, ("v:1",), ("v100", "a100")),
    ],
)
def test_other_nodes_with_room_are_avoided_and_the_partner_s_type_comes_first(
    there: set[str], avoid: tuple[str, ...], labels: tuple[str, ...]
) -> None:
    plan, why_not = restrict_to_nodes(PLAN, SITE, frozenset(there))
    assert (plan.avoid, plan.labels, why_not) == (avoid, labels, "")


def test_nodes_that_were_avoided_are_avoided_still() -> None:
    plan = Plan(share=40, labels=("v100",), avoid=("v:2",))
    assert restrict_to_nodes(plan, SITE, frozenset({"v:1"})) == (plan, "")
    _, why_not = restrict_to_nodes(plan, SITE, frozenset({"v:2"}))
    assert why_not == "no node where it runs has room, or may be used"


@pytest.mark.parametrize("there", [{"v:3"}, {"c:1"}, {"gone:1"}, set()])
def test_where_the_partner_has_no_room_nothing_is_avoided(there: set[str]) -> None:
    assert restrict_to_nodes(PLAN, SITE, frozenset(there)) == (PLAN, "no node where it runs has room, or may be used")


def test_a_whole_gpu_and_a_large_cluster_go_where_there_is_room() -> None:
    whole = Plan(share=100, labels=("v100",))
    assert restrict_to_nodes(whole, SITE, frozenset({"v:2"})) == (whole, "it has a whole GPU, and no partner")
    large = snapshot(*(node(f"v:{number}", "v100") for number in range(70)))
    assert restrict_to_nodes(PLAN, large, frozenset({"v:1"})) == (PLAN, "more than 64 other nodes have room")


def test_an_application_is_where_its_containers_run() -> None:
    attempts = f"apps/{ID}/appattempts"
    running, ended = (
        {"assignedNodeId": node, "containerState": state} for node, state in (("v:1", "RUNNING"), ("v:2", "COMPLETE"))
    )
    documents: dict[str, Document] = {
        attempts: {"appAttempts": {"appAttempt": [{"appAttemptId": "one"}, {"appAttemptId": "two"}]}},
        f"{attempts}/one/containers": {"container": [running]},
        f"{attempts}/two/containers": {"container": [ended]},
    }
    assert application_nodes(documents.__getitem__, ID) == {"v:1"}
    with pytest.raises(RequestError, match="must be an id as YARN writes it"):
        application_nodes(documents.__getitem__, "../x")
