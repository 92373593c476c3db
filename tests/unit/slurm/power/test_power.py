"""What a plan has suspended and resumed; tests/slurm/test_power.py has a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.power.actions import Action, Delays, Step, carry_out, document, lines, power_saving_delays, steps
from gpusage_slurm.power.nodes import HeldNodes, Node, Power, parse_node
from gpusage_slurm.power.plan import Schedule, parse_schedule, read_schedule

DELAYS = Delays(suspend_s=30, resume_s=60)
PLAN = {
    "schema": "gpusage.plan/1",
    "planned_at_s": 1000,
    "cost": 3.0,
    "nodes": [
        {"node": "a", "type": "t", "start_s": 0, "end_s": 600},
        {"node": "a", "type": "t", "start_s": 900, "end_s": 1000},
    ],
    "unused_nodes": ["b"],
}
SETTINGS = {
    "suspendprogram": "/sbin/off",
    "resumeprogram": "/sbin/on",
    "suspendtime": "600 sec",
    "suspendtimeout": "30 sec",
    "resumetimeout": "60 sec",
    "slurmuser": "slurm(64030)",
}


def test_a_boot_of_the_plan_is_not_added_to_slurms_own() -> None:
    booting = {"node": "a", "type": "t", "start_s": 0, "ready_s": 300, "end_s": 600}
    assert parse_schedule({**PLAN, "nodes": [booting]}, "p").on_s["a"] == ((1300, 1600),)


@pytest.mark.parametrize(
    ("at_s", "power", "action", "why"),
    [
        (0, "on", "leave", "as planned"),
        (0, "off", "resume", "the plan has it on"),
        (0, "going down", "leave", "it is going down"),
        (599, "off", "resume", "the plan has it on"),
        (600, "on", "suspend", "the plan needs it in 5 min"),
        (600, "off", "leave", "as planned"),
        (600, "coming up", "leave", "it is coming up"),
        (810, "on", "leave", "the plan needs it in 2 min, before it could be off and on again"),
        (839, "off", "leave", "as planned"),
        (840, "off", "resume", "the plan has it on"),  # it takes 60 s to boot
        (1000, "on", "suspend", "the plan does not use it any more"),
    ],
)
def test_a_node_is_on_when_the_plan_needs_it(at_s: float, power: Power, action: str, why: str) -> None:
    nodes = {"a": Node(name="a", power=power), "b": Node(name="b", power="off"), "c": Node(name="c", power="on")}
    own, other = steps(parse_schedule(PLAN, "plan.json"), nodes, DELAYS, 1000 + at_s)
    assert (own.action, own.why) == (action, why)
    assert (other.node, other.action) == ("b", "leave")


@pytest.mark.parametrize(
    ("node", "power", "untouchable_reason", "keep_on_reason"),
    [
        ({"state": "idle", "state_flags": []}, "on", "", ""),  # 22.05
        ({"state": "idle", "state_flags": ["POWERED_DOWN"]}, "off", "", ""),
        ({"state": ["IDLE", "POWERED_DOWN", "NOT_RESPONDING"]}, "off", "", ""),
        ({"state": ["IDLE", "NOT_RESPONDING"]}, "on", "its state is NOT_RESPONDING", ""),
        ({"state": ["IDLE", "POWERING_DOWN"]}, "going down", "", ""),
        ({"state": ["MIXED", "POWER_DOWN"]}, "going down", "a job runs there", ""),
        ({"state": ["IDLE", "POWERING_UP"]}, "coming up", "", ""),
        ({"state": ["IDLE"], "alloc_cpus": 1}, "on", "a job runs there", ""),
        ({"state": ["IDLE", "COMPLETING"]}, "on", "a job runs there", ""),
        ({"state": ["IDLE", "DRAIN"]}, "on", "its state is DRAIN", ""),
        ({"state": ["DOWN", "POWERED_DOWN"]}, "off", "its state is DOWN", ""),
        ({"state": ["IDLE", "RESERVED"]}, "on", "it is reserved", ""),
        ({"state": ["IDLE", "PLANNED"]}, "on", "", "a job that waits is to start there"),
        ({"name": "later", "state": ["IDLE"]}, "on", "it is reserved", ""),
        ({"name": "paused", "state": ["IDLE"], "alloc_cpus": 0}, "on", "a job is suspended there", ""),
        ({"name": "wanted", "state": ["IDLE"]}, "on", "", "a job that waits is to start there"),
        ({"name": "login", "state": ["IDLE"]}, "on", "", "SuspendExcNodes keeps it on"),
        ({"state": ["IDLE"], "partitions": ["short", "always"]}, "on", "", "SuspendExcParts keeps it on"),
    ],
)
def test_a_node_that_somebody_needs_is_kept(
    node: Mapping[str, Any], power: Power, untouchable_reason: str, keep_on_reason: str
) -> None:
    held = HeldNodes(
        reserved={"later"},
        suspended={"paused"},
        expected={"wanted"},
        excluded={"login"},
        excluded_partitions=["always"],
    )
    assert parse_node({"name": "n", **node}, held) == Node(
        name=str(node.get("name", "n")),
        power=power,
        untouchable_reason=untouchable_reason,
        keep_on_reason=keep_on_reason,
    )


SPANS = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 500)), max_size=3).map(
    lambda each: tuple((float(start), float(start + length)) for start, length in sorted(each))
)
POWERS = st.sampled_from(["on", "off", "going down", "coming up"])
NODES = st.builds(
    Node,
    name=st.just("n"),
    power=POWERS,
    untouchable_reason=st.sampled_from(["", "x"]),
    keep_on_reason=st.sampled_from(["", "y"]),
)


AFTER: Mapping[Action, Sequence[Power]] = {
    "suspend": ("going down", "off"),
    "resume": ("coming up", "on"),
    "leave": (),
}


@given(spans=SPANS, node=NODES, now_s=st.floats(0, 1200), lead_s=st.floats(0, 100))
def test_no_node_is_touched_that_is_kept_and_nothing_is_done_twice(
    spans: tuple[tuple[float, float], ...], node: Node, now_s: float, lead_s: float
) -> None:
    """And no node is suspended that the plan has on, or would have to resume before it is off."""
    times, delays = Schedule(on_s={"n": spans}), Delays(suspend_s=30, resume_s=lead_s)
    (step,) = steps(times, {"n": node}, delays, now_s)
    needed = any(start_s - lead_s <= now_s < end_s for start_s, end_s in spans)
    if node.untouchable_reason or (node.keep_on_reason and not needed):
        assert step.action == "leave"
    if step.action == "suspend":
        assert (node.power, needed) == ("on", False)
        assert all(end_s <= now_s or start_s - lead_s > now_s + 30 for start_s, end_s in spans)
    if step.action == "resume":
        assert (node.power, needed) == ("off", True)
    for power in AFTER[step.action]:
        (again,) = steps(times, {"n": Node(name="n", power=power)}, delays, now_s)
        assert again.action == "leave"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"schema": "gpusage.simulation/1"}, "Key 'schema' of plan 'p' must be 'gpusage.plan/1'; got 'gpusage.simul"),
        ({"schema": "gpusage.plan/1\n"}, "Key 'schema' of plan 'p' must be 'gpusage.plan/1'; got "),
        ({"unused_nodes": "b"}, "Key 'unused_nodes' of plan 'p' must be a list; got 'b'. Write it with"),
        ({"nodes": [{"node": "a", "start_s": -1, "end_s": 2}]}, "Key 'start_s' of plan 'p' must be a time of at least"),
    ],
)
def test_what_is_no_plan_is_one_sentence(change: Mapping[str, object], sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_schedule({**PLAN, **change}, "p")
    assert str(caught.value).startswith(sentence)


def test_a_plan_that_has_ended_suspends_nothing(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(PLAN))
    assert read_schedule(tmp_path / "p.json", 1999).end_s == 2000
    with pytest.raises(RequestError, match=r"must not be over; got one that ended 5 s ago. Plan again.$"):
        read_schedule(tmp_path / "p.json", 2005)


@pytest.mark.parametrize("planned_at_s", [1e308, 9e9, 2000])
def test_a_plan_of_a_time_that_is_yet_to_come_suspends_nothing(tmp_path: Path, planned_at_s: float) -> None:
    """It would have all of its nodes off until then."""
    (tmp_path / "p.json").write_text(json.dumps({**PLAN, "planned_at_s": planned_at_s}))
    with pytest.raises(RequestError, match=r"must (be a time|have been made before now; got planned_at_s [0-9]{4})"):
        read_schedule(tmp_path / "p.json", 1900)


def test_a_node_that_slurm_does_not_have_is_one_sentence() -> None:
    sentence = r"Node 'a' of the plan must be one of Slurm's nodes; got v1, v2. Write 'names' into the cluster file"
    nodes = {name: Node(name=name, power="on") for name in ("v2", "v1")}
    with pytest.raises(RequestError, match=sentence):
        steps(parse_schedule(PLAN, "p"), nodes, DELAYS, 1000)


def test_without_power_saving_nothing_is_suspended() -> None:
    """Where SuspendTime is infinite, Slurm 26.05 does not wake a suspended node for a job."""
    assert power_saving_delays(SETTINGS) == DELAYS
    with pytest.raises(RequestError, match="got no SuspendProgram, SuspendTime in "):
        power_saving_delays({**SETTINGS, "suspendprogram": "", "suspendtime": "INFINITE"})


def test_slurm_is_asked_once_for_each_state_and_who_may_not_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[str, ...]] = []
    actions: Mapping[str, Action] = {"a": "suspend", "b": "leave", "c": "suspend", "d": "resume"}
    due = [Step(node=name, power="on", action=action, why="") for name, action in actions.items()]

    def run(*words: str) -> str:
        requests.append(words)
        return ""

    monkeypatch.setattr(scontrol, "run", run)
    carry_out(due, SETTINGS)
    assert requests == [
        ("scontrol", "update", "NodeName=a,c", "State=POWER_DOWN"),
        ("scontrol", "update", "NodeName=d", "State=POWER_UP"),
    ]

    def refuse(*words: str) -> str:
        message = f"Command {' '.join(words)!r} must succeed; got: slurm_update error: Invalid user id."
        raise RequestError(message)

    monkeypatch.setattr(scontrol, "run", refuse)
    with pytest.raises(
        RequestError, match=r"by an admin of Slurm; got user '.*', whom .* refuses. Run it as root or slurm.$"
    ):
        carry_out(due, SETTINGS)


def test_what_is_due_is_shown_and_what_comes_next() -> None:
    due = [Step(node="a", power="on", action="suspend", why="the plan does not use it any more")]
    assert document(due, float("inf"), applied=False)["next_change_in_s"] is None
    assert [*lines(due, 90.0, applied=False)] == [
        "1 to suspend. Add --yes to have Slurm do it.",
        "The plan's next change comes in 2 min: run this again by then, such as by cron.",
    ]
    assert [*lines((), float("inf"), applied=True)] == ["Nothing to do now."]
    assert parse_schedule(PLAN, "p").next_change_s(1601, 60) == 1840
