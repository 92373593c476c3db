"""Ardagna et al.'s cluster: capacity planned by mixed-integer programs against plain rules, and its predicted cost.

Random instances as the slides describe them: their virtual machines and servers with their prices, ten jobs per node,
Poisson arrivals of 30 s and 45 s, five instances each. Their two-node scenario: six jobs, one every 300 s.

What the slides leave open is assumed, the same for everybody: `ASSUMPTIONS` has it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds.ardagna import EXTRAPOLATIONS, extrapolate
from gpusage_lab.seeds.ardagna_runs import MeasuredRun, gavel
from gpusage_planning.capacity.decision import decide
from gpusage_planning.capacity.mixed_integer import Limits
from gpusage_planning.capacity.plan import make_plan
from gpusage_planning.capacity.problem import Choice, NodeGroup, NodeType, Option, PlannedJob, State
from gpusage_planning.capacity.whole import RULES, by_rule

FILES = ("gavel_solo.csv",)
NODES, JOBS_PER_NODE, INSTANCES = 10, 10, 5
ARRIVALS_S = (30.0, 45.0)
SHORTEST_S, LONGEST_S = 600.0, 14_400.0
SCENARIOS, SCENARIO_JOBS, SCENARIO_GAP_S = 20, 6, 300.0
PAPER_COST_ERROR = 4.12
COUNTS = (1, 2, 4, 8)
K80_TFLOP_PER_S = 4.11
PEAKS = {"k80": K80_TFLOP_PER_S, "m60": 4.83, "p600": 1.2, "gtx-1080-ti": 11.34}
"""NVIDIA's figures for fp32 of one GPU, TFLOP/s; K80 and M60 boards have two GPUs each, whose half counts here."""
VIRTUAL = tuple(
    NodeType(name=name, gpu=gpu, gpu_count=count, price_per_hour=price)
    for name, gpu, count, price in (
        *(("NC6", "k80", 1, 0.56), ("NC12", "k80", 2, 1.13), ("NC24", "k80", 4, 2.25)),
        *(("NV6", "m60", 1, 0.62), ("NV12", "m60", 2, 1.24), ("NV24", "m60", 4, 2.48)),
    )
)
IN_HOUSE = (
    NodeType(name="server 1", gpu="p600", gpu_count=2, price_per_hour=0.11),
    NodeType(name="server 2", gpu="gtx-1080-ti", gpu_count=8, price_per_hour=1.13),
    NodeType(name="server 3", gpu="p600", gpu_count=8, price_per_hour=0.44),
)
TWO_NODES = (
    NodeType(name="NC6", gpu="k80", gpu_count=1, price_per_hour=0.56),
    *(
        NodeType(name=name, gpu="p100-pcie-16gb", gpu_count=count, price_per_hour=2.48 * count)
        for name, count in (("NV6", 1), ("NV12", 2), ("NV24", 4))
    ),
)
ASSUMPTIONS = (
    "Jobs scale as Gavel measured LM, ResNet-18, ResNet-50 and Transformer on 1 to 8 K80s; 10 min to 4 h on one.",
    "M60, P600 and 1080 Ti: the K80's time by the ratio of fp32 peaks, times a chance of 0.8 to 1.25 per job and GPU.",
    "Ten nodes: the three in-house servers once each, seven that can be any of the six virtual machines.",
    "Deadline: 1.5 to 6 times the time on the fastest choice. An hour late costs 1 to 5 $; it is also the priority.",
    "Nobody stops a running job. The rules choose the cheapest type that meets the deadline, by the same run times.",
)


class Instance(NamedTuple):
    """What one random instance costs, by the program and by each rule."""

    arrival_s: float
    number: int
    program: float
    rules: Mapping[str, float]

    @property
    def best_rule(self) -> float:
        """Return the cost of the cheapest rule."""
        return min(self.rules.values())


class Scenario(NamedTuple):
    """One draw of six jobs on two nodes: the predicted and the real cost, by what predicts the step times."""

    predicted: Mapping[str, float]
    real: Mapping[str, float]


REGRESSION, LINE = "regression", "ours, line by the rows"
Times = Mapping[tuple[str, int], float]
Work = Mapping[tuple[str, int], Mapping[tuple[str, int], MeasuredRun]]
"""Measured runs by network and batch, and within by GPU and number of GPUs."""


def program(state: State) -> Choice:
    """Choose by the mixed-integer program."""
    return decide(state, Limits())


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return what every instance and every scenario costs."""
    work = _work(list(gavel(data)))
    instances = [_instance(work, arrival_s, number) for arrival_s in ARRIVALS_S for number in range(INSTANCES)]
    return [_instance_table(instances), _scenario_table([_scenario(work, number) for number in range(SCENARIOS)])]


def cost_error(scenarios: Sequence[Scenario], name: str) -> float:
    """Return the mean over scenarios of how far the predicted cost is from the real one, in percent."""
    return float(np.mean([100.0 * abs(each.predicted[name] / each.real[name] - 1.0) for each in scenarios]))


def _instance_table(instances: Sequence[Instance]) -> ScoreTable:
    return ScoreTable(
        title=f"Ardagna: cost in $ of {JOBS_PER_NODE * NODES} jobs on {NODES} nodes, by who decides",
        columns=("mean time between jobs, instance", "ours (MILP)", *RULES, "less than the best rule, %"),
        rows=tuple(
            (
                f"{each.arrival_s:.0f} s, {each.number + 1}",
                each.program,
                *(each.rules[name] for name in RULES),
                100.0 * (1.0 - each.program / each.best_rule),
            )
            for each in instances
        ),
        notes=ASSUMPTIONS,
    )


def _scenario_table(scenarios: Sequence[Scenario]) -> ScoreTable:
    rows: list[tuple[str | float | None, ...]] = []
    for name in scenarios[0].real:
        costs = [float(np.sum([getattr(each, kind)[name] for each in scenarios])) for kind in ("predicted", "real")]
        rows.append((name, *costs, 100.0 * abs(costs[0] / costs[1] - 1.0), cost_error(scenarios, name)))
    rows.append(("the paper: its regression, one scenario", 16.02, 16.71, PAPER_COST_ERROR, None))
    return ScoreTable(
        title=f"Ardagna: {SCENARIO_JOBS} jobs on two nodes, predicted against real cost, {SCENARIOS} draws",
        columns=("step times by", "predicted, $", "real, $", "apart in all, %", "apart in a draw, mean %"),
        rows=tuple(rows),
        notes=(
            "Gavel's measured runs; decisions see predicted times, jobs last as measured. A job every 300 s.",
            "Two nodes that can be NC6 (K80) or NV6, NV12, NV24, with P100s in place of M60s, at 4 times the price.",
            "Regression and line: fitted on the network's other batches on the same GPUs. The graph alone: by none.",
        ),
    )


def _work(measured: Sequence[MeasuredRun]) -> Work:
    """Return the networks that were measured on every GPU and number of GPUs."""
    work: dict[tuple[str, int], dict[tuple[str, int], MeasuredRun]] = {}
    for run in measured:
        work.setdefault((run.network, run.batch_size), {})[run.gpu, run.gpu_count] = run
    most = max(map(len, work.values()))
    return {key: own for key, own in work.items() if len(own) == most}


def _instance(work: Work, arrival_s: float, number: int) -> Instance:
    chance = random.Random(f"{arrival_s}-{number}")  # a seed, no secret
    submitted_s, jobs = 0.0, []
    for index in range(NODES * JOBS_PER_NODE):
        jobs.append(_random_job(f"job{index}", work, submitted_s, chance))
        submitted_s += chance.expovariate(1.0 / arrival_s)
    groups = [NodeGroup(name=kind.name, node_count=1, types=(kind,)) for kind in IN_HOUSE]
    groups.append(NodeGroup(name="cloud", node_count=NODES - len(IN_HOUSE), types=VIRTUAL))
    rules = {name: make_plan(jobs, groups, by_rule(order)).cost for name, order in RULES.items()}
    return Instance(arrival_s, number, make_plan(jobs, groups, program).cost, rules)


def _random_job(name: str, work: Work, submitted_s: float, chance: random.Random) -> PlannedJob:
    own = work[chance.choice(sorted(work))]
    alone_s = SHORTEST_S * (LONGEST_S / SHORTEST_S) ** chance.random()
    scaling = {count: own["k80", count].step_s / own["k80", 1].step_s / count for count in COUNTS}
    times_s = {}
    for gpu, peak in PEAKS.items():
        luck = 1.0 if gpu == "k80" else 0.8 * (1.25 / 0.8) ** chance.random()
        times_s.update({(gpu, count): alone_s * luck * K80_TFLOP_PER_S / peak * scaling[count] for count in COUNTS})
    late_price = chance.uniform(1.0, 5.0)
    return PlannedJob(
        name=name,
        times_s=times_s,
        submitted_s=submitted_s,
        deadline_s=submitted_s + chance.uniform(1.5, 6.0) * min(times_s.values()),
        late_price_per_hour=late_price,
        priority=late_price,
    )


def _scenario(work: Work, number: int) -> Scenario:
    """Plan six jobs by each way to know their step times, and let them last as measured."""
    chance = random.Random(f"scenario {number}")
    drawn = [(chance.choice(sorted(work)), chance.uniform(1800.0, 7200.0)) for _ in range(SCENARIO_JOBS)]
    groups = [NodeGroup(name="cloud", node_count=2, types=TWO_NODES)]
    times = [_predicted_times(work, key) for key, _ in drawn]
    steps = [alone_s / work[key]["k80", 1].step_s for key, alone_s in drawn]
    predicted, real = {}, {}
    measured = [_scenario_job(index, own["measured"], steps[index]) for index, own in enumerate(times)]
    truth = {job.name: job.times_s for job in measured}
    for name in times[0]:
        jobs = [_scenario_job(index, own[name], steps[index]) for index, own in enumerate(times)]
        jobs = [replace(job, deadline_s=own.deadline_s) for job, own in zip(jobs, measured, strict=True)]
        predicted[name] = make_plan(jobs, groups, program).cost
        real[name] = make_plan(jobs, groups, program, lasts_s=_with_durations(truth)).cost
    return Scenario(predicted, real)


def _with_durations(truth: Mapping[str, Times]) -> Callable[[PlannedJob, Option], float]:
    return lambda job, option: truth[job.name][option.type.gpu, option.gpu_count]


def _scenario_job(index: int, step_times_s: Times, steps: float) -> PlannedJob:
    times_s = {(gpu, count): steps * step_s / count for (gpu, count), step_s in step_times_s.items()}
    submitted_s = SCENARIO_GAP_S * index
    return PlannedJob(
        name=f"JJ{index + 1}",
        times_s=times_s,
        submitted_s=submitted_s,
        deadline_s=submitted_s + 1.5 * times_s["k80", 1],
        late_price_per_hour=2.0,
    )


def _predicted_times(work: Work, key: tuple[str, int]) -> dict[str, Times]:
    """Return the step times of *key* as each way has them: measured, regression, line, graph."""
    times: defaultdict[str, dict[tuple[str, int], float]] = defaultdict(dict)
    for where, run in work[key].items():
        train = [own[where] for (network, batch), own in work.items() if network == key[0] and batch != key[1]]
        (one,) = extrapolate(EXTRAPOLATIONS[0], train, [run])
        for name, step_s in (
            *((REGRESSION, one.regression), (LINE, one.ours_with_line)),
            *(("ours, graph alone", one.ours), ("measured", run.step_s)),
        ):
            times[name][where] = max(step_s, 1e-4)
    return dict(times)
