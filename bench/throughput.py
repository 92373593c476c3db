"""Jobs started a minute with gpusage and without: short jobs through a whole Slurm of many emulated nodes.

Each round submits *jobs* batch jobs of one model and waits until all have run. In the state `on` everything on the
cluster's side is at work: job_submit.lua, gpusaged with its store, prolog, task prolog, epilog; in `off` gpusage is not
installed. States alternate in one run, so that a busy machine slows both. The clients send the card themselves: on a
real cluster `gpusage job-card` runs on the login nodes, and here it would take the cores of slurmctld and of the nodes.
What it costs sbatch is a column of its own, from a few jobs that go the whole way. The nodes are slurmds on this host
(`slurmd -N`) and their jobs its processes, so read the ratio, not the rate.

Without `--rate` each client submits as soon as its last sbatch is back: then the scripts of all nodes and slurmctld
fight for the same cores, which no real cluster does. With `--rate` jobs come at that pace, as from users, and the
question is whether all of them start as soon.

Example: python bench/throughput.py --nodes 64 --jobs 1000 --rounds 2 --rate 240
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from gpusage.decisions.advisor import advisor
from gpusage.graphs.card.text import encode
from gpusage_sandboxes.gpusaged import stop_gpusaged
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin

MODEL = Path(__file__).parents[1] / "examples" / "models" / "dlrm.onnx"
STATES = ("off", "on")
GOAL = 1.05
WHOLE_WAY = 10
COMMENT = f"--comment=model={MODEL},batch=8,mode=infer"
SBATCH = ("sbatch", "--parsable", "--gres=gpu:1", "--mem=1", "--output=/dev/null", COMMENT, "--wrap=true")
_RPC = re.compile(r"^\s*(REQUEST_\w+|MESSAGE_\w+)\s.*count:(\d+)\s+ave_time:(\d+)", re.MULTILINE)
_QUIET = ("SlurmctldDebug=error", "SlurmdDebug=error", "MaxJobCount=20000")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round of jobs took.

    Attributes:
        started_per_minute: From the first submission to the last job's start.
        wait_s: From a job's submission to its start, on average.
        submit_ms: Of slurmctld for a submission, by `sdiag`.
        rpc_ms: Of slurmctld for all messages together, by `sdiag`.
        sbatch_ms: Of a user, for one sbatch that describes its model.
        shared: Jobs that ran on a share.
    """

    state: str
    sbatch_ms: float
    started_per_minute: float
    wait_s: float
    submit_ms: float
    rpc_ms: float
    shared: int


@click.command(help=__doc__)
@click.option("--nodes", default=64, show_default=True, help="Each a slurmd with two GPUs.")
@click.option("--jobs", default=1000, show_default=True, help="A round.")
@click.option("--rounds", default=2, show_default=True, help="Of each state, alternating.")
@click.option("--clients", default=2, show_default=True, help="That submit at once.")
@click.option("--rate", type=float, help="Jobs a minute that come; as many as the clients can by default.")
def main(nodes: int, jobs: int, rounds: int, clients: int, rate: float | None) -> None:
    """Measure and print one table."""
    plan = ClusterPlan(nodes=parse_nodes(f"{nodes}xv100:2"), settings=_QUIET)
    measured = []
    with start_sandbox(plan) as cluster:
        for _ in range(rounds):
            for state in STATES:
                with state_of(cluster, state):
                    measured.append(run(cluster, state, jobs, clients, 60 / rate if rate else 0.0))
    show(measured)


@contextmanager
def state_of(cluster: Sandbox, state: str) -> Iterator[None]:
    """Have gpusage installed, or not."""
    if state == "off":
        yield
        return
    install_plugin(cluster, "enforce")
    yield
    stop_gpusaged(cluster)
    for _ in range(2):  # node scripts go with the second
        cluster.run("gpusage", "slurm", "uninstall", "--with-jobs", "--yes")
        cluster.reconfigure()


def whole_way_ms(cluster: Sandbox) -> float:
    """Return the median of a user's wait for sbatch, which describes the model where gpusage is installed."""
    times_s = []
    for _ in range(WHOLE_WAY):
        begun_s = time.monotonic()
        cluster.run(*SBATCH)
        times_s.append(time.monotonic() - begun_s)
    cluster.wait_for_queue()
    return statistics.median(times_s) * 1000


def run(cluster: Sandbox, state: str, jobs: int, clients: int, interval_s: float) -> Round:
    """Submit *jobs*, one after *interval_s* at the earliest, wait for all, and return what that took."""
    sbatch_ms = whole_way_ms(cluster)  # slurmctld, the page cache and the user's cards are warm then
    conf = cluster.layout.slurm_conf
    unfiltered = conf.with_name("bare.conf")
    unfiltered.write_text("".join(line for line in conf.read_text().splitlines(True) if "CliFilter" not in line))
    client = {"SLURM_CONF": str(unfiltered), "SLURM_GPUSAGE_CARD": encode(advisor().read(str(MODEL)))}
    cluster.run("sdiag", "--reset")
    begun_s = time.time()

    def submit(index: int) -> int:
        time.sleep(max(begun_s + index * interval_s - time.time(), 0.0))
        return int(cluster.run(*SBATCH, environment=client).stdout)

    with ThreadPoolExecutor(clients) as pool:
        names = list(pool.map(submit, range(jobs)))
    cluster.wait_for_queue(timeout_s=1800)
    diagnosis = cluster.run("sdiag").stdout
    rpcs = {name: (int(count), int(mean_us) / 1000) for name, count, mean_us in _RPC.findall(diagnosis)}
    times = started(cluster, min(names))
    return Round(
        state=state,
        sbatch_ms=sbatch_ms,
        started_per_minute=jobs / (max(start_s for _, start_s in times) - begun_s) * 60,
        wait_s=statistics.fmean(start_s - submit_s for submit_s, start_s in times),
        submit_ms=rpcs["REQUEST_SUBMIT_BATCH_JOB"][1],
        rpc_ms=sum(count * mean_ms for count, mean_ms in rpcs.values()),
        shared=shared(cluster, min(names)),
    )


def started(cluster: Sandbox, first: int) -> list[tuple[float, float]]:
    """Return when each job from *first* on was submitted and started, in seconds since 1970."""
    text = cluster.run("squeue", "-h", "--states=all", "-o", "%i %V %S").stdout
    rows = [line.split() for line in text.splitlines()]
    return [(_seconds(submit), _seconds(start)) for name, submit, start in rows if int(name) >= first]


def shared(cluster: Sandbox, first: int) -> int:
    """Return how many of the jobs from *first* on had a share."""
    text = cluster.run("squeue", "-h", "--states=all", "-o", "%i %b").stdout
    return sum("mps" in line and int(line.split()[0]) >= first for line in text.splitlines())


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).astimezone().timestamp()


def show(measured: list[Round]) -> None:
    """Print the rounds of each state, and what gpusage costs."""
    columns = ("state", "started a minute", "mean wait s", "submission ms", "all messages s", "on a share")
    table = Table(*columns, "a user's sbatch ms")
    for each in measured:
        figures = (
            f"{each.started_per_minute:.0f}",
            f"{each.wait_s:.1f}",
            f"{each.submit_ms:.2f}",
            f"{each.rpc_ms / 1000:.1f}",
            str(each.shared),
            f"{each.sbatch_ms:.0f}",
        )
        table.add_row(each.state, *figures)
    Console().print(table)
    rate = {
        state: statistics.fmean(each.started_per_minute for each in measured if each.state == state) for state in STATES
    }
    ratio = rate["off"] / rate["on"]
    click.echo(f"off / on: {ratio:.3f} (goal: at most {GOAL}: {'met' if ratio <= GOAL else 'missed'})")


if __name__ == "__main__":
    main()
