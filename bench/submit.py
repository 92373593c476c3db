"""The submission path: slurmctld's own time for one submission, gpusage off, on, and on with the daemon stopped.

The goals: at most 1 ms more in the mean and 3 ms at the 99th percentile with one submitter, 2 ms more in the mean with
ten; and with the daemon stopped a mean of at most 5 ms over 40 jobs of ten. The states alternate in one run, so that a
busy machine slows all of them. gpusaged's memory is what it holds at the end.

Example: python bench/submit.py --submitters 1 --submitters 10 --rounds 4
"""

from __future__ import annotations

import os
import signal
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from gpusage.decisions.advisor import advisor
from gpusage.graphs.card.text import encode
from gpusage_sandboxes import processes
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin, submission_time_ms

MODEL = Path(__file__).parents[1] / "examples" / "models" / "dlrm.onnx"
STATES = ("off", "on", "stopped")
LIMIT_MS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Milliseconds of slurmctld's submissions in one state and one round, and gpusaged's memory at its end."""

    submitters: int
    state: str
    times_ms: tuple[float, ...]
    memory_mb: float


@click.command(help=__doc__)
@click.option("--submitters", multiple=True, type=int, default=(1, 10), show_default=True)
@click.option("--rounds", default=6, show_default=True, help="Of each state, alternating.")
@click.option("--jobs", default=40, show_default=True, help="Submitted a round.")
def main(submitters: tuple[int, ...], rounds: int, jobs: int) -> None:
    """Measure and print one table."""
    show(measured(submitters, rounds, jobs))


def measured(submitters: Sequence[int], rounds: int, jobs: int) -> list[Sample]:
    """Return the samples of this checkout."""
    samples = []
    with start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2"))) as cluster:
        install_plugin(cluster, "enforce", f"[slurm]\nlimit_ms = {LIMIT_MS}\n")
        pid = processes.read_pid(cluster.layout.pid_file("gpusaged")) or 0
        for _ in range(rounds):
            for count in submitters:
                for state in STATES:
                    with state_of(cluster, state, pid):
                        times_ms = tuple(submit(cluster, count, jobs))
                    samples.append(Sample(submitters=count, state=state, times_ms=times_ms, memory_mb=memory_mb(pid)))
    return samples


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in status if line.startswith("VmRSS:"))


@contextmanager
def state_of(cluster: Sandbox, state: str, pid: int) -> Iterator[None]:
    """Have job_submit.lua off, on, or on with the daemon *pid* stopped; slurmctld is warm again afterwards."""
    conf = cluster.layout.slurm_conf
    installed = conf.read_text(encoding="utf-8")
    # The clients send the card themselves; cli_filter runs on their side and is no part of slurmctld's time.
    switched_off = ("CliFilterPlugins=", "JobSubmitPlugins=") if state == "off" else ("CliFilterPlugins=",)
    lines = (line for line in installed.splitlines(keepends=True) if not line.startswith(switched_off))
    conf.write_text("".join(lines), encoding="utf-8")
    cluster.reconfigure()
    submit(cluster, 1, 3)
    if state == "stopped":
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        cluster.run("scancel", "--state=PENDING", check=False)
        conf.write_text(installed, encoding="utf-8")


def submit(cluster: Sandbox, submitters: int, jobs: int) -> list[float]:
    """Submit held jobs from as many clients at once; return slurmctld's milliseconds for each, by `sdiag`.

    One after the other each has its own figure. From several at once all have the mean.
    """
    card = encode(advisor().read(str(MODEL)))
    command = ("sbatch", "--hold", "--gres=gpu:1", "--comment=model=dlrm.onnx,batch=8,mode=infer", "--wrap=true")

    def one(_: int) -> None:
        cluster.run(*command, environment={"GPUSAGE_CARD": card})

    times_ms = [submission_time_ms(cluster)]
    if submitters == 1:
        for number in range(jobs):
            one(number)
            times_ms.append(submission_time_ms(cluster))
        return [after - before for before, after in pairwise(times_ms)]
    with ThreadPoolExecutor(max_workers=submitters) as pool:
        list(pool.map(one, range(jobs)))
    return [(submission_time_ms(cluster) - times_ms[0]) / jobs] * jobs


def row(samples: Sequence[Sample], off: Sequence[Sample]) -> dict[str, Any]:
    """Return one line of the table, of samples that are alike; what is added is against the plugin *off*."""
    times_ms, off_ms = ([ms for sample in each for ms in sample.times_ms] for each in (samples, off))
    mean_ms = statistics.fmean(times_ms)
    cells: dict[str, Any] = {
        "submitters": samples[0].submitters,
        "gpusage": samples[0].state,
        "mean ms": f"{mean_ms:.2f}",
        "added mean": f"{mean_ms - statistics.fmean(off_ms):.2f}",
        "added p50": "",  # of several at once slurmctld tells the mean alone
        "added p99": "",
        "gpusaged MB": f"{samples[-1].memory_mb:.0f}",
    }
    if samples[0].submitters == 1:
        cuts, off_cuts = (statistics.quantiles(each, n=100) for each in (times_ms, off_ms))
        for name, cut in (("added p50", 49), ("added p99", 98)):
            cells[name] = f"{cuts[cut] - off_cuts[cut]:.2f}"
    return cells


def show(samples: Sequence[Sample]) -> None:
    """Print the table."""
    kinds: dict[tuple[int, str], list[Sample]] = {}
    for sample in samples:
        kinds.setdefault((sample.submitters, sample.state), []).append(sample)
    rows = [row(alike, kinds[count, "off"]) for (count, _), alike in sorted(kinds.items())]
    jobs = sum(len(sample.times_ms) for sample in next(iter(kinds.values())))
    table = Table(*rows[0], title=f"slurmctld, one submission ({jobs} of each); limit {LIMIT_MS} ms")
    for each in rows:
        table.add_row(*map(str, each.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
