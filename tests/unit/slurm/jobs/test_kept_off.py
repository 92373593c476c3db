"""A waiting job that avoids nodes: when one of these has room for it, and how it is let in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.mark import Mark, parse_mark
from gpusage_hooks.types import MarkedJob
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.pools import parse_node
from gpusage_slurm.jobs import rewritten, turning_back
from gpusage_slurm.jobs.exclusion import may_run_on, own_exclusion
from gpusage_slurm.jobs.kept_off import avoided_nodes, kept_waiting

MARK = "gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:40, avoid n1,n2, constraint v100 | why"
ROW = {
    "JobArrayID": "7",
    "UserName": "ada",
    "StateCompact": "PD",
    "Reason": "Resources",
    "Partition": "gpu",
    "tres-alloc": "cpu=4,mem=16G,node=1,billing=4",
    "SchedNodes": "",
    "NodeList": "",
    "admin_comment": MARK,
}
NODE = {
    "name": "n1",
    "state": ["MIXED"],
    "partitions": ["gpu"],
    "gres": "gpu:v100:1,mps:v100:200",
    "gres_used": "gpu:v100:0(IDX:N/A),mps:v100:100(100/200)",
    "cpus": 32,
    "real_memory": 65536,
}
JOB = MarkedJob(job_id="7", manager="slurm", user="ada", state="waiting", mark=MARK)


def mark() -> Mark:
    found = parse_mark(MARK)
    assert found is not None
    return found


def test_room_on_a_node_that_it_avoids_is_a_reason_to_let_it_in() -> None:
    """40 of 200 units are asked for there, and 100 are free."""
    assert kept_waiting(ROW, [parse_node(NODE)]) == "node n1, which it avoids for the jobs there, has room (Resources)"


@pytest.mark.parametrize(
    "change",
    [
        {"gres_used": "gpu:v100:0(IDX:N/A),mps:v100:180(180/200)"},
        {"gres_used": "gpu:v100:1(IDX:0),mps:v100:0"},
        {"state": ["DRAIN", "MIXED"]},
        {"alloc_cpus": 30},
        {"alloc_memory": 60000},
    ],
)
def test_no_room_there_is_none(change: dict[str, object]) -> None:
    assert kept_waiting(ROW, [parse_node(NODE | change)]) == ""


def test_a_job_that_waits_for_something_else_is_not_looked_at() -> None:
    assert avoided_nodes(ROW) == ("n1", "n2")
    assert avoided_nodes(ROW | {"Reason": "JobHeldUser"}) == ()
    assert avoided_nodes(ROW | {"admin_comment": MARK.replace("avoid n1,n2, ", "")}) == ()


def test_only_the_nodes_that_it_avoids_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scontrol, "nodes", lambda: [NODE | {"name": name} for name in ("n0", "n2", "n3")])
    (job,) = rewritten._judged([ROW])
    assert job.stuck == "node n2, which it avoids for the jobs there, has room (Resources)"


def test_a_running_job_tells_its_node() -> None:
    rows = [ROW | {"StateCompact": "R", "NodeList": listed} for listed in ("n4", "n[4-5]", "")]
    assert [job.nodes for job in rewritten._judged(rows)] == [("n4",), (), ()]


@pytest.mark.parametrize(
    ("excluded", "own"),
    [(("n1", "n2"), ()), (("n1", "n2", "n9"), ("n9",)), (("n1", "n9"), ("n1", "n9")), ((), ())],
)
def test_what_its_user_excludes_stays(excluded: tuple[str, ...], own: tuple[str, ...]) -> None:
    """A list without one of ours was changed since."""
    assert own_exclusion(mark(), excluded) == own


def test_a_share_that_avoids_nodes_may_run_on_the_others() -> None:
    job = {"ReqNodeList": "(null)", "ExcNodeList": "n1,n2"}
    assert [name for name in ("n1", "n2", "n3") if may_run_on(job, mark(), name)] == ["n3"]
    assert not may_run_on(job | {"ExcNodeList": "n1,n2,n9"}, mark(), "n3")
    assert not may_run_on(job, None, "n3")


def test_it_is_let_in_before_it_is_turned_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mark then avoids nothing, so that the next time it gets its whole GPU."""
    told: list[tuple[str, ...]] = []
    monkeypatch.setattr(scontrol, "job", lambda _: {"ExcNodeList": "n1,n2,n9"})
    monkeypatch.setattr(scontrol, "run", lambda *words: told.append(words) or "")
    assert turning_back.turn_back(JOB, "it waits")
    (words,) = told
    assert words[:4] == ("scontrol", "update", "JobId=7", "ExcNodeList=n9")
    assert words[4] == (
        "AdminComment=gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:40, constraint v100 | "
        "it may run on n1, n2 again: it waits; why"
    )
    again = replace(JOB, mark=words[4].removeprefix("AdminComment="))
    monkeypatch.setattr(turning_back, "turn_back_whole", lambda job, reason: (job, reason) == (again, "it waits"))
    assert turning_back.turn_back(again, "it waits")


def test_nodes_are_not_asked_for_where_no_job_avoids_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scontrol, "nodes", lambda: pytest.fail("asked"))
    assert rewritten._Nodes().named(()) == ()
