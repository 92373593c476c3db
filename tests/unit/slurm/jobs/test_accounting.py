"""What slurmdbd is asked of jobs; tests/slurm/test_accounting.py has a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage_slurm.jobs.accounting import accounted

SACCT = """#!/bin/sh
for word; do
    case $word in --jobs=*) jobs=${word#*=} ;; --delimiter=*) between=${word#*=} ;; esac
done
echo "$jobs" | tr , '\\n' | sed "s/$/${between}ada/"
"""


def test_tens_of_thousands_of_jobs_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were one argument, of which Linux takes 128 KiB at most: no job was found."""
    sacct = tmp_path / "sacct"
    sacct.write_text(SACCT)
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    job_ids = [str(number) for number in range(1_000_000, 1_020_000)]
    assert [*accounted(job_ids, ("JobID", "User"))] == [[job_id, "ada"] for job_id in job_ids]
    assert [*accounted([], ("JobID", "User"))] == []
