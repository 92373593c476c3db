"""Jobs by plain sbatch on a real Slurm with 12 emulated GPUs, without gpusage and with it, beside the simulator.

A job's body is a small emulator: it is done when its work is, at the speed that the measured tables give it for its GPU
and for whoever stands beside it; too little memory ends it. The time is compressed. All jobs are submitted while they
are held, through cli_filter, job_submit.lua and gpusaged, and released at once. `off` and `on` alternate in one run.

Example: python bench/replay.py --data ../shared/data --jobs 12 --repetitions 1 -o replay.html
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from gpusage.advisor import make_advisor
from gpusage.sandboxes.gpusaged import stop_gpusaged
from gpusage.whole_file import write_whole
from gpusage_lab.cli.scores import show_scores
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.replay import body, comparison
from gpusage_lab.replay.comparison import STATES, Outcome, Repetition
from gpusage_lab.replay.coordinator import Coordinator
from gpusage_lab.replay.page import page, simulated_stays
from gpusage_lab.replay.prediction import GPUS_PER_TYPE, RULE, Predictor, fleet
from gpusage_lab.replay.truth import FILES, SITE_TYPES, KnownRun, ReplayTruth, lucid
from gpusage_lab.replay.virtual_gpus import Stay, VirtualGpus
from gpusage_lab.seeds.yeung_cluster import drawn_jobs
from gpusage_lab.simulator.jobs import Jobs
from gpusage_lab.simulator.result import Result
from gpusage_lab.zoo.cards import load_zoo
from gpusage_slurm.sandbox import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_slurm.sandbox.trial import install_plugin

USUAL = Path(__file__).resolve().parents[2] / "shared" / "data"
GPUS = [(f"{name}-1", device) for name in SITE_TYPES for device in range(GPUS_PER_TYPE)]
PLAN = ClusterPlan(nodes=parse_nodes(",".join(f"{name}:{GPUS_PER_TYPE}" for name in SITE_TYPES)))
SETTINGS = f'[sharing]\nrule = "{RULE}"\n[slurm]\nlimit_ms = 1000\n'
"""The limit is far above the product's own: a busy machine must not decide who shares."""
Charts = Mapping[str, Mapping[str, Sequence[Stay]]]
"""What is drawn, by title and state."""
CLIENTS = 2
SLACK_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One run of all jobs on the real scheduler.

    Attributes:
        latest_s: By how much the coordinator was late in the worst case, in seconds of the real clock.
    """

    stays: Sequence[Stay]
    busy_s: float
    latest_s: float


@click.command(help=__doc__)
@click.option("--data", "folder", type=click.Path(path_type=Path), default=USUAL, help="Public measurements.")
@click.option("--jobs", "count", default=100, show_default=True)
@click.option("--longest", "longest_min", default=60.0, show_default=True, help="Minutes of the longest job, alone.")
@click.option("--compression", default=60.0, show_default=True, help="Emulated seconds in one.")
@click.option("--repetitions", default=3, show_default=True, help="Each with jobs of its own.")
@click.option("--seed", default=0, show_default=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with Gantt charts.")
@click.option("--json", "as_json", is_flag=True)
def main(folder: Path, repetitions: int, seed: int, output: Path | None, *, as_json: bool, **draw: float) -> None:
    """Replay, and print one table."""
    data = DataFolder(folder)
    if missing := [file for file in FILES if file not in data]:
        click.echo(f"Folder '{folder}' must have {', '.join(missing)}; got none. Name it with --data.", err=True)
        return
    advisor = make_advisor()
    done: list[Repetition] = []
    charts: Charts = {}
    latest_s = 0.0
    with start_sandbox(PLAN) as cluster:
        for number in range(seed, seed + repetitions):
            predictor = Predictor(truth=lucid(data, advisor, number), fleet=fleet(advisor), advisor=advisor)
            jobs = drawn_jobs(predictor.truth.pairs, number, int(draw["count"]), 60 * draw["longest_min"])
            runs = {state: replay(cluster, state, jobs, predictor, draw["compression"]) for state in STATES}
            done.append(repetition(runs, jobs, predictor, draw["compression"]))
            charts = charts or _charts(runs, jobs, predictor)
            latest_s = max(latest_s, *(run.latest_s for run in runs.values()))
    sizes = f"{draw['count']:g} jobs on {len(GPUS)} GPUs of a real Slurm, {draw['compression']:g} times as fast"
    table = comparison.table(done, f"{sizes}, mean of {repetitions} repetitions")
    if output is not None:
        write_whole(output, page(table, charts, GPUS))
    if as_json:
        figures = comparison.document(done)
        click.echo(json.dumps({"schema": "gpusage.bench.replay/1", **draw, "latest_s": latest_s, **figures}, indent=1))
        return
    show_scores([table])
    click.echo(f"The emulator was late by {latest_s:.2f} s at most; load {os.getloadavg()[0]:.1f}.")


def replay(cluster: Sandbox, state: str, jobs: Jobs, predictor: Predictor, compression: float) -> Replayed:
    """Run *jobs* on *cluster*, where gpusage is installed or not, and return what became of them."""
    memory_bytes = [one.memory_bytes for one in predictor.fleet.types]
    gpus = VirtualGpus(predictor.truth, jobs.kind.tolist(), jobs.work_s.tolist(), memory_bytes)
    coordinator = Coordinator(gpus, SITE_TYPES, compression)
    socket = cluster.layout.run / "replay.socket"
    longest_s = float(jobs.work_s.sum()) / compression + SLACK_S
    with gpusage_in(cluster, state), coordinator.listening(socket):
        names = submitted(cluster, socket, comments(cluster, predictor.truth, jobs))
        coordinator.start_clock()
        cluster.run("scontrol", "release", ",".join(names))
        cluster.wait_for(lambda: coordinator.done == len(jobs), "all jobs are done", longest_s)
        cluster.wait_for_queue()
    return Replayed(stays=gpus.stays, busy_s=gpus.busy_s, latest_s=coordinator.latest_s)


@contextmanager
def gpusage_in(cluster: Sandbox, state: str) -> Iterator[None]:
    """Have gpusage installed while *state* is on."""
    if state == "off":
        yield
        return
    install_plugin(cluster, "enforce", SETTINGS)
    yield
    stop_gpusaged(cluster)
    for _ in range(2):  # node scripts go with the second
        cluster.run("gpusage", "slurm", "uninstall", "--with-jobs", "--yes")
        cluster.reconfigure()


def comments(cluster: Sandbox, truth: ReplayTruth, jobs: Jobs) -> list[str]:
    """Return each job's comment; the models' cards are written into the sandbox."""
    return [_comment(cluster.layout.jobs, truth.runs[kind]) for kind in jobs.kind.tolist()]


def _comment(folder: Path, known: KnownRun) -> str:
    path = folder / f"{known.key.replace(':', '-').replace('@', '-')}.card.json"
    path.write_text(load_zoo().cards[known.key])
    run, utilization = known.run, known.run.alone.utilization or 0.0
    options = f"batch={run.batch_size},precision={run.precision},optimizer={run.optimizer}"
    return f"model={path},{options},utilization={max(round(100 * utilization), 1)}"


def submitted(cluster: Sandbox, socket: Path, comments: Sequence[str]) -> list[str]:
    """Return the jobs' numbers in Slurm, in their order; all of them are held."""

    def submit(job: int) -> str:
        words = ("sbatch", "--parsable", "--hold", "--requeue", "--gres=gpu:1", "--mem=1", f"--comment={comments[job]}")
        command = f"exec {sys.executable} -I -S {body.__file__} {socket} {job}"
        return cluster.run(*words, f"--wrap={command}").stdout.strip()

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [*pool.map(submit, range(len(comments)))]


def repetition(runs: Mapping[str, Replayed], jobs: Jobs, predictor: Predictor, compression: float) -> Repetition:
    """Return the figures of one repetition, the simulator's beside."""
    delays = {state: comparison.delays_of(run.stays, compression) for state, run in runs.items()}
    late_s = {state: each.start_s * compression for state, each in delays.items()}
    return Repetition(
        real={state: comparison.outcome_of(run.stays, run.busy_s, len(GPUS)) for state, run in runs.items()},
        simulated=_outcomes(predictor.predicted(jobs)),
        simulated_late=_outcomes(predictor.predicted(jobs, late_s)),
        delays=delays,
        stays={state: run.stays for state, run in runs.items()},
    )


def _outcomes(results: Mapping[str, Result]) -> Mapping[str, Outcome]:
    return {state: comparison.outcome_simulated(result) for state, result in results.items()}


def _charts(runs: Mapping[str, Replayed], jobs: Jobs, predictor: Predictor) -> Charts:
    simulated = predictor.predicted(jobs)
    return {
        "Slurm": {state: run.stays for state, run in runs.items()},
        "Simulated": {state: simulated_stays(result, predictor.fleet) for state, result in simulated.items()},
    }


if __name__ == "__main__":
    main()
