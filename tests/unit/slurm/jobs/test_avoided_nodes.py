"""A waiting job that avoids nodes: when one of these has room for it, and how it is let in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.store.annotation import JobAnnotation, parse_annotation
from gpusage_hooks.types import AnnotatedJob
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.nodes import parse_node
from gpusage_slurm.jobs import restore, stuck
from gpusage_slurm.jobs.placement import avoided_node_reason, avoided_while_pending, may_run_on, user_excluded_nodes

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
JOB = AnnotatedJob(job_id="7", manager="slurm", user="ada", state="waiting", mark=MARK)


def mark() -> JobAnnotation:
    annotation = parse_annotation(MARK)
    assert annotation is not None
    return annotation


def test_room_on_a_node_that_it_avoids_is_a_reason_to_let_it_in() -> None:
    """40 of 200 units are asked for there, and 100 are free."""
    assert avoided_node_reason(ROW, [parse_node(NODE)], {}) == (
        "node n1, which it avoids for the jobs there, has room (Resources)",
        False,
    )


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
    assert avoided_node_reason(ROW, [parse_node(NODE | change)], {}) == ("", False)


def test_room_beside_another_user_is_none_and_a_whole_gpu_there_is_one() -> None:
    """Slurm would give the share the first GPU with room, and the job would be sent back to the queue."""
    row = ROW | {"admin_comment": MARK.replace("avoid n1,n2", "apart n1,n2, start 3")}
    larger = NODE | {"gres": "gpu:v100:2,mps:v100:400", "gres_used": "gpu:v100:0(IDX:N/A),mps:v100:100(100/200,0/200)"}
    reason = "a whole GPU is free on n1, beside other users' shares (Resources)"
    gone = NODE | {"gres_used": "gpu:v100:0(IDX:N/A),mps:v100:0(0/200)"}
    assert avoided_node_reason(row, [parse_node(NODE)], {"n1": {"ada", "bob"}}) == ("", False)
    assert avoided_node_reason(row, [parse_node(larger)], {"n1": {"ada", "bob"}}) == (reason, True)
    assert "has room" in avoided_node_reason(row, [parse_node(NODE)], {"n1": {"ada"}})[0]
    assert "has room" in avoided_node_reason(row, [parse_node(gone)], {"n1": {"bob"}})[0]  # they have ended since
    assert "has room" in avoided_node_reason(ROW, [parse_node(NODE)], {"n1": {"bob"}})[0]


def test_a_job_that_waits_for_something_else_is_not_looked_at() -> None:
    assert avoided_while_pending(ROW) == ("n1", "n2")
    assert avoided_while_pending(ROW | {"Reason": "JobHeldUser"}) == ()
    assert avoided_while_pending(ROW | {"admin_comment": MARK.replace("avoid n1,n2, ", "")}) == ()


def test_only_the_nodes_that_it_avoids_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scontrol, "nodes", lambda: [NODE | {"name": name} for name in ("n0", "n2", "n3")])
    (job,) = stuck._with_stuck_reasons([ROW])
    assert job.stuck == "node n2, which it avoids for the jobs there, has room (Resources)"


def test_a_running_job_tells_its_node() -> None:
    rows = [ROW | {"StateCompact": "R", "NodeList": listed} for listed in ("n4", "n[4-5]", "")]
    assert [job.nodes for job in stuck._with_stuck_reasons(rows)] == [("n4",), (), ()]


@pytest.mark.parametrize(
    ("excluded", "own"),
    [(("n1", "n2"), ()), (("n1", "n2", "n9"), ("n9",)), (("n1", "n9"), ("n1", "n9")), ((), ())],
)
def test_what_its_user_excludes_stays(excluded: tuple[str, ...], own: tuple[str, ...]) -> None:
    """A list without one of ours was changed since."""
    assert user_excluded_nodes(mark(), excluded) == own


def test_a_share_that_avoids_nodes_may_run_on_the_others() -> None:
    job = {"ReqNodeList": "(null)", "ExcNodeList": "n1,n2"}
    assert [name for name in ("n1", "n2", "n3") if may_run_on(job, mark(), name)] == ["n3"]
    assert not may_run_on(job | {"ExcNodeList": "n1,n2,n9"}, mark(), "n3")
    assert not may_run_on(job, None, "n3")


def test_it_is_let_in_before_it_is_turned_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mark then avoids nothing, so that the next time it gets its whole GPU."""
    messages: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        scontrol, "run", lambda *words: "n1,n2,n9\n" if words[0] == "squeue" else messages.append(words) or ""
    )
    turned_back = replace(JOB, mark=MARK.replace("avoid n1,n2", "apart n1,n2, start 2"))
    assert restore.restore_request(turned_back, "it waits")
    (words,) = messages
    assert words[:4] == ("scontrol", "update", "JobId=7", "ExcNodeList=n9")
    assert words[4] == (
        "AdminComment=gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:40, start 2, constraint v100 | "
        "it may run on n1, n2 again: it waits; why"
    )
    again = replace(turned_back, mark=words[4].removeprefix("AdminComment="))
    monkeypatch.setattr(restore, "restore_whole_gpu", lambda job, reason: (job, reason) == (again, "it waits"))
    assert restore.restore_request(again, "it waits")


def test_nodes_are_not_asked_for_where_no_job_avoids_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scontrol, "nodes", lambda: pytest.fail("asked"))
    assert stuck._ClusterNodes().named(()) == ()
