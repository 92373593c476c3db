"""How the sampling of a job begins on its node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpusage_slurm
from waiting import LIMIT_S, wait_until

SCRIPT = Path(gpusage_slurm.__file__).parent / "node" / "usage.sh"


def test_the_sampler_takes_no_module_of_the_folder_where_the_prolog_runs(tmp_path: Path) -> None:
    """Slurmd's folder may be somebody else's than root's; Python would look for its modules there first."""
    package = tmp_path / "gpusage_slurm" / "usage"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "node.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'w')\n")
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "CUDA_VISIBLE_DEVICES": "0", "SLURMD_NODENAME": "n1"}
    ours = {"GPUSAGE_USAGE_FOLDER": str(tmp_path / "usage"), "GPUSAGE_PYTHON": sys.executable}
    environment = {"PATH": os.environ["PATH"], **job, **ours}
    subprocess.run([SCRIPT, "begin"], check=True, cwd=tmp_path, env=environment, timeout=LIMIT_S)
    pid_file = tmp_path / "usage" / ".n1.7.pid"
    program = Path("/proc") / pid_file.read_text().strip()
    wait_until(lambda: any((tmp_path / "usage").glob(".n1.7@*.device")) or not program.exists())
    subprocess.run([SCRIPT, "end"], check=True, cwd=tmp_path, env=environment, timeout=LIMIT_S)
    assert not (tmp_path / "planted").exists()


def test_the_end_tells_a_sampler_once_and_waits_for_nothing(tmp_path: Path) -> None:
    """It may still save then; until it has, its lock says so, not its number."""
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "CUDA_VISIBLE_DEVICES": "0", "SLURMD_NODENAME": "n1"}
    environment = {"PATH": os.environ["PATH"], "GPUSAGE_USAGE_FOLDER": str(tmp_path / "usage"), **job}
    pid_file = tmp_path / "usage" / ".n1.7.pid"
    pid_file.parent.mkdir(mode=0o700)
    notified = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True)); "
    saving = f"{notified}print('up', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", saving, "gpusage_slurm.usage.node"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sampler:
        assert sampler.stdin is not None
        assert sampler.stdout is not None
        sampler.stdout.readline()
        pid_file.write_text(str(sampler.pid))
        subprocess.run([SCRIPT, "end"], check=True, env=environment, timeout=LIMIT_S)
        assert sampler.stdout.readline() == "told\n"
        assert not pid_file.exists()
        subprocess.run([SCRIPT, "end"], check=True, env=environment, timeout=LIMIT_S)
        sampler.stdin.close()
        assert sampler.stdout.read() == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_the_end_reads_nothing_in_another_users_folder(tmp_path: Path, kind: str) -> None:
    """A FIFO that a stranger had put into /tmp kept the epilog waiting."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.mkfifo(theirs / ".n1.7.pid")
    os.chown(theirs, 65534, 65534)
    folder = theirs
    if kind == "link":
        folder = tmp_path / "usage"
        folder.symlink_to(theirs)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "CUDA_VISIBLE_DEVICES": "0", "SLURMD_NODENAME": "n1"}
    ours = {"GPUSAGE_USAGE_FOLDER": str(folder), "GPUSAGE_PYTHON": sys.executable}
    for word in ("begin", "end"):
        subprocess.run([SCRIPT, word], check=True, env={"PATH": os.environ["PATH"], **job, **ours}, timeout=LIMIT_S)
    assert (theirs / ".n1.7.pid").is_fifo()
