"""How Slurm's commands are called."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import copy, which
from tempfile import TemporaryDirectory

import pytest

from gpusage.decisions.advisor import make_advisor
from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from waiting import wait_until

IS_ROOT = os.geteuid() == 0
UID = 54321 if IS_ROOT else os.geteuid()


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
    assert {f"{name}_LOCAL=1" for name in ("SQUEUE", "SINFO", "SACCT", "SCONTROL")} <= {*variables}


def test_sacct_is_asked_for_seconds_because_an_hour_of_local_time_comes_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Berlin 2026-10-25T02:30:00 was at two times, an hour apart; read as local time the later is the earlier."""
    for name in ("sacct", "squeue"):
        (tmp_path / name).write_text('#!/bin/sh\necho "$SLURM_TIME_FORMAT"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert [scontrol.run(name) for name in ("sacct", "squeue")] == ["%s\n", "\n"]
    assert [scontrol.seconds_of(text) for text in ("1792888200", "1792891800", "9" * 12, "Unknown")] == [
        1792888200.0,
        1792891800.0,
        None,
        None,
    ]


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


@pytest.fixture
def bin_of_a_daemon() -> Iterator[Path]:
    """Return where commands lie beside a program called slurmd that `UID` runs."""
    with TemporaryDirectory() as name:  # unlike tmp_path, of which not everybody sees the folders above
        program = Path(name) / "sbin/slurmd"
        program.parent.mkdir()
        copy(which("sleep") or "", program)
        Path(name).chmod(0o755)
        with subprocess.Popen([program, "60"], user=UID if IS_ROOT else None) as daemon:
            wait_until(lambda: Path(f"/proc/{daemon.pid}/comm").read_text() == "slurmd\n")  # it has it a moment later
            yield program.parent.parent / "bin"
            daemon.kill()


@pytest.mark.parametrize(("uid", "exists"), [(UID, True), (UID + 1, False)])
def test_commands_lie_beside_a_daemon_that_is_roots_or_ours(
    bin_of_a_daemon: Path, uid: int, monkeypatch: pytest.MonkeyPatch, *, exists: bool
) -> None:
    """Beside any program that a user had called slurmd, the node's sampler took that user's `scontrol`, as root."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert (str(bin_of_a_daemon) in scontrol.environment()["PATH"].split(":")) == exists


@pytest.mark.parametrize("conf", ["", "/slurm.conf", "slurm.conf"])
def test_a_slurm_conf_that_has_no_such_folder_adds_none(conf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", conf)
    monkeypatch.setenv("PATH", "/site/bin")
    assert scontrol.environment()["PATH"].startswith("/site/bin:/usr/local/bin:/opt/slurm/bin:/usr/local/slurm/bin")


@pytest.mark.parametrize("conf", ["//", "/slurm/", "/etc//", "/", "slurm.conf"])
def test_an_odd_path_of_slurm_conf_is_no_fault(conf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", conf)
    monkeypatch.setenv("PATH", "/usr/bin")
    assert scontrol.environment()["PATH"].startswith("/usr/bin:")


def test_commands_lie_beside_the_sites_daemons_and_not_beside_a_sandboxs(tmp_path: Path) -> None:
    """Outside of the sandbox its scontrol asks for a cluster that nobody knows."""
    program = tmp_path / "root" / "usr" / "sbin" / "slurmctld"
    program.parent.mkdir(parents=True)
    copy("/bin/sleep", program)
    commands = str(tmp_path / "root" / "usr" / "bin")
    with subprocess.Popen([program, "60"]) as daemon:
        try:
            wait_until(
                lambda: commands in scontrol._daemon_folders()
            )  # a process has its name a moment after its start
            (tmp_path / scontrol.SANDBOX_RECORD).touch()
            assert commands not in scontrol._daemon_folders()
        finally:
            daemon.kill()


def test_a_host_that_has_nothing_of_slurm_is_not_asked_about_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host of YARN alone would else show that scontrol is missing, in each status."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(scontrol, "_PROGRAM_FOLDERS", ())
    monkeypatch.setattr(scontrol, "_CONFIGURATIONS", (str(tmp_path / "etc"),))
    monkeypatch.setattr(scontrol, "_daemon_folders", lambda: iter(()))
    advisor = make_advisor()
    assert advisor.hooks.observe_cluster("slurm", advisor.context("slurm")) is None
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "slurm.conf").touch()
    with pytest.raises(RequestError, match="Command 'scontrol' must be on the PATH"):
        advisor.hooks.observe_cluster("slurm", advisor.context("slurm"))
