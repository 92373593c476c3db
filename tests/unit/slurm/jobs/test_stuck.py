"""Which waiting shares seem unable to start, and what Slurm's listings say; tests/slurm has a real Slurm."""

from __future__ import annotations

from typing import Any

import pytest

from gpusage_slurm import scontrol
from gpusage_slurm.cluster.nodes import NodeState, parse_node
from gpusage_slurm.jobs import stuck
from gpusage_slurm.jobs.queue import annotated_job, parse_squeue_rows
from gpusage_slurm.jobs.stuck import stuck_reason

COLUMNS = (("JobArrayID", 12), ("UserName", 8), ("StateCompact", 4), ("Reason", 12), ("admin_comment", 80))
MARK = "gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:40 | why"
CAFE = f"caf\u00e9; {MARK}"  # a byte longer than its letters
ROW = {
    "JobArrayID": "7",
    "UserName": "ada",
    "StateCompact": "PD",
    "Reason": "Priority",
    "Partition": "gpu,other",
    "tres-alloc": "cpu=4,mem=64G,node=1,billing=4",
    "SchedNodes": "",
    "admin_comment": MARK,
}
NODE = {
    "name": "n1",
    "state": ["IDLE"],
    "partitions": ["gpu"],
    "gres": "gpu:v100:2,mps:200",
    "active_features": ["v100", "ib"],
    "cpus": 32,
    "real_memory": 65536,
}


def test_an_idle_node_that_could_run_a_waiting_share_makes_it_stuck() -> None:
    assert stuck_reason(ROW, [parse_node(NODE)], {}) == "node n1 is idle and could run it, and yet it waits (Priority)"


@pytest.mark.parametrize(
    "change",
    [
        {"state": ["MIXED"]},
        {"state": "mixed"},
        {"state": ["IDLE", "DRAIN"]},
        {"state": ["IDLE"], "state_flags": ["RESERVED"]},
        {"state": ["IDLE", "PLANNED"]},  # for somebody else
        {"partitions": ["cpu"]},
        {"gres": "gpu:v100:2"},
        {"cpus": 2},
        {"real_memory": 32000},
    ],
)
def test_a_node_that_could_not_run_it_does_not(change: dict[str, Any]) -> None:
    assert stuck_reason(ROW, [parse_node(NODE | change)], {}) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"Reason": "Dependency"},
        {"Reason": "JobHeldUser"},
        {"Reason": "BeginTime"},
        {"Reason": "QOSMaxGRESPerUser"},  # others of the user's jobs end some day
        {"Reason": "QOSGrpGRES"},
        {"Partition": "cpu"},
    ],
)
def test_a_job_that_waits_for_something_else_is_not_stuck(change: dict[str, str]) -> None:
    assert stuck_reason(ROW | change, [parse_node(NODE)], {}) == ""


def test_a_node_that_is_planned_for_the_job_itself_counts_as_idle() -> None:
    """Slurm's backfill plans a share there that then never starts."""
    assert stuck_reason(ROW | {"SchedNodes": "n1"}, [parse_node(NODE | {"state": ["IDLE", "PLANNED"]})], {})


@pytest.mark.parametrize("reason", ["QOSMinGRES", "QOSMaxGRESPerJob", "AssocMaxGRESPerJob", "QOSMaxGRESPerNode"])
def test_a_limit_that_no_other_job_can_lift_makes_it_stuck_whatever_the_nodes(reason: str) -> None:
    assert stuck_reason(ROW | {"Reason": reason}, [], {}) == f"a limit of the site stops its share ({reason})"


@pytest.mark.parametrize(
    ("job", "is_stuck"),
    [
        ({"Features": "v100"}, True),
        ({"Features": "v100&ib"}, True),
        ({"Features": "h100"}, False),
        ({"Features": "[v100|h100]"}, False),  # in doubt it waits
        ({"ReqNodeList": "n2"}, False),
        ({"ExcNodeList": "n1"}, False),
        ({"Features": "(null)", "ReqNodeList": "(null)", "ExcNodeList": "(null)"}, True),
    ],
)
def test_what_ties_a_job_to_nodes_counts(job: dict[str, str], is_stuck: bool) -> None:  # a parameter
    assert bool(stuck_reason(ROW, [parse_node(NODE)], job)) == is_stuck


def test_columns_are_cut_by_bytes_and_a_users_line_break_makes_no_job() -> None:
    text = (
        f"12_[1-3%2]  ada     PD  Resources   {MARK:80}\n"
        f"13          bob     R   None        {CAFE:79}\n"
        f"no job      bob     PD  Resources   {'of nobody':80}\n"
        f"14          eve     CD  None        {'(null)':80}\n"
        "15          eve     CD  None        x\n"
        f"15          ada     CD  None        {MARK:79}\n"
    )
    first, second, third = map(annotated_job, parse_squeue_rows(text.encode(), COLUMNS))
    assert (first.job_id, first.user, first.state, first.waits_for, first.mark) == (
        "12_[1-3%2]",
        "ada",
        "waiting",
        "Resources",
        MARK,
    )
    assert (second.state, second.waits_for, second.mark) == ("running", "", CAFE)
    assert (third.state, third.mark) == ("ended", "")


def test_a_look_at_many_waiting_jobs_is_over_soon_while_no_node_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 jobs times 500 busy nodes took gpusaged 9 s of its processor at each look."""
    looked = []

    def parsed(node: dict[str, Any]) -> NodeState:
        looked.append(node)
        return parse_node(node)

    monkeypatch.setattr(stuck, "parse_node", parsed)
    monkeypatch.setattr(scontrol, "nodes", lambda: [NODE | {"state": ["MIXED"]}] * 10)
    monkeypatch.setattr(stuck, "_could_run", lambda *_: pytest.fail("no busy node is looked at twice"))
    rows = [ROW] * 100 + [ROW | {"Reason": "QOSMinGRES"}]
    reasons = [job.stuck for job in stuck._with_stuck_reasons(rows)]
    assert (len(looked), sum(map(bool, reasons))) == (10, 1)
