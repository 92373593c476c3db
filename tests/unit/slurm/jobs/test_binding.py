"""Jobs that a share binds to GPU types: when one is let go, and what of its constraint is its user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpusage.store.annotation import JobAnnotation, parse_annotation
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import AnnotatedJob
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.nodes import parse_node
from gpusage_slurm.cluster.observation import gpusaged_may_change_jobs, may_change_jobs
from gpusage_slurm.jobs import queue, restore, stuck
from gpusage_slurm.jobs.placement import is_bound, mig_type_of, user_constraint
from gpusage_slurm.jobs.stuck import node_outside_binding

MARK = "gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:50, constraint h100 | why"
ROW = {
    "JobArrayID": "7",
    "UserName": "ada",
    "StateCompact": "PD",
    "Reason": "Resources",
    "Partition": "gpu",
    "tres-alloc": "cpu=4,mem=128G,node=1",
    "SchedNodes": "",
    "Feature": "h100",
    "admin_comment": MARK,
}
JOB = {"Features": "h100", "NumCPUs": "4", "MinMemoryNode": "16G", "Partition": "gpu,other"}
NODE = {
    "name": "a100-1",
    "state": ["MIXED"],
    "partitions": ["gpu"],
    "gres": "gpu:a100:2,mps:200",
    "gres_used": "gpu:a100:1(IDX:0)",
    "active_features": ["a100", "ib"],
    "cpus": 32,
    "alloc_cpus": 28,
    "real_memory": 65536,
    "alloc_memory": 49152,
}


def mark(text: str) -> JobAnnotation:
    annotation = parse_annotation(text)
    assert annotation is not None
    return annotation


def test_a_bound_job_waits_in_vain_while_another_gpu_is_free_for_its_users_request() -> None:
    """No node is idle as a whole, so that nothing else would find it."""
    node = parse_node(NODE)
    assert node_outside_binding(ROW, [node], JOB) == node


@pytest.mark.parametrize(
    "change",
    [
        {"state": ["MIXED", "DRAIN"]},
        {"state": ["MIXED", "RESERVED"]},
        {"state": ["MIXED", "PLANNED"]},
        {"partitions": ["cpu"]},
        {"gres_used": "gpu:a100:1(IDX:0),mps:a100:40(IDX:1)"},
        {"alloc_cpus": 29},
        {"alloc_memory": 49153},
    ],
)
def test_a_node_that_could_not_run_the_users_request_now_frees_nobody(change: dict[str, Any]) -> None:
    assert node_outside_binding(ROW, [parse_node(NODE | change)], JOB) is None


@pytest.mark.parametrize(
    ("mark_text", "features", "own"),
    [
        (MARK, "h100", ""),
        (MARK.replace("gres/mps:50, constraint h100", "gres/gpu:3g.20gb:1"), "ib", "ib"),  # a slice confines by itself
        (MARK.replace("gres/mps:50, constraint h100", "gres/gpu:1, prefer a100"), "", None),
        (MARK, "h200", None),  # its user changed it
        (MARK, "", None),
        (MARK.replace("h100", "h100&ib"), "h100&ib", "ib"),
        (MARK.replace("h100", "(h100|a100)&(ib|opa)"), "(h100|a100)&(ib|opa)", "ib|opa"),
        (MARK.replace("h100 | why", "h100&very_lo..."), "h100&very_long", "very_long"),
        (MARK.replace("gpu:1", "gpu:h100:1"), "h100", None),  # its user named the type
        (MARK.replace("constraint", "prefer"), "h100", None),
        (f"{MARK}; kept off a100", "h100", None),  # its user forbids others
        (f"{MARK} of a user who is kept off a100", "h100", ""),
        (f"{MARK}; avoids n1, where a promised latency might not hold", "h100", ""),
    ],
)
def test_the_users_own_constraint_is_known_as_long_as_nobody_changed_it(
    mark_text: str, features: str, own: str | None
) -> None:
    assert user_constraint(mark(mark_text), features) == own


def test_a_job_is_not_let_go_to_a_gpu_that_its_user_forbids() -> None:
    row = ROW | {"admin_comment": f"{MARK}; kept off a100"}
    assert node_outside_binding(row, [parse_node(NODE)], JOB) is None
    assert not is_bound(mark(row["admin_comment"]))


def test_a_job_that_its_user_bound_is_not_let_go() -> None:
    assert not is_bound(mark(MARK.replace("gpu:1", "gpu:h100:1")))
    assert node_outside_binding(ROW, [parse_node(NODE)], JOB | {"Features": "h200"}) is None
    own = JOB | {"Features": "h100&opa"}
    assert (
        node_outside_binding(ROW | {"admin_comment": MARK.replace("h100", "h100&opa")}, [parse_node(NODE)], own) is None
    )


@pytest.mark.parametrize(
    ("reason", "count"),
    [
        ("Resources", 1),
        ("ReqNodeNotAvail, May be reserved for other job", 1),
        ("BadConstraints", 1),  # slurmctld holds it for good
        ("JobHeldUser", 0),
        ("Dependency", 0),
        ("QOSGrpGRES", 0),
    ],
)
def test_a_free_gpu_is_a_reason_for_one_job(monkeypatch: pytest.MonkeyPatch, reason: str, count: int) -> None:
    rows = [ROW | {"JobArrayID": str(number), "Reason": reason, "tres-per-node": "gres/mps:50"} for number in (7, 8)]
    monkeypatch.setattr(queue, "squeue_rows", lambda *_, **__: iter(rows))
    monkeypatch.setattr(stuck, "squeue_rows_of", lambda *_, **__: iter(rows))
    monkeypatch.setattr(scontrol, "nodes", lambda: [NODE])
    monkeypatch.setattr(scontrol, "run_bytes", lambda *_: b"".join(demanded(name, "0") for name in ("7", "8")))
    jobs = stuck.find_shared_jobs(("waiting",))
    assert [job.job_id for job in jobs if "a100-1 has a GPU free" in job.stuck] == ["7"][:count]


@pytest.mark.parametrize(
    ("memory", "excluded", "is_let_go"),
    [
        ("0", "", True),  # tres-alloc then has a whole node's
        ("16G", "", False),
        ("0", "a100-[1-2]", False),
        ("0", f"a100-[{','.join(map(str, range(3, 999, 2)))}]"[:1100], False),  # squeue cuts a long list
    ],
)
def test_what_hundreds_of_waiting_jobs_ask_for_is_one_question(
    memory: str, excluded: str, *, is_let_go: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cost slurmctld two calls at each look, so that 1,000 jobs cost it 8,000 a minute."""
    rows = [ROW | {"JobArrayID": str(number), "tres-alloc": "cpu=4,mem=128G"} for number in range(300)]
    questions = []

    def run_bytes(*words: str) -> bytes:
        questions.append(words)
        return b"".join(demanded(str(number), memory, excluded) for number in range(300))

    monkeypatch.setattr(scontrol, "nodes", lambda: [NODE])
    monkeypatch.setattr(scontrol, "run_bytes", run_bytes)
    jobs = [*stuck._with_stuck_reasons(rows)]
    assert len(questions) == 1
    assert sum(bool(job.stuck) for job in jobs) == is_let_go


def demanded(job_id: str, memory: str, excluded: str = "") -> bytes:
    """Return a line of `squeue` for a job that asks for four cores."""
    return f"{job_id:64}{'4':12}{memory:16}{'':1100}{excluded:1100}\n".encode()


def test_who_may_change_jobs() -> None:
    settings = {"slurmuser": "slurm(64030)"}
    assert [uid for uid in (0, 64030, 1000) if may_change_jobs(uid, settings)] == [0, 64030]
    assert not may_change_jobs(1000, {})


def test_gpusaged_is_whoever_owns_its_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    socket = tmp_path / "gpusaged.sock"
    socket.touch()
    owner = socket.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: 64031)
    assert gpusaged_may_change_jobs({"slurmuser": f"slurm({owner})"}, [str(socket), "/nonexistent"])
    assert not gpusaged_may_change_jobs({"slurmuser": "slurm(64030)"}, ["/nonexistent"])


@pytest.mark.parametrize(
    ("change", "mig_type"),
    [
        ("gres/gpu:1 -> gres/gpu:a100_3g.20gb:1, else a100 | a slice", "a100_3g.20gb"),
        ("gres/gpu:1 -> gres/gpu:big:1, else a100 | a slice", "big"),
        ("gres/gpu:a100:1 -> gres/gpu:a100_3g.20gb:1, else a100 | a slice", "a100_3g.20gb"),
        ("gres/gpu:1 -> gres/gpu:3g.40gb:1 | kept off 1g.10gb: may need up to 12.0 GiB", "3g.40gb"),
        ("gres/gpu:1 -> gres/gpu:h100:1 | kept off 1g.10gb: may need up to 12.0 GiB", None),
        ("gres/gpu:h100:1 | kept", None),
    ],
)
def test_a_type_that_a_job_is_held_to_is_no_slice(change: str, mig_type: str | None) -> None:
    annotation = mark(f"gpusage 69215f4a0c3e REWRITE {change}")
    assert mig_type_of(annotation) == mig_type
    assert is_bound(annotation) == (mig_type is not None and not annotation.keeps_off)


def test_a_job_on_a_slice_of_its_named_type_is_let_go_for_that_type_alone() -> None:
    row = ROW | {
        "Feature": "",
        "admin_comment": MARK.replace(
            "gpu:1 -> gres/mps:50, constraint h100", "gpu:a100:1 -> gres/gpu:a100_3g.20gb:1, else a100"
        ),
    }
    job = JOB | {"Features": ""}
    assert node_outside_binding(row, [parse_node(NODE)], job) is not None
    other = NODE | {"gres": "gpu:v100:2,mps:200", "gres_used": "gpu:v100:1(IDX:0)"}
    assert node_outside_binding(row, [parse_node(other)], job) is None


HELD = "gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/gpu:{} | kept off t4: may need up to 29.2 GiB"
HELD_ROW = ROW | {"JobArrayID": "7", "Feature": "", "admin_comment": HELD.format("h100:1, or v100|a100")}
H100 = NODE | {"name": "h100-1", "gres": "gpu:h100:1", "gres_used": "gpu:h100:1(IDX:0)"}


@pytest.mark.parametrize(
    ("row", "nodes", "others"),
    [
        (HELD_ROW, [NODE, H100], ("a100", "v100")),
        (HELD_ROW, [NODE, H100 | {"gres_used": ""}], ("v100", "a100")),  # its own is free as well
        (HELD_ROW, [NODE | {"gres": "gpu:t4:2"}, NODE | {"gres": "gpu:2"}, H100], ("v100", "a100")),
        (HELD_ROW | {"Reason": "Dependency"}, [NODE, H100], ("v100", "a100")),
        (HELD_ROW | {"admin_comment": HELD.format("h100:1")}, [NODE, H100], None),
    ],
)
def test_a_job_held_to_one_of_several_types_names_the_one_that_is_free(
    row: dict[str, str], nodes: list[dict[str, Any]], others: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = row | {"tres-per-node": "gres/gpu:h100:1"}
    monkeypatch.setattr(queue, "squeue_rows", lambda *_, **__: iter([row]))
    monkeypatch.setattr(stuck, "squeue_rows_of", lambda *_, **__: iter([row]))
    monkeypatch.setattr(scontrol, "nodes", lambda: nodes)
    monkeypatch.setattr(scontrol, "run_bytes", lambda *_: demanded("7", "0"))
    jobs = stuck.find_shared_jobs(("waiting",))
    assert [job.other_types for job in jobs] == [others] * bool(others)
    reason = "node a100-1 has a a100 free for it, and yet it waits for h100 (Resources)"
    assert [job.stuck for job in jobs if job.stuck] == [reason] * (others == ("a100", "v100"))


def test_the_other_type_takes_the_place_of_the_first_and_the_first_may_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = []
    monkeypatch.setattr(restore, "squeue_rows", lambda *_, **__: iter([{**HELD_ROW, "tres-per-node": tres}]))
    monkeypatch.setattr(restore, "update_job", lambda *words: changes.append(words))
    tres, before = "gres/gpu:h100:1,gres/nvme:1", HELD.format("h100:1, or v100|a100")
    job = AnnotatedJob(
        job_id="7", manager="slurm", user="ada", state="waiting", mark=before, other_types=("a100", "v100")
    )
    assert restore.restore_request(job, "free")
    assert changes == [("7", "Gres=gpu:a100:1,nvme:1", f"AdminComment={HELD.format('a100:1, or h100|v100')}")]
    tres = "gres/gpu:t4:1"  # its user changed it
    with pytest.raises(RequestError, match="was changed"):
        restore.restore_request(job, "free")
