"""Jobs on a real Slurm or YARN with 12 emulated GPUs, without gpusage and with it, beside the simulator.

A job's body is a small emulator: it is done when its work is, at the speed that the measured tables give it for its GPU
and for whoever stands beside it; too little memory ends it. The time is compressed. All jobs are submitted before any
may start (on Slurm by plain sbatch, through cli_filter, job_submit.lua and gpusaged; on YARN by `gpusage yarn submit`),
and released at once. `off` and `on` alternate in one run.

Example: python bench/replay.py --data ../shared/data --jobs 12 --repetitions 1
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import click

from gpusage.decisions.advisor import make_advisor
from gpusage_lab.learning.report import show_scores
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds.replay_truth import FILES, lucid
from gpusage_lab.seeds.yeung_cluster import draw_jobs
from gpusage_planning.replay import comparison
from gpusage_planning.replay.comparison import STATES, Outcome, Repetition
from gpusage_planning.replay.site import Predictor, fleet
from gpusage_planning.replay.virtual_gpus import Coordinator, Stay, VirtualGpus
from gpusage_planning.simulator.contract import Jobs
from gpusage_planning.simulator.result import Result
from replaying.request import Manager, request_of
from replaying.slurm import SlurmManager
from replaying.yarn import YarnManager

USUAL = Path(__file__).resolve().parents[2] / "shared" / "data"
MANAGERS: Mapping[str, Callable[[], AbstractContextManager[Manager]]] = {
    "slurm": SlurmManager.started,
    "yarn": YarnManager.started,
}
SLACK_S = 300.0
START_FACTORS = tuple(0.5 + number / 20 for number in range(21))
"""Of the time of a start, one simulation each: 0.1 s of the real clock decides on which GPU type a long job is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One run of all jobs on the real scheduler.

    Attributes:
        latest_s: By how much the coordinator was late in the worst case, in seconds of the real clock.
        shares: The percentage of a GPU that each job had asked for in the end.
        backfilled: Starts by backfill.
    """

    stays: Sequence[Stay]
    busy_s: float
    latest_s: float
    shares: Sequence[int]
    backfilled: int | None


@click.command(help=__doc__)
@click.option("--manager", "manager_name", type=click.Choice([*MANAGERS]), default="slurm", show_default=True)
@click.option("--data", "folder", type=click.Path(path_type=Path), default=USUAL, help="Public measurements.")
@click.option("--jobs", "count", default=100, show_default=True)
@click.option("--longest", "longest_min", default=60.0, show_default=True, help="Minutes of the longest job, alone.")
@click.option("--compression", default=60.0, show_default=True, help="Emulated seconds in one.")
@click.option("--repetitions", default=3, show_default=True, help="Each with jobs of its own.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(folder: Path, manager_name: str, repetitions: int, seed: int, *, as_json: bool, **draw: float) -> None:
    """Replay, and print one table."""
    data = DataFolder(folder)
    if missing := [file for file in FILES if file not in data]:
        click.echo(f"Folder '{folder}' must have {', '.join(missing)}; got none. Name it with --data.", err=True)
        return
    advisor = make_advisor()
    done: list[Repetition] = []
    latest_s = 0.0
    with MANAGERS[manager_name]() as manager:
        for number in range(seed, seed + repetitions):
            predictor = Predictor(
                truth=lucid(data, advisor, number, manager.site.types),
                fleet=fleet(advisor, manager.site),
                advisor=advisor,
                site=manager.site,
                compression=draw["compression"],
            )
            jobs = draw_jobs(predictor.truth.kinds, number, int(draw["count"]), 60 * draw["longest_min"])
            runs = {state: replay(manager, state, jobs, predictor) for state in STATES}
            done.append(repetition(runs, jobs, predictor))
            latest_s = max(latest_s, *(run.latest_s for run in runs.values()))
    where = f"on {len(manager.site.gpus)} GPUs of a real {manager.name}"
    sizes = f"{draw['count']:g} jobs {where}, {draw['compression']:g} times as fast"
    table = ScoreTable(
        title=f"{sizes}, mean of {repetitions} repetitions",
        columns=comparison.COLUMNS,
        rows=tuple(comparison.rows(done)),
        notes=tuple(comparison.sentences(done)),
    )
    if as_json:
        figures = comparison.document(done)
        click.echo(json.dumps({"schema": "gpusage.bench.replay/1", **draw, "latest_s": latest_s, **figures}, indent=1))
        return
    show_scores([table])
    click.echo(f"The emulator was late by {latest_s:.2f} s at most; load {os.getloadavg()[0]:.1f}.")


def replay(manager: Manager, state: str, jobs: Jobs, predictor: Predictor) -> Replayed:
    """Run *jobs* on a cluster where gpusage is installed or not, and return what became of them."""
    memory_bytes = [one.memory_bytes for one in predictor.fleet.types]
    gpus = VirtualGpus(predictor.truth, jobs.kind.tolist(), jobs.work_s.tolist(), memory_bytes)
    coordinator = Coordinator(gpus, manager.site.types, predictor.compression, manager.nodes)
    requests = [request_of(manager.models, predictor.truth.runs[kind]) for kind in jobs.kind.tolist()]
    with manager.installed(state), coordinator.listening(manager.socket):
        names = manager.submitted(requests)
        shares, before = manager.shares(names), manager.backfilled()
        coordinator.start_clock()
        manager.release(names)
        manager.wait_for(
            lambda: coordinator.done == len(jobs), float(jobs.work_s.sum()) / predictor.compression + SLACK_S
        )
        after = manager.backfilled()
    return Replayed(
        stays=gpus.stays,
        busy_s=gpus.busy_s,
        latest_s=coordinator.latest_s,
        shares=shares,
        backfilled=None if before is None or after is None else after - before,
    )


def repetition(runs: Mapping[str, Replayed], jobs: Jobs, predictor: Predictor) -> Repetition:
    """Return the figures of one repetition, the simulator's beside."""
    predicted_shares = predictor.shares(jobs)
    delays = {state: comparison.delays_of(run.stays, predictor.compression) for state, run in runs.items()}
    start_s = {state: predictor.site.timing.start_s or each.start_s for state, each in delays.items()}
    return Repetition(
        real={
            state: comparison.outcome_of(run.stays, run.busy_s, len(predictor.site.gpus)) for state, run in runs.items()
        },
        simulations=[
            _outcomes(predictor.predicted(jobs, {state: factor * start_s[state] for state in STATES}))
            for factor in START_FACTORS
        ],
        at_once=_outcomes(predictor.predicted(jobs)),
        delays=delays,
        backfilled={state: run.backfilled for state, run in runs.items() if run.backfilled is not None},
        differing=sum(one != other for one, other in zip(predicted_shares, runs["on"].shares, strict=True)),
        stays={state: run.stays for state, run in runs.items()},
    )


def _outcomes(results: Mapping[str, Result]) -> Mapping[str, Outcome]:
    return {state: comparison.outcome_simulated(result) for state, result in results.items()}


if __name__ == "__main__":
    main()
