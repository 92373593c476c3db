"""Yeung et al.'s cluster experiment (HotCloud 2020, table 4), simulated: 12 GPUs, 100 jobs, five repetitions.

What really happens decides the result, so there are two truths, named beforehand: Lucid's pairs and Gavel's on a V100
under MPS. Assumptions, as the paper leaves them open:

1. All jobs come at once, in the order in which they were drawn; each asks for one GPU. Their times alone are spread
   evenly over the logarithm, 2 minutes to 2 hours: the mean is 1729 s, theirs under slots is 1869 s.
2. A job of the reactive way runs for a minute alone on the one GPU that is set aside for that, and then from its
   beginning on one of the eleven others.
3. A job that runs out of memory has lost 30 s, and then gets a whole GPU.
4. JCT is from a job's first start to its end: with the time in the queue, slots could not have the lowest, as in the
   paper. Utilization is NVML's busy share, mean of all GPUs over the makespan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from gpusage_hooks.types import Cluster
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds.pair_truth import PairTruth, gavel, lucid
from gpusage_planning.simulator.contract import Jobs, Kind, Policy
from gpusage_planning.simulator.engine import simulate
from gpusage_planning.simulator.fleet import Fleet, GpuType
from gpusage_planning.simulator.policies import Packing, Sets, Slots
from gpusage_planning.simulator.predictions import Foresight, Load, load_of, pairs_of
from gpusage_planning.simulator.result import Figures
from gpusage_planning.simulator.source import range_ids

FILES = ("lucid_pairs.csv", "lucid_solo.csv", "gavel_pairs.csv")
TRUTHS: Mapping[str, Callable[[DataFolder, int], PairTruth]] = {"lucid": lucid, "gavel": gavel}
GPUS, JOBS, REPETITIONS = 12, 100, 5
SHORTEST_S, LONGEST_S = 120.0, 7200.0
SLOTS, REACTIVE, PREDICTED, OBSERVED = "slots", "reactive", "predicted", "predicted, utilization observed"
PERFECT = "perfect prediction"
OURS, OURS_OBSERVED, OURS_PERFECT = "sets", "sets, utilization observed", "sets, perfect prediction"
PAPER = {SLOTS: (43.1, 1869.0), REACTIVE: (47.1, 2193.0), PREDICTED: (69.6, 2024.0)}
"""Utilization in percent and JCT in seconds; makespan of the predicted way: -33.5 % and -26.5 % against the others."""
GOALS = {"utilization_gain": 0.615, "makespan_gain": 0.336, "jct_ratio": 1.08}
"""On Lucid; on Gavel no policy may be worse than slots."""
COLUMNS = (
    "policy", "busy %", "paper", "more %", "occupied %", "makespan %", "worst %", "JCT s", "paper",
    "longer %", "broken %", "OOM", "most %",
)  # fmt: skip
LEGEND = (
    "busy: NVML's, all GPUs over the makespan; occupied: of the GPU time with a job; the gains are against slots.",
    "broken: of shared jobs, slower than 1.25 times; OOM: starts without enough memory; most: starts on one GPU.",
)
NOTES = {
    "lucid": (
        "Lucid's licence is non-commercial: for this table alone. Speeds above 1 count as 1.",
        "The paper's makespan is 33.5 % shorter than slots and 26.5 % shorter than the reactive way.",
    ),
    "gavel": (
        "Gavel measured no utilization: it follows from the step times alone, and so 'observed' is perfect here.",
        "Nor was memory measured: predictions, with errors drawn from those on Lucid's jobs.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One policy under one truth: means of the repetitions; gains are against slots.

    Attributes:
        utilization_gain: Relative: 0.615 is 61.5 % more.
        makespan_gain: How much shorter, 0 to 1.
        worst_makespan_gain: The same of the worst repetition.
        jct_ratio: Mean JCT over that of slots.
    """

    policy: str
    utilization: float
    occupied_utilization: float
    makespan_s: float
    jct_s: float
    broken: float | None
    out_of_memory: float
    most_on_one_gpu: float
    utilization_gain: float
    makespan_gain: float
    worst_makespan_gain: float
    jct_ratio: float


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return every policy's figures under either truth."""
    return [table(truth, experiment(data, truth)) for truth in TRUTHS]


def experiment(data: DataFolder, truth: str, seed: int = 0) -> list[Outcome]:
    """Return what comes of each policy under the truth of this name."""
    runs: dict[str, list[Figures]] = {}
    for repetition in range(REPETITIONS):
        actual = TRUTHS[truth](data, seed + repetition)
        jobs = draw_jobs(actual.kinds, seed + repetition)
        for policy, fleet in policies(actual):
            runs.setdefault(policy.name, []).append(simulate(jobs, fleet, policy, actual).figures)
    return [_outcome(name, figures, runs[SLOTS]) for name, figures in runs.items()]


def draw_jobs(kinds: tuple[Kind, ...], seed: int, count: int = JOBS, longest_s: float = LONGEST_S) -> Jobs:
    """Return the *count* jobs of one repetition, of which none takes longer alone than *longest_s*."""
    generator = np.random.default_rng([seed, 1])
    work_s = np.exp(generator.uniform(np.log(SHORTEST_S), np.log(longest_s), count))
    return Jobs(
        ids=range_ids(count),
        submit_s=np.zeros(count),
        work_s=work_s,
        limit_s=work_s,
        gpu_count=np.ones(count, dtype=np.int32),
        kind=generator.integers(len(kinds), size=count).astype(np.int32),
        user=np.zeros(count, dtype=np.int32),
        kinds=kinds,
        users=("someone",),
    )


def policies(truth: PairTruth) -> Iterator[tuple[Policy, Fleet]]:
    """Yield each policy with its GPUs and the predictions that it gets."""
    fleet, apart = _fleet(truth, GPUS), _fleet(truth, GPUS - 1, 1)
    predicted_loads, busy = (
        {(kind, gpu_type): load_of(need) for kind, need in enumerate(needs) for gpu_type in range(len(apart.types))}
        for needs in (truth.needs, truth.observed)
    )
    actual = {
        key: Load(utilization=float(truth.utilization[key[0]]), memory_bytes=float(truth.memory[key[0]]))
        for key in predicted_loads
    }
    yield Slots(fleet=fleet, name=SLOTS, backfill="any"), fleet
    measured = Foresight(loads=actual, pair_throughputs=())
    yield Packing(fleet=apart, foresight=measured, name=REACTIVE, profiles=True, profiling_types=(1,)), apart
    for name, loads in ((PREDICTED, predicted_loads), (OBSERVED, busy), (PERFECT, actual)):
        yield Packing(fleet=fleet, foresight=Foresight(loads=loads, pair_throughputs=()), name=name), fleet
    for name, loads, pairs in (
        (OURS, predicted_loads, pairs_of(truth.needs)),
        (OURS_OBSERVED, busy, pairs_of(truth.observed)),
        (OURS_PERFECT, actual, truth.pair_throughputs),
    ):
        yield Sets(fleet=fleet, foresight=Foresight(loads=loads, pair_throughputs=(pairs,)), name=name), fleet


def table(truth: str, outcomes: Sequence[Outcome]) -> ScoreTable:
    """Return every policy's figures under one truth, with the paper's beside."""
    return ScoreTable(
        title=f"Yeung's cluster, truth {truth}: {GPUS} GPUs, {JOBS} jobs, mean of {REPETITIONS} repetitions",
        columns=COLUMNS,
        rows=tuple(_row(one) for one in outcomes),
        notes=(*LEGEND, *NOTES[truth], *_goals(truth, outcomes)),
    )


def _row(one: Outcome) -> tuple[Cell, ...]:
    busy, jct_s = PAPER.get(one.policy, (None, None))
    figures = (
        one.utilization, busy and busy / 100, one.utilization_gain, one.occupied_utilization, -one.makespan_gain,
        -one.worst_makespan_gain, one.jct_ratio - 1, one.broken, one.most_on_one_gpu,
    )  # fmt: skip
    *before, longer, broken, most = (None if figure is None else round(100 * figure, 1) + 0.0 for figure in figures)
    return (one.policy, *before, round(one.jct_s), jct_s, longer, broken, one.out_of_memory, most)


def _goals(truth: str, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield for each policy that packs whether it reaches the goals, with its figures."""
    for one in outcomes:
        if one.policy in (SLOTS, REACTIVE):
            continue
        if truth == "gavel":
            is_met = one.worst_makespan_gain >= 0
            yield f"{one.policy}: never a longer makespan than slots: {_verdict(is_met)}"
            continue
        figures = ((key, getattr(one, key), goal) for key, goal in GOALS.items())
        results = [
            f"{key} {figure:.3f} ({_verdict(_reaches(key, figure, goal))} {goal})" for key, figure, goal in figures
        ]
        yield f"{one.policy}: {', '.join(results)}"


def _reaches(key: str, figure: float, goal: float) -> bool:
    return figure <= goal if key == "jct_ratio" else figure >= goal


def _verdict(is_met: bool) -> str:  # it is what is said
    return "met" if is_met else "missed"


def _fleet(truth: PairTruth, *counts: int) -> Fleet:
    memory_bytes = float(truth.gpu.memory_bytes)
    types = tuple(
        GpuType(name=f"pool{place}", gpu_count=count, memory_bytes=memory_bytes) for place, count in enumerate(counts)
    )
    return Fleet(types=types, cluster=Cluster(manager="none", version="", pools=()))


def _outcome(name: str, figures: list[Figures], slots: list[Figures]) -> Outcome:
    def of(key: str, runs: list[Figures] = figures) -> float:
        return mean(getattr(one, key) or 0.0 for one in runs)

    promised = any(one.broken is not None for one in figures)
    return Outcome(
        policy=name,
        utilization=of("utilization"),
        occupied_utilization=of("occupied_utilization"),
        makespan_s=of("makespan_s"),
        jct_s=of("run_s"),
        broken=of("broken") if promised else None,
        out_of_memory=of("out_of_memory"),
        most_on_one_gpu=of("most_on_one_gpu"),
        utilization_gain=of("utilization") / of("utilization", slots) - 1,
        makespan_gain=1 - of("makespan_s") / of("makespan_s", slots),
        worst_makespan_gain=min(1 - one.makespan_s / slot.makespan_s for one, slot in zip(figures, slots, strict=True)),
        jct_ratio=of("run_s") / of("run_s", slots),
    )
