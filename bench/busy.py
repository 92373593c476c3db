"""How many submissions of new models are answered in time on a busy machine, by the limit that slurmctld waits.

A real slurmctld and gpusaged, of the sandbox; so many processes more that each keep a processor busy; and for each
limit as many submissions, one after the other, of models that the daemon has not seen. The goal is 90 % at the default
limit.

Example: python bench/busy.py --load 8 --limit 10 --limit 25
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from gpusage.graphs.card.text import encode
from gpusage.graphs.named import cards as named_cards
from gpusage.service import client
from gpusage_hooks.errors import GraphError
from gpusage_sandboxes import processes
from gpusage_sandboxes.gpusaged import render_gpusage_toml
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.trial import install_plugin, submission_time_ms
from gpusage_slurm.settings import SlurmSettings

GOAL = 0.9
TOO_LATE = "longer than the limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of the submissions under one limit; times are slurmctld's own."""

    limit_ms: float
    submissions: int
    in_time: float
    too_late: int
    missed: dict[str, int]
    median_ms: float
    highest_ms: float


@click.command(help=__doc__)
@click.option("--load", default=8, show_default=True, help="Processes that keep a processor busy.")
@click.option("--models", default=50, show_default=True, help="Submitted for each limit.")
@click.option("--limit", "limits_ms", multiple=True, type=float, default=(SlurmSettings().limit_ms,), show_default=True)
@click.option("--nice", type=int, help="Give gpusaged this priority, as its unit does; below 0 needs root.")
@click.option("--json", "as_json", is_flag=True)
def main(load: int, models: int, limits_ms: tuple[float, ...], nice: int | None, *, as_json: bool) -> None:
    """Measure and print one table; the exit status is 1 where the default limit misses the goal."""
    cards = new_cards()
    with start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2,1xa100:2,1xh100:2"))) as cluster:
        install_plugin(cluster)
        if nice is not None:
            prioritise(processes.read_pid(cluster.layout.pid_file("gpusaged")) or 0, nice)
        with busy(load):
            results = [measured(cluster, limit_ms, [next(cards) for _ in range(models)]) for limit_ms in limits_ms]
    load_average = os.getloadavg()[0]
    if as_json:
        rows = [asdict(result) for result in results]
        click.echo(json.dumps({"schema": "gpusage.bench.busy/1", "load_average": load_average, "rows": rows}, indent=1))
    else:
        show(results, load, load_average)
    missed = [result for result in results if result.limit_ms == SlurmSettings().limit_ms and result.in_time < GOAL]
    sys.exit(1 if missed else 0)


def new_cards() -> Iterator[str]:
    """Yield cards of different models, the same ones in each run."""
    sources = sorted({key: name for name, key in named_cards.names().items()}.values())
    for source in sources[:: max(len(sources) // 997, 1)]:
        graph = named_cards.find(source, named_cards.default_shape(source) or "")
        try:
            if graph is not None:
                yield encode(graph)
        except GraphError:
            continue  # too irregular for a card: such a model is kept


def prioritise(pid: int, nice: int) -> None:
    """Give all threads of a process the priority *nice*."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep *count* processes busy."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def measured(cluster: Sandbox, limit_ms: float, cards: Sequence[str]) -> Result:
    """Submit a held job with each of *cards*."""
    set_limit(cluster, limit_ms)
    submit(cluster, cards[0])  # slurmctld reads its scripts anew, and the daemon has seen its cluster
    before = client.status(str(cluster.layout.socket), 20.0)["missed"]
    outputs, times_ms = [], [submission_time_ms(cluster)]
    for card in track(cards[1:], description=f"{limit_ms:g} ms", console=Console(stderr=True)):
        outputs.append(submit(cluster, card))
        times_ms.append(submission_time_ms(cluster))
    submit(cluster, cards[0])  # tells the daemon of those before it
    after = client.status(str(cluster.layout.socket), 20.0)["missed"]
    taken_ms = [last - first for first, last in pairwise(times_ms)]
    cluster.run("scancel", "--state=PENDING", check=False)
    in_time_share = sum("gpusage: " in text and TOO_LATE not in text for text in outputs) / len(outputs)
    click.echo(f"{limit_ms:g} ms: {in_time_share:.0%} answered", err=True)
    return Result(
        limit_ms=limit_ms,
        submissions=len(outputs),
        in_time=in_time_share,
        too_late=sum(TOO_LATE in text for text in outputs),
        missed={why: after[why] - before[why] for why in after if after[why] > before[why]},
        median_ms=statistics.median(taken_ms),
        highest_ms=max(taken_ms),
    )


def set_limit(cluster: Sandbox, limit_ms: float) -> None:
    """Have slurmctld and gpusaged work with *limit_ms*; clients send their cards themselves."""
    layout = cluster.layout
    text = render_gpusage_toml(layout, "enforce", f"[slurm]\nlimit_ms = {limit_ms}\n")
    (layout.etc / "gpusage.toml").write_text(text, encoding="utf-8")
    cluster.run("gpusage", "slurm", "install", "--nodes-ready", "--yes", timeout_s=120)
    installed = layout.slurm_conf.read_text(encoding="utf-8")
    layout.slurm_conf.write_text(
        installed.replace("\nCliFilterPlugins=lua", "\n#CliFilterPlugins=lua"), encoding="utf-8"
    )
    cluster.reconfigure()
    time.sleep(1.1)  # the daemon looks twice a second


def submit(cluster: Sandbox, card: str) -> str:
    """Return what sbatch says."""
    command = ("sbatch", "--hold", "--gres=gpu:1", "--comment=model=x.onnx,batch=8,mode=infer", "--wrap=true")
    return cluster.run(*command, environment={"GPUSAGE_CARD": card}, timeout_s=60).stderr


def show(results: Sequence[Result], load: int, load_average: float) -> None:
    """Print the table."""
    table = Table(
        title=f"new models at a load of {load} processes (load average {load_average:.1f}), {os.cpu_count()} CPUs"
    )
    for name in ("limit ms", "submissions", "answered", "too late", "no answer", "median ms", "highest ms"):
        table.add_column(name, justify="right")
    for each in results:
        missed = ", ".join(f"{count} {why}" for why, count in each.missed.items())
        cells = (
            f"{each.limit_ms:g}",
            str(each.submissions),
            f"{each.in_time:.0%}",
            str(each.too_late),
            missed or "0",
        )
        table.add_row(*cells, f"{each.median_ms:.1f}", f"{each.highest_ms:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
