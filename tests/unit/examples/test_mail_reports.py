"""The script that mails each user a report, with a program in the place of `mail` that leaves each letter in a file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.store.opening import open_store
from observed import record, usage

SCRIPT = Path(__file__).parents[3] / "examples/mail_reports.sh"
MAIL = """#!/bin/sh
[ "$1" = -s ] && [ "$3" = -- ] && cat >"$MAILS/$4" && [ "$4" != ada ]
"""
"""It cannot reach ada: the others must have theirs all the same."""


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a site where ada and bob had a job an hour ago."""
    url, now_s = f"sqlite:///{tmp_path}/d.db", time.time()
    decided = record(1, percent=None)
    with closing(open_store(url)) as store:
        store.record_all([decided])
        store.record_usage(
            [
                replace(
                    usage(decided, user=user, job_id=user, gpu_utilization=0.2),
                    started_at_s=now_s - 7200,
                    ended_at_s=now_s - 3600,
                )
                for user in ("ada", "bob", "|touch forged", "-a/etc/passwd", "", "two words", "carol\ndave")
            ]
        )
    (tmp_path / "c.toml").write_text(f'[store]\nurl = "{url}"\n')
    (tmp_path / "mail").write_text(MAIL)
    (tmp_path / "mail").chmod(0o755)
    (tmp_path / "mails").mkdir()
    return {
        **os.environ,
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GPUSAGE_CONFIG": str(tmp_path / "c.toml"),
        "GPUSAGE_NO_MAIL": str(tmp_path / "no_mail"),
        "MAILS": str(tmp_path / "mails"),
    }


@pytest.mark.parametrize("without", ["", "bob\n"])
def test_each_user_but_those_who_want_none_gets_a_text_of_their_own(
    site: dict[str, str], without: str, tmp_path: Path
) -> None:
    if without:
        (tmp_path / "no_mail").write_text(without)
    subprocess.run([SCRIPT], env=site, check=True)
    mails = {file.name: file.read_text() for file in (tmp_path / "mails").iterdir()}
    assert sorted(mails) == (["ada"] if without else ["ada", "bob"])
    assert "1 job booked 2.00 GPU hours." in mails["ada"]
    assert "#GPUSAGE utilization=20@64" in mails["ada"]


def test_a_week_without_jobs_is_silent(site: dict[str, str], tmp_path: Path) -> None:
    """Cron mails root whatever the script writes."""
    (tmp_path / "c.toml").write_text(f'[store]\nurl = "sqlite:///{tmp_path}/none.db"\n')
    assert subprocess.run([SCRIPT], env=site, check=True, capture_output=True).stderr == b""
    assert not [*(tmp_path / "mails").iterdir()]
