"""What a site gains by learning, and whether it ever swings: simulated months of jobs that come again.

The 96 submissions of the example models are jobs of eight users, each of which comes again 4 to 60 times in 90 days. A
job's truth is drawn once, with a seed: how busy it keeps a whole GPU, from the utilizations that Lucid measured of 66
jobs alone (``--data``) or else evenly from 30 to 100 %; how much longer a share makes the GPU's own time than is
predicted, log-normally with a deviation of 15 %. Each run differs by 4 %, and beside partners by 0 to 10 % more. Every
decision is the one that gpusaged would take, from records and usage as the store has them; it learns once a day.

Three sites decide the same jobs: by the graph alone, with learning, and with every job's true utilization. In the
second three rows shares of one family cost twice what is predicted; in the third the jobs of two users keep their GPU
twice as busy after half of the time, because their loader is faster.

Example: python bench/learning.py --data ../shared/data
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import exp
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from example_runs import RUNS
from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.decisions.outcome import Outcome as Decided
from gpusage.devices.shares import shares_alone_of
from gpusage.experience.learning import learn
from gpusage.experience.runs import Run, run_of
from gpusage.predictors.analysis import analyze
from gpusage.predictors.sharing.host import SHARPNESS
from gpusage.predictors.sharing.slowdown import growths
from gpusage_hooks.types import (
    Allocation,
    Cluster,
    Code,
    DecisionRequest,
    Gpu,
    GpuPool,
    GpuRequest,
    Job,
    ModelGraph,
    ModelRequest,
    SoloRun,
    Submitter,
    Usage,
    Workload,
)
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds.command import command_of
from tally import WHOLE, Tally

MODELS = Path(__file__).parent.parent / "examples" / "models"
DAYS, DAY_S = 90, 86_400.0
USERS = 8
TIMES = (4, 60)
"""How often a job comes in that time, at least and at most."""
SIZES = (25, 33, 50, 75)
GROWTH_ERROR = 0.15
"""Standard deviation of the logarithm of truth over prediction: of how much longer a share makes the GPU's own time."""
RUN_ERROR = 0.04
"""The same of one run against the job's own mean."""
ALONE = 0.5
"""The part of the runs on a share that have the GPU for themselves."""
Arm = Literal["graph", "learning", "told"]
ARMS: Mapping[Arm, str] = {
    "graph": "by the graph alone",
    "learning": "with learning",
    "told": "with every true utilization",
}
GPU, POPULATIONS = "h100", 3
LUCID = "lucid_solo.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What a job really does.

    Attributes:
        utilization: Alone on the whole GPU.
        growth: Of the GPU's own time on a share, by its percentage.
        whole_s: How long a run takes on the whole GPU.
    """

    utilization: float
    growth: Mapping[int, float]
    whole_s: float

    def slowdown(self, percent: int) -> float:
        """Return how many times as long a run on *percent* of the GPU takes."""
        busy = self.utilization * self.growth.get(percent, 1.0)
        return float((busy**SHARPNESS + 1 - self.utilization**SHARPNESS) ** (1 / SHARPNESS))

    def utilization_on(self, percent: int) -> float:
        """Return how busy the GPU is while the job runs on *percent* of it."""
        return min(self.utilization * self.growth.get(percent, 1.0) / self.slowdown(percent), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurring:
    """A job that comes again; *later* is its truth in the second half."""

    graph: ModelGraph
    workload: Workload
    submitter: Submitter
    truth: Truth
    later: Truth


@dataclass(slots=True)
class Outcome:
    """What became of a site's runs, and how often each job's share changed."""

    tally: Tally = field(default_factory=Tally)
    changes: Counter[str] = field(default_factory=Counter)


class Site:
    """A population of jobs on one GPU type.

    Args:
        advisor: Has learned nothing.
        gpu: The type.
        seed: Of the population.
        utilizations: To draw from.
    """

    def __init__(self, advisor: Advisor, gpu: Gpu, seed: int, utilizations: Sequence[float]) -> None:
        self.advisor, self.gpu, self.seed = advisor, gpu, seed
        pool = GpuPool(gpu=gpu.name, site_type="gpu", gpu_count=64, free_gpu_count=8, mps_per_gpu=WHOLE)
        self.cluster = Cluster(manager="slurm", version="24.11", pools=(pool,))
        chance = random.Random(seed)  # the same each time
        graphs = [advisor.read(str(path)) for path in sorted(MODELS.glob("*.onnx"))]
        self.jobs = [
            self._job(graph, Workload(mode=mode, batch_size=batch, precision="fp16"), utilizations, chance)
            for graph in graphs
            for mode, batch in RUNS
        ]
        self.arrivals = sorted(
            (chance.uniform(0, DAYS), index) for index in range(len(self.jobs)) for _ in range(chance.randint(*TIMES))
        )

    def _job(self, graph: ModelGraph, run: Workload, utilizations: Sequence[float], chance: random.Random) -> Recurring:
        predicted = growths(analyze(graph, run), [self.gpu], [shares_alone_of(self.gpu, SIZES)])
        missed = chance.lognormvariate(0, GROWTH_ERROR)
        growth = {size: max(1 + (times - 1) * missed, 1) for size, times in zip(SIZES, predicted, strict=True)}
        truth = Truth(
            utilization=chance.choice(utilizations), growth=growth, whole_s=3600 * chance.lognormvariate(0, 1)
        )
        who = {"user": str(chance.randrange(USERS)), "job_name": f"{graph.name}-{run.mode}-{run.batch_size}"}
        return Recurring(
            graph=graph, workload=run, submitter=Submitter(fields=MappingProxyType(who)), truth=truth, later=truth
        )

    def quarter(self, arm: Arm) -> Outcome:
        """Return what becomes of all runs at a site of the kind *arm*."""
        chance, outcome, runs_so_far, last = random.Random(self.seed), Outcome(), list[Run](), dict[int, int]()
        advisor, today = self.advisor, 0
        for day, index in self.arrivals:
            if arm == "learning" and int(day) > today:
                advisor, today = replace(self.advisor, learned=learn(runs_so_far)), int(day)
            job = self.jobs[index]
            truth = job.truth if day < DAYS / 2 else job.later
            decided = self._decided(advisor, job, truth.utilization if arm == "told" else None)
            percent = decided.decision.request.mps_thread_percent if decided.applied_code is Code.REWRITE else None
            percent = percent or WHOLE
            outcome.changes[job.submitter.job_name] += last.setdefault(index, percent) != percent
            last[index] = percent
            slowdown = truth.slowdown(percent) * (chance.uniform(1.0, 1.1) if percent < WHOLE else 1.0)
            outcome.tally.add(percent, slowdown, truth.whole_s)
            run = self._run(decided, truth, percent, slowdown, day, chance)
            runs_so_far += [run] if run else []
        return outcome

    def _decided(self, advisor: Advisor, job: Recurring, utilization: float | None) -> Decided:
        workload = replace(job.workload, alone=SoloRun(utilization=utilization))
        submitted = Job(
            submission=DecisionRequest(manager="slurm", fields={"tres_per_node": "gres:gpu:1"}),
            request=GpuRequest(gpu_count=1),
            request_text="gres/gpu:1",
            model_request=ModelRequest(model=job.graph.name, workload=workload),
            submitter=job.submitter,
        )
        return advisor.advise(submitted, self.cluster, lambda _job, _request: job.graph)

    def _run(
        self, decided: Decided, truth: Truth, percent: int, slowdown: float, day: float, chance: random.Random
    ) -> Run | None:
        """Return what the store's two tables show of one run."""
        took_s, busy = (exp(chance.gauss(0, RUN_ERROR)) for _ in range(2))
        took_s *= truth.whole_s * slowdown
        usage = Usage(
            number="",
            manager="slurm",
            job_id="",
            user="",
            gpu=self.gpu.name,
            granted=Allocation(division="percentage", share_percent=percent) if percent < WHOLE else Allocation(),
            outcome="completed",
            started_at_s=day * DAY_S,
            ended_at_s=day * DAY_S + took_s,
            sampled_s=took_s,
            alone_s=took_s if percent == WHOLE or chance.random() < ALONE else 0.0,
            gpu_utilization=min(truth.utilization_on(percent) * busy, 1.0),
        )
        return run_of(usage, decided.record(origin="", number="", decided_at_s=day * DAY_S), 60.0)

    def changed(self, change: Callable[[Recurring], Recurring]) -> Site:
        """Return the same site with each job as *change* returns it."""
        other = copy(self)
        other.jobs = [change(job) for job in self.jobs]
        return other


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return what each kind of site makes of the same jobs, as they are and where predictions fail."""
    advisor = make_advisor()
    gpu = advisor.catalogue.find(GPU)
    utilizations = lucid(data) if LUCID in data else [percent / 100 for percent in range(30, 101)]
    sites = [Site(advisor, gpu, seed, utilizations) for seed in range(POPULATIONS)]
    dear, fast = ([site.changed(change) for site in sites] for change in (dear_resnet, faster_loader))
    rows = (
        *rows_of("", sites),
        *rows_of("ResNets' shares cost twice what is predicted: ", dear),
        *rows_of("two users' jobs are twice as busy after half of the time: ", fast),
    )
    columns = (
        "site",
        "runs on a share, %",
        "GPU time saved, %",
        "of the shares at most 25 % slower, %",
        "more than 50 % slower, %",
        "most changes of one job",
    )
    title = f"{DAYS} days of {len(sites[0].jobs)} recurring jobs on {gpu.name}, {POPULATIONS} times"
    return [ScoreTable(title=title, columns=columns, rows=rows)]


def lucid(data: DataFolder) -> list[float]:
    """Return the utilizations of Lucid's jobs alone on a GPU."""
    return [percent / 100 for percent in data.read(LUCID)["gpu_util_pct"] if percent > 0]


def dear_resnet(job: Recurring) -> Recurring:
    """Return *job*, its shares twice as dear where it is a ResNet."""
    if not job.graph.name.startswith("resnet"):
        return job
    truth = replace(job.truth, growth={size: 2 * growth for size, growth in job.truth.growth.items()})
    return replace(job, truth=truth, later=truth)


def faster_loader(job: Recurring) -> Recurring:
    """Return *job*, twice as busy in the second half where it is of the first two users."""
    if int(job.submitter.user) > 1:
        return job
    utilization = min(2 * job.truth.utilization, 1.0)
    whole_s = job.truth.whole_s * job.truth.utilization / utilization
    return replace(job, later=replace(job.truth, utilization=utilization, whole_s=whole_s))


def rows_of(case: str, sites: Sequence[Site]) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each kind of site."""
    for arm, name in ARMS.items():
        outcomes = [site.quarter(arm) for site in sites]
        tallies = [outcome.tally for outcome in outcomes]
        runs, shared, within_limit, broken = (
            sum(getattr(t, n) for t in tallies) for n in ("runs", "shared", "within_limit", "broken")
        )
        saved = 1 - sum(t.used_s for t in tallies) / sum(t.whole_s for t in tallies)
        most = max(max(outcome.changes.values()) for outcome in outcomes)
        parts = (shared / runs, saved, within_limit / max(shared, 1), broken / max(shared, 1))
        yield (f"{case}{name}", *(f"{100 * part:.1f}" for part in parts), most)


main = command_of("learning", tables, ())

if __name__ == "__main__":
    main()
