"""How Slurm's commands are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage_slurm import scontrol


def test_what_a_login_shell_says_to_slurms_commands_changes_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SQUEUE_USERS set, `drain` saw no rewritten job, and said that gpusage could be taken out."""
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nenv\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in ("SQUEUE_USERS", "SQUEUE_PARTITION", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SACCT_FORMAT"):
        monkeypatch.setenv(name, "other")
    monkeypatch.setenv("SLURM_CONF", "/etc/site/slurm.conf")
    monkeypatch.setenv("SLURM_BITSTR_LEN", "8")
    variables = scontrol.run("squeue").splitlines()
    assert not [each for each in variables if each.endswith("=other")]
    assert {"SLURM_CONF=/etc/site/slurm.conf", "SLURM_BITSTR_LEN=0"} <= {*variables}
