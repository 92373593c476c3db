"""How a job that squeue lists is changed; tests/slurm has a real Slurm."""

from __future__ import annotations

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.jobs.rows import update_job

WHOLE = f"55_[{','.join(map(str, range(3, 300, 7)))}%2]"
CUT = WHOLE[:64]


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
