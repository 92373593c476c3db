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
    names = ("SQUEUE_USERS", "SQUEUE_PARTITION", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SACCT_FORMAT", "SBATCH_GPUS")
    for name in names:
        monkeypatch.setenv(name, "other")
    monkeypatch.setenv("SLURM_CONF", "/etc/site/slurm.conf")
    monkeypatch.setenv("SLURM_BITSTR_LEN", "8")
    variables = scontrol.run("squeue").splitlines()
    assert not [each for each in variables if each.endswith("=other")]
    assert {"SLURM_CONF=/etc/site/slurm.conf", "SLURM_BITSTR_LEN=0"} <= {*variables}


def test_a_slurm_that_a_site_built_is_found_beside_its_slurm_conf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service and a prolog have no PATH that names it: gpusaged saw no cluster, and every job was kept."""
    squeue = tmp_path / "bin/squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\necho built here\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "etc/slurm.conf"))
    assert scontrol.has_commands()
    assert scontrol.run("squeue") == "built here\n"
    monkeypatch.delenv("PATH")
    assert scontrol.environment()["PATH"].startswith("/bin:/usr/bin:")


@pytest.mark.parametrize("conf", ["", "/slurm.conf", "slurm.conf"])
def test_a_slurm_conf_that_has_no_such_folder_adds_none(conf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", conf)
    monkeypatch.setenv("PATH", "/site/bin")
    assert scontrol.environment()["PATH"] == "/site/bin:/usr/local/bin:/opt/slurm/bin:/usr/local/slurm/bin"


@pytest.mark.parametrize("conf", ["//", "/slurm/", "/etc//", "/", "slurm.conf"])
def test_an_odd_path_of_slurm_conf_is_no_fault(conf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", conf)
    monkeypatch.setenv("PATH", "/usr/bin")
    assert scontrol.environment()["PATH"].startswith("/usr/bin:")
