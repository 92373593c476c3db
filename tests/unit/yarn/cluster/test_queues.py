"""Queues by their paths, as YARN names them."""

from __future__ import annotations

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_yarn.cluster.queues import Queue, creates_queues, find_queue, parse_queues, queue_names


def part(label: str, capacity: float) -> dict[str, object]:
    return {"partitionName": label, "absoluteMaxCapacity": capacity, "maxAMLimitPercentage": 10.0}


def leaf(name: str, *parts: dict[str, object]) -> dict[str, object]:
    return {"queueName": name, "nodeLabels": ["*"], "capacities": {"queueCapacitiesByPartition": list(parts)}}


def parent(name: str, *children: dict[str, object], **more: object) -> dict[str, object]:
    return {"queueName": name, "queues": {"queue": list(children)}, **more}


TREE = parent(
    "root",
    parent("a", leaf("x", part("a100", 100)), leaf("y")),
    parent("b", leaf("x", part("a100", 0))),
)


def test_two_leaves_of_one_name_are_two_queues() -> None:
    queues = parse_queues(TREE)
    assert [(queue.path, queue.is_accessible("a100")) for queue in queues] == [
        ("root.a.x", True),
        ("root.a.y", True),
        ("root.b.x", False),
    ]
    assert find_queue(queues, "root.b.x") == queues[2]
    assert find_queue(queues, "y") == queues[1]
    assert find_queue(queues, "z") is None
    assert find_queue(queues, "") is None
    assert [names for _, names in queue_names(queues)] == [("root.a.x",), ("root.a.y", "y"), ("root.b.x",)]


def test_who_names_no_queue_is_in_the_default_one_where_that_is_one() -> None:
    one, other = (Queue(path=path, labels=frozenset()) for path in ("root.a.default", "root.b.default"))
    assert find_queue((one,), "") == one
    assert find_queue((one, other), "") is None


def test_a_name_of_two_queues_is_refused_with_both_paths() -> None:
    with pytest.raises(RequestError, match=r"it is the last name of root\.a\.x, root\.b\.x\. Write the whole path\."):
        find_queue(parse_queues(TREE), "x")


def test_a_queue_below_which_yarn_makes_others_is_told() -> None:
    assert not creates_queues(TREE)
    assert creates_queues(parent("root", parent("users", autoCreationEligibility="flexible")))


def test_nodes_without_a_label_are_open_unless_the_queue_has_nothing_of_them() -> None:
    assert Queue(path="root.q", labels=frozenset()).is_accessible("")
    assert not Queue(path="root.q", labels=frozenset({"*"}), closed=frozenset({""})).is_accessible("")


def amount(memory: int, cores: int) -> dict[str, object]:
    entries = [{"name": "memory-mb", "value": memory}, {"name": "vcores", "value": cores}]
    return {"resourceInformations": {"resourceInformation": entries}}


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [((0, 0), (0, 0), False), ((1600, 3), (512, 1), False), ((1600, 3), (1536, 3), True), ((9000, 3), (1536, 3), True)],
)
def test_a_label_is_crowded_where_no_further_master_starts(
    limit: tuple[int, int], used: tuple[int, int], expected: bool  # a case
) -> None:  # fmt: skip
    usage = {"partitionName": "a100", "amLimit": amount(*limit), "amUsed": amount(*used)}
    (queue,) = parse_queues({**leaf("q"), "resources": {"resourceUsagesByPartition": [usage]}})
    assert ("a100" in queue.am_limit_reached) is expected

    (queue,) = parse_queues(
        {**leaf("q"), "resources": {"resourceUsagesByPartition": [{**usage, "partitionName": ""}]}}, gpu_type="v100"
    )
    assert queue.am_limit_reached == (frozenset({"", "v100"}) if expected else frozenset())


def vector(memory: int, gpus: int, share: int) -> dict[str, object]:
    resource_amounts = {"memory-mb": memory, "vcores": 8, "gpusage.io/share": share, "yarn.io/gpu": gpus}
    entries = [{"name": name, "value": value if memory else 0} for name, value in resource_amounts.items()]
    return {"resourceInformations": {"resourceInformation": entries}}


@pytest.mark.parametrize(
    ("configured", "effective", "reached", "missing"),
    [
        (vector(0, 0, 0), vector(4096, 0, 200), True, 0),  # percentages
        (vector(4096, 1, 0), vector(4096, 1, 0), False, 2),
        (vector(4096, 1, 0), vector(4096, 1, 50), True, 0),  # none for sure, and some at most
        (vector(0, 0, 0), vector(0, 0, 0), True, 0),  # no node has registered yet
    ],
)
def test_absolute_resources_without_shares_are_told_with_the_lines_to_write(
    configured: dict[str, object],
    effective: dict[str, object],
    reached: bool,  # a case
    missing: int,
) -> None:
    resources = {"configuredMinResource": configured, "configuredMaxResource": configured}
    (queue,) = parse_queues(leaf("q", {**part("a100", 100), **resources, "effectiveMaxResource": effective}))
    assert queue.has_shares("a100") is reached
    lines = queue.missing.get("a100", ())
    assert len(lines) == missing
    if lines:
        assert lines[0] == (
            "yarn.scheduler.capacity.q.accessible-node-labels.a100.capacity="
            "[memory=4096,vcores=8,gpusage.io/share=100,yarn.io/gpu=1]"
        )
