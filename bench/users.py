"""Jobs of several users on a real Slurm, without gpusage (whole GPUs) and with it (shares): is any GPU two users'?

Each job writes down where it runs, as whom, and from when to when; so whose programs ran on a GPU at the same time is
known exactly, and from nobody but them. Users submit bursts of jobs that are alike. The nodes have stand-ins for MPS.
As root only: the jobs belong to Unix users that every Linux has.

Example: python bench/users.py --jobs 1000 --nodes 16xv100:2
"""

from __future__ import annotations

import random
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import click

from gpusage.decisions.advisor import advisor
from gpusage.graphs.card.text import encode
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from gpusage_slurm.install.node_scripts import EPILOG, PROLOG, TASK_PROLOG

ROOT = Path(__file__).parents[1]
USERS = (1, 2, 3, 5, 6, 7, 8, 9, 10, 13)
"""The numbers of daemon, bin, sys, games and others."""
SHARES = (
    "dlrm.onnx,batch=8,mode=infer",
    "resnet18.onnx,batch=8,utilization=15",
    "resnet18.onnx,batch=32,utilization=40",
)
WHOLE_PART, BURST = 0.2, 10.0
"""The part of the jobs that name no model, and how many a user submits at once, in the mean."""
SCRIPT = (
    'echo "$SLURMD_NODENAME $SLURM_JOB_GPUS $(id -u) ${{CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-0}} $(date +%s.%N)"; '
    "sleep {}; date +%s.%N"
)


class Draw(NamedTuple):
    """A job: when it is submitted, in seconds from the start; by whom; its comment, empty for one that stays whole."""

    at_s: float
    uid: int
    comment: str
    duration_s: int


class Stay(NamedTuple):
    """A program on a GPU, in a share of it or not."""

    gpu: str
    uid: int
    start_s: float
    end_s: float
    is_share: bool


class Result(NamedTuple):
    """What became of the jobs.

    Attributes:
        meetings: Pairs of programs of different users that ran on one GPU at the same time, both in shares.
        doubles: The same where one had the whole GPU: before 23.11.5 Slurm itself may book a GPU twice.
        drained: Nodes that take no jobs any more.
        waits_s: From the submission to the program's begin.
        shares: Jobs that became a share when they were submitted.
        lost: Those of them that got their whole GPU back.
        restarts: Starts that were turned back.
    """

    meetings: Sequence[str]
    doubles: int
    drained: int
    waits_s: Sequence[float]
    shares: int
    lost: int
    restarts: int

    def __str__(self) -> str:
        p99_s = statistics.quantiles(self.waits_s, n=100)[98]
        lost = f"{self.shares} shares, {self.lost} lost, {self.restarts} starts turned back"
        waits = f"mean wait {statistics.fmean(self.waits_s):.1f} s, p99 {p99_s:.1f} s"
        met = f"{len(self.meetings)} meetings {self.meetings}, {self.doubles} with a whole GPU's job"
        return f"{met}, {self.drained} nodes drained, {waits}, {lost}"


def draw(count: int, gpu_count: int, load: float, duration_s: float) -> list[Draw]:
    """Return jobs whose whole GPUs would keep the part *load* of *gpu_count* GPUs busy."""
    numbers = random.Random(0)  # no secret
    draws, at_s = list[Draw](), 0.0
    while len(draws) < count:
        uid, size = numbers.choice(USERS), max(1, round(numbers.expovariate(1 / BURST)))
        comment = "" if numbers.random() < WHOLE_PART else numbers.choice(SHARES)
        for _ in range(min(size, count - len(draws))):
            length = max(2, round(numbers.lognormvariate(0, 0.8) * duration_s / 1.377))
            draws.append(Draw(at_s=at_s, uid=uid, comment=comment, duration_s=length))
        at_s += numbers.expovariate(load * gpu_count / duration_s / size)
    return draws


@contextmanager
def started(nodes: str, release: str | None) -> Iterator[Sandbox]:
    """Start a cluster whose folder all users may enter, as /etc and /usr are entered elsewhere."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes(nodes)), release=release) as sandbox:
        sandbox.layout.folder.chmod(0o711)
        sandbox.layout.jobs.chmod(0o1777)
        yield sandbox


def install(sandbox: Sandbox, settings: str = "") -> None:
    """Install gpusage; each node has MPS, and a folder of its own for it, as it would have /run."""
    install_plugin(sandbox, "enforce", f"[slurm]\nlimit_ms = 1000\n{settings}")
    conf, toml = sandbox.layout.slurm_conf, sandbox.layout.gpusage_toml
    toml.write_text(toml.read_text().replace("refresh_s = 1\n", "refresh_s = 1\nstuck_after_s = 2\n"))
    control = shutil.copy(ROOT / "tests/standins/nvidia-cuda-mps-control", sandbox.layout.state)
    for script in (PROLOG, EPILOG, TASK_PROLOG):
        wrapper, copy = script.copy(sandbox.layout.etc), script.copy(sandbox.layout.libexec)
        exports = f"GPUSAGE_MPS_CONTROL={control} GPUSAGE_CUDA_LIBRARY=none PATH={sandbox.installation.programs}:$PATH"
        exports += f" GPUSAGE_MPS_FOLDER={sandbox.layout.state}/mps/$SLURMD_NODENAME"
        wrapper.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\nexport {exports}\nexec {copy}\n")
        wrapper.chmod(0o755)
        conf.write_text(conf.read_text().replace(f"{script.key}={copy}", f"{script.key}={wrapper}"))
    # The jobs bring their cards, so that nobody reads the same models a thousand times.
    lines = conf.read_text().splitlines(keepends=True)
    conf.write_text("".join(line for line in lines if not line.startswith("CliFilterPlugins=")))
    for folder in (sandbox.layout.state, sandbox.layout.etc, sandbox.layout.libexec):
        folder.chmod(0o711)
    sandbox.reconfigure()


def cards() -> dict[str, str]:
    """Return the card of each model."""
    names = {each.partition(",")[0] for each in SHARES}
    return {name: encode(advisor().read(str(ROOT / "examples" / "models" / name))) for name in names}


def run(sandbox: Sandbox, draws: Sequence[Draw]) -> Result:
    """Submit each of *draws* at its time, wait for all, and return what became of them."""
    models = cards()
    begun_s = time.time()

    def submit(each: Draw) -> tuple[str, float]:
        time.sleep(max(0.0, begun_s + each.at_s - time.time()))
        comment = (f"--comment=model={each.comment}",) if each.comment else ()
        environment = {"GPUSAGE_CARD": models[each.comment.partition(",")[0]]} if each.comment else {}
        output = f"--output={sandbox.layout.jobs}/%j.out"
        command = ("sbatch", "--parsable", f"--uid={each.uid}", "--gres=gpu:1", "--chdir=/", output, *comment)
        submitted_s = time.time()
        done = sandbox.run(*command, f"--wrap={SCRIPT.format(each.duration_s)}", environment=environment)
        return done.stdout.strip(), submitted_s

    with ThreadPoolExecutor(max_workers=4) as threads:
        submitted = dict(threads.map(submit, draws))
    sandbox.wait_for_queue(3600.0)

    waits_s, stays = [], list[Stay]()
    for job, submitted_s in submitted.items():
        line, _, end = (sandbox.layout.jobs / f"{job}.out").read_text().strip().rpartition("\n")
        node, gpu, uid, percent, start = line.splitlines()[-1].split()
        waits_s.append(float(start) - submitted_s)
        stays.append(Stay(f"{node}:{gpu}", int(uid), float(start), float(end), percent != "0"))
    meetings, doubles = [], 0
    for one, other in combinations(stays, 2):
        if one.gpu != other.gpu or one.uid == other.uid or one.start_s >= other.end_s or other.start_s >= one.end_s:
            continue
        if one.is_share and other.is_share:
            meetings.append(f"{one} {other}")
        else:
            doubles += 1

    states = sandbox.run("sinfo", "-hN", "-o", "%T").stdout.split()
    listed = sandbox.run("squeue", "-ht", "all", "-O", "JobID:16,RestartCnt:8,admin_comment:1100").stdout.splitlines()
    mine = [line for line in listed if line.split()[0] in submitted]
    lost = sum(" BACK " in line for line in mine)
    return Result(
        meetings=meetings,
        doubles=doubles,
        drained=sum("drain" in state or "down" in state for state in states),
        waits_s=waits_s,
        shares=lost + sum(" REWRITE gres/gpu:1 -> gres/mps" in line for line in mine),
        lost=lost,
        restarts=sum(int(line.split()[1]) for line in mine),
    )


@click.command(help=__doc__)
@click.option("--jobs", "count", default=1000, show_default=True)
@click.option("--nodes", default="16xv100:2", show_default=True)
@click.option("--release", default=None, help="Of Debian or Ubuntu, as of `gpusage slurm sandbox up`.")
@click.option("--duration", "duration_s", default=40.0, show_default=True, help="Mean seconds of a job.")
def main(count: int, nodes: str, release: str | None, duration_s: float) -> None:
    """Run the same jobs without gpusage and with it, and print a line for each."""
    draws = draw(count, sum(node.gpu_count for node in parse_nodes(nodes)), 1.0, duration_s)
    for name in ("without", "with"):
        with started(nodes, release) as sandbox:
            if name == "with":
                install(sandbox)
            click.echo(f"{name} gpusage: {run(sandbox, draws)}")


if __name__ == "__main__":
    main()
