"""Which jobs lacked memory, as `squeue` lists them; tests/slurm/test_rescue.py has a real Slurm."""

from __future__ import annotations

from datetime import datetime

import pytest

from gpusage_slurm import scontrol
from gpusage_slurm.jobs import restore
from gpusage_slurm.jobs.restore import OUT_OF_MEMORY, find_out_of_memory_jobs

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
    "SubmitTime": "2026-11-22T09:00:00",
    "tres-per-node": "gres/mps:40",
    "Feature": "",
    "Comment": "gpusage: model=m.onnx",
    "admin_comment": "gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:40 | cheap",
}
AGAIN = " [out of GPU memory, started 2026-11-22T10:00:00, says gpusage]"


def listed(jobs: list[dict[str, str]], *words: str) -> bytes:
    """Return what `squeue` prints: each column cut and padded to its width in bytes, line breaks as they are."""
    columns = [column.split(":") for column in words[-1].partition("=")[2].split(",")]
    chosen = [job for job in jobs if "--states=FAILED" not in words or job["StateCompact"] == "F"]
    lines = [b"".join(job[name].encode()[: int(width)].ljust(int(width)) for name, width in columns) for job in chosen]
    return b"".join(line + b"\n" for line in lines)


def ids_of_starved(jobs: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(scontrol, "run_bytes", lambda *words: listed(jobs, *words))
    return [starved.job.job_id for starved in find_out_of_memory_jobs() if starved.outcome == "out_of_memory"]


def test_only_a_share_whose_comment_says_so_lacked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [{**SHARE, "JobArrayID": "7", "Comment": f"mine {OUT_OF_MEMORY}"}, {**SHARE, "JobArrayID": "8"}]
    assert ids_of_starved(jobs, monkeypatch) == ["7"]


def test_a_comment_of_several_lines_says_nothing_of_another_users_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a comment made every failed job of everybody count as one that lacked memory, and so what was learned."""
    forged = f"x\n{'8':64}{'gres/mps:40':128}{OUT_OF_MEMORY}"
    jobs = [{**SHARE, "JobArrayID": "7", "UserName": "eve", "Comment": forged}, {**SHARE, "JobArrayID": "8"}]
    assert ids_of_starved(jobs, monkeypatch) == []


def test_a_job_that_its_epilog_is_about_to_requeue_is_not_told_of_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was requeued before, for another reason, so slurmctld counts a restart; its comment comes before the next."""
    runs = {**SHARE, "JobArrayID": "7", "StateCompact": "R", "RestartCnt": "1", "Comment": f"mine{AGAIN}"}
    assert ids_of_starved([runs], monkeypatch) == []


def test_a_job_that_its_epilog_requeued_is_told_with_the_times_of_its_first_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it waits slurmctld shows when its second run may start, and counts it as submitted when the first ended."""
    waits = {**SHARE, "JobArrayID": "5_2", "StateCompact": "PD", "tres-per-node": "gres/gpu:1", "RestartCnt": "1"}
    waits |= {"Comment": f"mine{AGAIN}", "StartTime": "2026-11-22T10:05:10", "SubmitTime": "2026-11-22T10:05:00"}
    jobs = [waits, {**waits, "JobArrayID": "8", "Comment": "mine"}, {**waits, "JobArrayID": "9", "admin_comment": ""}]
    monkeypatch.setattr(scontrol, "run_bytes", lambda *words: listed(jobs, *words))
    (starved,) = find_out_of_memory_jobs()
    assert (starved.job.job_id, starved.final) == ("5_2", "")
    began, ended = datetime(2026, 11, 22, 10, 0).astimezone(), datetime(2026, 11, 22, 10, 5).astimezone()
    assert (starved.started_at_s, starved.ended_at_s) == (began.timestamp(), ended.timestamp())


@pytest.mark.parametrize(
    ("exit_code", "is_failure"),
    [
        ("1:0", True),
        ("256", True),
        ("0:6", True),
        ("0:15", False),
        ("143:0", False),
        ("36608", False),
        ("127:0", False),
    ],
)
def test_a_share_that_failed_is_told_and_one_that_was_ended_from_outside_is_not(
    exit_code: str, is_failure: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """22.05 writes one number for status and signal, as wait(2) has it."""
    job = {**SHARE, "JobArrayID": "7", "exit_code": exit_code}
    monkeypatch.setattr(scontrol, "run_bytes", lambda *words: listed([job], *words))
    assert [starved.outcome for starved in find_out_of_memory_jobs()] == ["failed"] * bool(is_failure)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"Requeue": "0"}, "--no-requeue"),
        ({"JobArrayID": "7+1"}, "one part"),
        ({"BatchFlag": "0"}, "only batch jobs"),
        ({}, "could not tell how it ended"),
    ],
)
def test_a_failed_job_is_never_run_again_and_says_why(
    fields: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {**SHARE, "JobArrayID": "7", "Comment": OUT_OF_MEMORY, **fields}
    monkeypatch.setattr(scontrol, "run_bytes", lambda *words: listed([job], *words))
    (starved,) = find_out_of_memory_jobs()
    assert why in starved.final


SLICE = {**SHARE, "tres-per-node": "gres/gpu:3g.20gb:1"}
SLICE["admin_comment"] = SHARE["admin_comment"].replace("gres/mps:40", "gres/gpu:3g.20gb:1, else h100")


def test_a_slice_whose_memory_was_too_small_is_told_and_a_typed_gpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = [
        {**SLICE, "JobArrayID": "7", "Comment": OUT_OF_MEMORY},
        {**SLICE, "JobArrayID": "8", "Comment": OUT_OF_MEMORY},
    ]
    slices[1]["tres-per-node"] = "gres/gpu:h100:1"
    assert ids_of_starved(slices, monkeypatch) == ["7"]


def updates_of(jobs: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return what slurmctld is told when the requeue of job ``5_2`` is completed."""
    updates: list[tuple[str, ...]] = []
    monkeypatch.setattr(scontrol, "run_bytes", lambda *words: listed(jobs, *words))
    monkeypatch.setattr(restore, "update_job", lambda *words: updates.append(words))
    (starved,) = find_out_of_memory_jobs()
    assert restore.complete_requeue(starved.job, "so")
    return updates


WAITS = {"StateCompact": "PD", "StartTime": "N/A", "SubmitTime": "2026-11-22T10:05:00"}
REQUEUED = {**WAITS, "JobArrayID": "5_2", "RestartCnt": "1", "Comment": f"mine{AGAIN}"}


@pytest.mark.parametrize("by_epilog", [True, False], ids=["by its epilog", "by gpusaged"])
def test_the_tasks_of_an_array_that_wait_are_whole_after_its_first_miss(
    monkeypatch: pytest.MonkeyPatch, *, by_epilog: bool
) -> None:
    """Those that run on shares, and those that have ended, stay as they are."""
    held = "gres/gpu:1" if by_epilog else "gres/mps:40"
    jobs = [
        {**SHARE, **REQUEUED, "tres-per-node": held},
        {**SHARE, **WAITS, "JobArrayID": "5_[3-9]", "tres-per-node": held},
    ]
    jobs += [{**SHARE, "JobArrayID": "5_1", "StateCompact": "R"}, {**SHARE, "JobArrayID": "5_0", "StateCompact": "CD"}]
    started = {**SHARE, "JobArrayID": "5_10", "StateCompact": "R", "tres-per-node": "gres/gpu:1"}
    updates = {words[0]: words[1:] for words in updates_of([*jobs, started], monkeypatch)}
    assert [*updates] == ["5_[3-9]", "5_10", "5_2"]
    (mark,) = updates.pop("5_10")  # it runs on a GPU already
    assert " BACK gres/mps:40 -> gres/gpu:1 | so" in mark
    for job_id, settings in updates.items():
        assert ("Gres=gpu:1" in settings) is not by_epilog
        assert ("StartTime=now+10" in settings) is (not by_epilog and job_id == "5_2")
        assert any(" BACK gres/mps:40 -> gres/gpu:1 | so" in each for each in settings)


@pytest.mark.parametrize("held", ["gres/gpu:3g.20gb:1", "gres/gpu:h100:1"])
def test_a_slice_that_was_too_small_becomes_the_gpu_that_its_mark_names(
    held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (settings,) = updates_of([{**SLICE, **REQUEUED, "tres-per-node": held}], monkeypatch)
    assert ("Gres=gpu:h100:1" in settings) is (held == "gres/gpu:3g.20gb:1")
    assert any(" BACK gres/gpu:3g.20gb:1, else h100 -> gres/gpu:h100:1 | so" in each for each in settings)
