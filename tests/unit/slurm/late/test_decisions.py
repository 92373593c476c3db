"""Late decisions: which settings carry out an answer, and how long a pass may take."""

from __future__ import annotations

import pytest

from gpusage.store.annotation import parse_annotation
from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.late import decisions
from gpusage_slurm.late.decisions import PASS_LIMIT_S, LateDecider, job_settings
from gpusage_slurm.late.jobs import late_job_ids

MARK = "gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:40 | cheap"
OLD = "gpusage 69215f4a0c3d KEEP gres/gpu:1 | no description of the model came with the job"

LATE = {"StateCompact": "PD", "BatchFlag": "1", "tres-per-node": "gres/gpu:1", "admin_comment": "gpusage KEEP | late"}


def test_a_share_its_cap_and_its_mark_are_set_at_once() -> None:
    answer = {
        "mark": MARK,
        "set.gres": "mps:40",
        "set.tres_per_job": "",
        "env.GPUSAGE_DECISION": "mps:40",
        "env.CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=6144M",
    }
    *settings, comment = job_settings(answer, f"ours; {OLD}")
    assert settings == ["Gres=mps:40", "TresPerJob="]
    assert comment == (
        "AdminComment=ours; gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:40 | "
        "set CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=6144M GPUSAGE_DECISION=mps:40; cheap"
    )


def test_nodes_that_a_share_avoids_are_excluded() -> None:
    assert job_settings({"mark": MARK, "set.exc_nodes": "n7,n1"}, "")[0] == "ExcNodeList=n7,n1"


@pytest.mark.parametrize("value", ["a b", "$(x)", "a;b", "", "a|b"])
def test_a_variable_with_a_strange_value_is_left_out(value: str) -> None:
    (setting,) = job_settings({"mark": MARK, "env.GPUSAGE_DECISION": value}, "")
    assert setting == f"AdminComment={MARK}"


def test_an_answer_without_a_mark_changes_nothing() -> None:
    assert job_settings({"code": "KEEP"}, OLD) == ()


def test_what_a_waiting_job_cannot_be_given_is_refused() -> None:
    with pytest.raises(RequestError, match=r"set\.priority"):
        job_settings({"mark": MARK, "set.priority": "1"}, OLD)


@pytest.mark.parametrize("site", ["", "site", "é" * 500, "x" * 1000])
def test_only_the_mark_is_cut_off(site: str) -> None:
    (setting,) = job_settings({"mark": MARK + "; because" * 200}, site)
    comment = setting.removeprefix("AdminComment=")
    assert comment.startswith(site)
    assert len(comment.encode()) <= 1024 + len("; ")
    if len(site) < 100:
        mark = parse_annotation(comment)
        assert mark is not None
        assert mark.number == "69215f4a0c3e"


def listed(users: dict[str, str], *words: str) -> bytes:
    columns = [column.split(":") for column in words[-1].partition("=")[2].split(",")]
    jobs = [{**LATE, "JobArrayID": job_id, "UserID": user} for job_id, user in users.items()]
    return b"".join(
        b"".join(job.get(name, "").encode().ljust(int(width)) for name, width in columns) + b"\n" for job in jobs
    )


def test_each_users_first_job_comes_before_anybodys_second(monkeypatch: pytest.MonkeyPatch) -> None:
    users = {"1": "1000", "2": "1000", "3": "1000", "4": "1001"}
    monkeypatch.setattr(scontrol, "run_bytes", lambda *words: listed(users, *words))
    assert late_job_ids() == ("1", "4", "2", "3")


def test_a_pass_ends_in_time_however_many_jobs_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's thousands of jobs were all asked of slurmctld before anybody's first was decided."""
    now_s = [0.0]
    read = []

    def read_late_job(job_id: str) -> None:
        read.append(job_id)
        now_s[0] += 1.0

    monkeypatch.setattr(decisions.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(decisions, "late_job_ids", lambda: tuple(map(str, range(1000))))
    monkeypatch.setattr(decisions, "read_late_job", read_late_job)
    decider = LateDecider(sockets=())
    decider.decide_all()
    assert len(read) <= PASS_LIMIT_S + 1
    decider.decide_all()
    assert len(set(read)) == len(read)  # those that were not reached are next
