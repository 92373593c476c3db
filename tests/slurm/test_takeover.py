"""A backup controller takes over while shares wait and run: two controllers, a gpusaged on each, and one store."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusage_sandboxes import processes
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from slurm_jobs import GENEROUS, own_output, release, show_job, submit_share, wait_for_state
from waiting import wait_until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(
        os.geteuid() != 0 or subprocess.run(["unshare", "--uts", "--mount", "true"], check=False).returncode != 0,
        reason="only root gives a second slurmctld a host name of its own",
    ),
]

MODEL = f"model={Path(__file__).parents[2] / 'examples' / 'models'}/dlrm.onnx,batch=8,mode=infer"
STEPS = "until [ -e go ]; do sleep .1; done; srun --gres=gpu:1 echo step"
SETTINGS = ("SlurmctldTimeout=10", "CommunicationParameters=NoCtldInAddrAny")
BACKUP = (
    "printf '127.0.0.2 backup\\n' | cat - /etc/hosts >{etc}/hosts && mount --bind {etc}/hosts /etc/hosts"
    " && hostname backup && exec slurmctld -f {etc}/slurm.conf </dev/null >{etc}/out 2>&1"
)


@pytest.fixture
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster of two controllers, each with a folder of settings, a gpusaged and a socket of its own."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("2xv100:2"), settings=SETTINGS), release=slurm_release) as sandbox:
        conf = sandbox.layout.slurm_conf
        hosts = r"\1\nSlurmctldHost=backup(127.0.0.2)"
        conf.write_text(re.sub(r"^(SlurmctldHost=.*)$", hosts, conf.read_text(), flags=re.MULTILINE))
        sandbox.restart_controller()
        install_plugin(sandbox, "enforce", GENEROUS)
        if sandbox.installation.major_minor < (26, 5):
            assert "backup controller" in sandbox.run("gpusage", "slurm", "status").stdout
            pytest.skip("plain Slurm before 26.05 has no gres/mps after a takeover, so no GPU is shared")
        start_backup(sandbox)
        yield sandbox


def start_backup(sandbox: Sandbox) -> None:
    """Start the second host's gpusaged and slurmctld."""
    etc = sandbox.layout.folder / "backup"
    shutil.copytree(sandbox.layout.etc, etc)
    for name in ("slurm.conf", "job_submit.lua", "gpusage.toml"):
        text = (etc / name).read_text()
        text = text.replace("run/slurmctld.pid", "run/backup.pid").replace("log/slurmctld.log", "log/backup.log")
        (etc / name).write_text(text.replace("run/gpusaged.sock", "run/backup.sock"))
    sandbox.run("sh", "-c", f"GPUSAGE_CONFIG={etc}/gpusage.toml setsid gpusaged >{etc}/gpusaged.log 2>&1 </dev/null &")
    wait_until((sandbox.layout.run / "backup.sock").exists)
    sandbox.run("unshare", "--uts", "--mount", "sh", "-c", BACKUP.format(etc=etc))
    wait_until(lambda: sandbox.run("scontrol", "ping", check=False).stdout.count("is UP") == 2)


def wait_for_saved_jobs(sandbox: Sandbox) -> None:
    """Wait until slurmctld has saved its jobs as they are now, which it does within seconds of a change."""
    now_s, state = time.time(), sandbox.layout.state / "slurmctld" / "job_state"
    wait_until(lambda: state.exists() and state.stat().st_mtime > now_s)


def in_charge(sandbox: Sandbox) -> bool:
    """Return whether some slurmctld answers questions."""
    return sandbox.run("timeout", "2", "squeue", "-h", check=False).returncode == 0


def record_count(sandbox: Sandbox, *jobs: str) -> int:
    """Return how many of *jobs* have a record in the store."""
    records = [sandbox.run("gpusage", "decisions", "--json", job, check=False).stdout for job in jobs]
    return sum('"reasons"' in text for text in records)


def test_shares_survive_a_takeover_and_each_controller_asks_its_own_gpusaged(sandbox: Sandbox) -> None:
    running = submit_share(sandbox, f"--comment={MODEL}", wrap=STEPS)
    release(sandbox, running)
    wait_for_state(sandbox, running, "RUNNING")
    waiting = submit_share(sandbox, f"--comment={MODEL}", wrap=STEPS)
    sandbox.run("scontrol", "update", f"JobId={waiting}", "Nice=1")  # a change, so that all of it is saved
    wait_for_saved_jobs(sandbox)
    for daemon in ("slurmctld", "gpusaged"):  # the whole host is gone
        processes.end([pid for pid in [sandbox.pid(daemon)] if pid], grace_s=0)
    wait_until(lambda: in_charge(sandbox))
    assert (show_job(sandbox, running)["JobState"], show_job(sandbox, waiting)["JobState"]) == ("RUNNING", "PENDING")
    later = submit_share(sandbox, f"--comment={MODEL}", wrap=STEPS)
    release(sandbox, waiting, later)
    (sandbox.layout.jobs / "go").touch()
    for job in (running, waiting, later):
        assert "mps" in wait_for_state(sandbox, job, "COMPLETED")["TresPerNode"]
        assert own_output(sandbox.layout.jobs / f"slurm-{job}.out") == "step\n"
    wait_until(lambda: record_count(sandbox, running, waiting, later) == 3)
    assert "drain" not in sandbox.run("sinfo", "-hN", "-o", "%T").stdout
