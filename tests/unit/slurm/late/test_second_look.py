"""In what order late jobs are looked at, and for how long; tests/slurm/test_late.py has a real Slurm."""

from __future__ import annotations

import pytest

from gpusage_slurm import scontrol
from gpusage_slurm.late import second_look
from gpusage_slurm.late.jobs import late_job_ids
from gpusage_slurm.late.second_look import LOOK_LIMIT_S, SecondLook

LATE = {"StateCompact": "PD", "BatchFlag": "1", "tres-per-node": "gres/gpu:1", "admin_comment": "gpusage KEEP | late"}


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


def test_a_look_ends_in_time_however_many_jobs_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's thousands of jobs were all asked of slurmctld before anybody's first was decided."""
    now_s = [0.0]
    looked = []

    def look_at(job_id: str) -> None:
        looked.append(job_id)
        now_s[0] += 1.0

    monkeypatch.setattr(second_look.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(second_look, "late_job_ids", lambda: tuple(map(str, range(1000))))
    monkeypatch.setattr(second_look, "look_at", look_at)
    look = SecondLook(sockets=())
    look.look()
    assert len(looked) <= LOOK_LIMIT_S + 1
    look.look()
    assert len(set(looked)) == len(looked)  # those that were not reached are next
