"""The submission path: slurmctld's own time for one submission, gpusage off, on, and on with the daemon stopped.

The goal is a mean at most 1.10 times as long as without us, at most 1 ms more at the 99th percentile, and with the
daemon stopped no more than the limit. The states alternate in one run, so that a busy machine slows all of them.

Example: python bench/submit.py --submitters 1 --submitters 10 --rounds 4
"""

from __future__ import annotations

import json
import os
import signal
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from gpusage.api import advisor
from gpusage.graphs.card.text import encode
from gpusage.sandboxes import processes
from gpusage_slurm.installing.conf import with_setting, without_edits
from gpusage_slurm.sandbox import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_slurm.sandbox.trial import install_plugin, submission_time_ms

MODEL = Path(__file__).parents[1] / "examples" / "models" / "dlrm.onnx"
STATES = ("off", "on", "stopped")
LIMIT_MS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Milliseconds of slurmctld's submissions in one state."""

    submitters: int
    state: str
    times_ms: tuple[float, ...]

    @property
    def mean_ms(self) -> float:
        """The figure that sdiag shows as REQUEST_SUBMIT_BATCH_JOB's average."""
        return statistics.fmean(self.times_ms)

    def percentile_ms(self, share: float) -> float:
        """Return the time that *share* of the submissions do not exceed."""
        return sorted(self.times_ms)[min(int(share * len(self.times_ms)), len(self.times_ms) - 1)]


@click.command(help=__doc__)
@click.option("--submitters", multiple=True, type=int, default=(1, 10, 50), show_default=True)
@click.option("--rounds", default=6, show_default=True, help="Of each state, alternating.")
@click.option("--jobs", default=50, show_default=True, help="Submitted a round.")
@click.option("--json", "as_json", is_flag=True)
def main(submitters: tuple[int, ...], rounds: int, jobs: int, *, as_json: bool) -> None:
    """Measure and print one table."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2"))) as cluster:
        install_plugin(cluster, "enforce", f"[slurm]\nlimit_ms = {LIMIT_MS}\n")
        times: dict[tuple[int, str], list[float]] = {}
        order = [(count, state) for count in submitters for _ in range(rounds) for state in STATES]
        for count, state in track(order, description="submitting", console=Console(stderr=True)):
            with state_of(cluster, state):
                times.setdefault((count, state), []).extend(submit(cluster, count, jobs))
    results = [Result(submitters=count, state=state, times_ms=tuple(found)) for (count, state), found in times.items()]
    if as_json:
        rows = [row(result, results) | {"submissions": len(result.times_ms)} for result in results]
        click.echo(json.dumps({"schema": "gpusage.bench.submit/1", "rows": rows}, indent=1))
    else:
        show(results)


@contextmanager
def state_of(cluster: Sandbox, state: str) -> Iterator[None]:
    """Have the plugin off, on, or on with its daemon stopped; slurmctld is warm again afterwards."""
    conf = cluster.layout.slurm_conf
    text = conf.read_text(encoding="utf-8")
    # The clients send the card themselves; cli_filter runs on their side and is no part of slurmctld's time.
    conf.write_text(plugin_switched(text, on=state != "off"), encoding="utf-8")
    cluster.reconfigure()
    pid = processes.read_pid(cluster.layout.pid_file("gpusaged"))
    submit(cluster, 1, 3)
    if state == "stopped" and pid:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if pid:
            os.kill(pid, signal.SIGCONT)
        cluster.run("scancel", "--state=PENDING", check=False)
        conf.write_text(text, encoding="utf-8")


def plugin_switched(text: str, *, on: bool) -> str:
    """Return slurm.conf with or without our job_submit script, always without the client's filter."""
    plain = without_edits(text)
    return with_setting(plain, "JobSubmitPlugins", "lua") if on else plain


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


def row(result: Result, results: list[Result]) -> dict[str, float | int | str]:
    """Return one line of the table; ratios are against the plugin off with as many submitters."""
    off = next(other for other in results if other.submitters == result.submitters and other.state == "off")
    cells: dict[str, float | int | str] = {
        "submitters": result.submitters,
        "gpusage": result.state,
        "mean_ms": round(result.mean_ms, 3),
        "ratio": round(result.mean_ms / off.mean_ms, 3),
    }
    if result.submitters == 1:
        cells |= {
            "p99_ms": round(result.percentile_ms(0.99), 3),
            "p99_added_ms": round(result.percentile_ms(0.99) - off.percentile_ms(0.99), 3),
            "max_ms": round(max(result.times_ms), 3),
        }
    return cells


def show(results: list[Result]) -> None:
    """Print the table."""
    table = Table(title=f"slurmctld, one submission ({len(results[0].times_ms)} of each); limit {LIMIT_MS} ms")
    rows = [row(result, results) for result in results]
    for name in rows[0]:
        table.add_column(name, justify="right")
    for each in rows:
        table.add_row(*(str(each.get(name, "")) for name in rows[0]))
    Console().print(table)


if __name__ == "__main__":
    main()
