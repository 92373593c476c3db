"""Which failed jobs lacked memory, as `squeue` lists them; tests/slurm/test_rescue.py has a real Slurm."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from gpusage.sampler.letter import with_letter
from gpusage_hooks.types import Granted
from gpusage_slurm import scontrol
from gpusage_slurm.jobs.starving import SEEN, starved_jobs
from records import USAGE

SHARE = {
    "UserName": "ada",
    "StateCompact": "F",
    "Reason": "NonZeroExitCode",
    "Requeue": "1",
    "BatchFlag": "1",
    "RestartCnt": "0",
    "exit_code": "1:0",
    "StartTime": "2026-11-22T10:00:00",
    "EndTime": "2026-11-22T10:05:00",
    "tres-per-node": "gres/mps:40",
    "Comment": "gpusage: model=m.onnx",
    "admin_comment": "gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:40 | cheap",
}


def listed(jobs: list[dict[str, str]], *words: str) -> bytes:
    """Return what `squeue` prints: each column cut and padded to its width in bytes, line breaks as they are."""
    columns = [column.split(":") for column in words[-1].partition("=")[2].split(",")]
    lines = [b"".join(job[name].encode()[: int(width)].ljust(int(width)) for name, width in columns) for job in jobs]
    return b"".join(line + b"\n" for line in lines)


def ids_of_starved(jobs: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch, letter: str = "") -> list[str]:
    with_number = [{"JobID": job["JobArrayID"], **job} for job in jobs]
    monkeypatch.setattr(scontrol, "run_bytes", lambda *words: listed(with_number, *words))
    monkeypatch.setattr(scontrol, "run", lambda *_: f"NodeName=n1 Comment={letter}\n")
    return [starved.job.job_id for starved in starved_jobs()]


def test_only_a_share_whose_comment_says_so_lacked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [{**SHARE, "JobArrayID": "7", "Comment": f"mine{SEEN}"}, {**SHARE, "JobArrayID": "8"}]
    assert ids_of_starved(jobs, monkeypatch) == ["7"]


def test_a_comment_of_several_lines_says_nothing_of_another_users_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a comment made every failed job of everybody count as one that lacked memory, and so what was learned."""
    forged = f"x\n{'8':64}{'gres/mps:40':128}{SEEN}"
    jobs = [{**SHARE, "JobArrayID": "7", "UserName": "eve", "Comment": forged}, {**SHARE, "JobArrayID": "8"}]
    assert ids_of_starved(jobs, monkeypatch) == []


ENDED_S = datetime.fromisoformat(SHARE["EndTime"]).astimezone().timestamp()


@pytest.mark.parametrize(
    ("memory_bytes", "limit_bytes", "ended_at_s", "starved"),
    [
        (960, 1000, ENDED_S, ["7"]),
        (940, 1000, ENDED_S, []),
        (960, None, ENDED_S, []),
        (None, 1000, ENDED_S, []),
        (960, 1000, ENDED_S - 3600, []),  # an earlier run of the job
    ],
)
def test_a_failed_job_whose_memory_filled_its_cap_lacked_memory_whatever_it_wrote(
    memory_bytes: int | None,
    limit_bytes: int | None,
    ended_at_s: float,
    starved: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = replace(USAGE, job_id="7", memory_bytes=memory_bytes, ended_at_s=ended_at_s)
    letter = with_letter("", [replace(seen, granted=Granted(memory_limit_bytes=limit_bytes))], ended_at_s)
    jobs = [{**SHARE, "JobArrayID": "7"}, {**SHARE, "JobArrayID": "8"}]
    assert ids_of_starved(jobs, monkeypatch, letter) == starved


@pytest.mark.parametrize(
    ("exit_code", "starved"),
    [
        ("1:0", True),
        ("256", True),  # 22.05
        ("0:6", True),  # C++ ends itself by SIGABRT
        ("134:0", True),
        ("6", True),
        ("", True),
        ("0:15", False),  # scancel --signal=TERM
        ("15", False),
        ("143:0", False),
        ("36608", False),  # 143 in 22.05
        ("130:0", False),
        ("0:10", False),
        ("127:0", False),
        ("32512", False),
    ],
)
def test_who_is_ended_from_outside_lacked_nothing_though_its_memory_filled_its_cap(
    exit_code: str, starved: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that its user stopped with `scancel --signal` ran again; TensorFlow, for one, fills its cap always."""
    usage = replace(USAGE, job_id="7", memory_bytes=960, ended_at_s=ENDED_S)
    letter = with_letter("", [replace(usage, granted=Granted(memory_limit_bytes=1000))], ENDED_S)
    job = {**SHARE, "JobArrayID": "7", "exit_code": exit_code}
    assert ids_of_starved([job], monkeypatch, letter) == ["7"] * bool(starved)
    says_so = {**job, "Comment": f"mine{SEEN}"}
    assert ids_of_starved([says_so], monkeypatch) == ["7"]


def test_of_two_runs_that_filled_their_cap_the_last_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was preempted has run before; a letter has the newest run first."""
    seen = replace(USAGE, job_id="7", memory_bytes=960, granted=Granted(memory_limit_bytes=1000))
    runs = [replace(seen, started_at_s=at_s - 100, ended_at_s=at_s) for at_s in (ENDED_S - 3600, ENDED_S)]
    letter = with_letter("", runs, ENDED_S)
    assert ids_of_starved([{**SHARE, "JobArrayID": "7"}], monkeypatch, letter) == ["7"]
