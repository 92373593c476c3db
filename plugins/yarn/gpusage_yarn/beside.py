"""Going to a partner: an application's containers go to a node where another one runs, while that has room.

The plan avoids the other nodes that have room. The ResourceManager lets containers go there as soon as the partner's
node has none (docs/decisions/0043), so nobody waits for a partner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from gpusage_hooks.errors import RequestError
from gpusage_yarn.applications import APPLICATION
from gpusage_yarn.cluster import Size, View
from gpusage_yarn.documents import Document, as_list
from gpusage_yarn.plan import MOST_NODES, WHOLE_GPU, Plan, usable_nodes


def nodes_of(get: Callable[[str], Document], identity: str) -> frozenset[str]:
    """Return the nodes on which the application *identity* has containers, its masters' included.

    Args:
        get: Asks for a path below ``/ws/v1/cluster``.
        identity: As YARN writes it.

    Raises:
        RequestError: It is no application's id, or the ResourceManager knows no such application.
    """
    if not APPLICATION.fullmatch(identity):
        message = (
            f"Application {identity[:80]!r} must be an id as YARN writes it, like application_1795251805121_0002. "
            "Change --beside; gpusage colocate MODEL --running names some."
        )
        raise RequestError(message)
    return frozenset(_nodes(get, identity))


def _nodes(get: Callable[[str], Document], identity: str) -> Iterator[str]:
    attempts = f"apps/{identity}/appattempts"
    for attempt in as_list(get(attempts), "appAttempts", "appAttempt"):
        for container in as_list(get(f"{attempts}/{attempt['appAttemptId']}/containers"), "container"):
            if container.get("containerState") == "RUNNING":
                yield str(container.get("assignedNodeId") or "")


def beside(plan: Plan, view: View, nodes: frozenset[str]) -> tuple[Plan, str]:
    """Return *plan* so that its containers go to one of *nodes*, and why they do not, one clause; one of them is empty.

    Args:
        plan: Nodes that it avoids already are avoided still.
        view: What has room now.
        nodes: Where the partner runs.
    """
    if plan.share == WHOLE_GPU:
        return plan, "it has a whole GPU, and no partner"
    size = Size(share=plan.share, memory_mib=plan.memory_mib, vcores=plan.vcores)
    roomy = [node for node in view.without(plan.avoid).nodes if node.label in plan.labels and node.fits(size)]
    labels = sorted({node.label for node in roomy if node.name in nodes}, key=plan.labels.index)
    if not labels:
        return plan, "no node where it runs has room, or may be used"
    others = {node.name for node in roomy if node.label == labels[0]} - nodes
    avoid = tuple(dict.fromkeys([*plan.avoid, *sorted(others)]))
    if len(avoid) > MOST_NODES or usable_nodes(avoid) != avoid:
        return plan, f"more than {MOST_NODES} other nodes have room"
    return replace(plan, avoid=avoid, labels=tuple(dict.fromkeys([labels[0], *plan.labels]))), ""
