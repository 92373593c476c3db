"""Jobs as squeue and sacct list them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.jobs.queue import sacct_rows_of, update_job

WHOLE = f"55_[{','.join(map(str, range(3, 300, 7)))}%2]"
CUT = WHOLE[:64]

SACCT = """#!/bin/sh
for word; do
    case $word in --jobs=*) jobs=${word#*=} ;; --delimiter=*) between=${word#*=} ;; esac
done
echo "$jobs" | tr , '\\n' | sed "s/$/${between}ada/"
"""


def updated(job_id: str, listed: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the words of `scontrol update` where squeue lists these jobs."""
    calls: list[tuple[str, ...]] = []

    def run(*words: str) -> str:
        calls.append(words)
        return listed if words[0] == "squeue" else ""

    monkeypatch.setattr(scontrol, "run", run)
    update_job(job_id, "Gres=gpu:1")
    assert [words[0] for words in calls] == ["squeue"] * (job_id == CUT) + ["scontrol"]
    return [*calls[-1]]


@pytest.mark.parametrize(
    ("job_id", "name"),
    [
        ("7", "7"),
        ("55_3", "55_3"),
        ("55_[1-9%2]", "55_[1-9]"),  # an array's limit on tasks at once is no part of its name
        (CUT, WHOLE.replace("%2", "")),
    ],
)
def test_all_tasks_of_an_array_that_wait_are_changed(job_id: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The column cuts the list of an array of scattered tasks, and slurmctld refused what was left of it."""
    listed = f"55_600\n{WHOLE}\n"
    assert updated(job_id, listed, monkeypatch) == ["scontrol", "update", f"JobId={name}", "Gres=gpu:1"]


def test_an_array_of_which_no_task_waits_any_more_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="Tasks of array 55 must wait to be changed; none does"):
        updated(CUT, "55_600\n", monkeypatch)


def test_tens_of_thousands_of_jobs_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were one argument, of which Linux takes 128 KiB at most: no job was found."""
    sacct = tmp_path / "sacct"
    sacct.write_text(SACCT)
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    job_ids = [str(number) for number in range(1_000_000, 1_020_000)]
    assert [*sacct_rows_of(job_ids, ("JobID", "User"))] == [[job_id, "ada"] for job_id in job_ids]
    assert [*sacct_rows_of([], ("JobID", "User"))] == []
