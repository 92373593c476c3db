"""How many jobs get a share, of what size, and how often its promise would be broken on measured prices.

The 96 submissions of the example models are decided as `gpusage validate` does it on the example cluster, where MPS
caps memory and where the driver limits it, models of
the zoo, batch 1 to 128, on one GPU type at a time. For measured prices of inference (RaPP on a V100, ParvaGPU's slices
of an A100) each rule sees what a user could tell it, and the measurement says whether its promise was kept. An oracle
and constants stand beside; the intervals' widths were fitted on these prices too, the points on none. Lucid's pairs,
which nothing here was fitted on, say how often packing by known utilizations is broken.

Example: python bench/yield.py --data ../shared/data
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from example_runs import RUNS
from gpusage.cli.cluster_file import example_cluster
from gpusage.cli.scripts import Script
from gpusage.cli.validate import validate
from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.policies.share_price import Limits, limits
from gpusage_hooks.types import (
    Candidate,
    Cluster,
    Gpu,
    GpuRequest,
    LimitedBy,
    ModelGraph,
    Rules,
    SharingRules,
    Workload,
)
from gpusage_lab.learning.promises import (
    RAPP_SIZES,
    Measured,
    PromiseScore,
    candidate_of,
    cheapest,
    parvagpu,
    promise_scores,
    rapp,
    rules_at,
)
from gpusage_lab.learning.slowdown_rows import PARVAGPU, RAPP
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds.command import command_of
from gpusage_planning.zoo import load_zoo

MODELS = Path(__file__).parent.parent / "examples" / "models"
LUCID, LUCID_ALONE = "lucid_pairs.csv", "lucid_solo.csv"
SLICES = (14, 29, 43, 57)
"""Of ParvaGPU, in percent of the SMs."""
PROMISED = "price, step time known"
GOAL_WITHIN = 90
MODEL_COUNT = 40
"""Models drawn from the zoo."""
LUCID_LEAST_SPEED = 0.8
"""Of the speed alone: a step takes a quarter longer."""
CASES = (
    ("by price", SharingRules(), "", 22),
    ("by price, slowdown=1.5", SharingRules(), ",slowdown=1.5", 45),
    ("by price, slowdown=2", SharingRules(), ",slowdown=2", None),
    ("by price, utilization=60", SharingRules(), ",utilization=60", 80),
    ("by price, utilization=30", SharingRules(), ",utilization=30", None),
    ("by price, cap=double", SharingRules(cap="double"), "", None),
    ("by price, binding never", SharingRules(bind="never"), "", None),
)
ZOO_RUNS = tuple(
    Workload(mode=mode, batch_size=batch, precision="fp16") for mode in ("infer", "train") for batch in (1, 8, 32, 128)
)
LIMITS = (1.1, 1.25, 1.5)
GPUS = ("v100", "a100", "h100")


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return every table; without the measurements, no promise is checked."""
    advisor = make_advisor()
    score_tables = [examples(advisor), zoo_shares(advisor)]
    if all(file in data for file in (RAPP, PARVAGPU, LUCID, LUCID_ALONE)):
        zoo = load_zoo()
        score_tables += promises("RaPP, shares of a V100", list(rapp(advisor, data, zoo)), (50, 75), RAPP_SIZES)
        score_tables += promises("ParvaGPU, slices of an A100", list(parvagpu(advisor, data, zoo)), (43, 57), SLICES)
        score_tables.append(packing(data))
    return score_tables


def examples(advisor: Advisor) -> ScoreTable:
    """Return how many of the 96 submissions become a share, with the goals."""
    rows: list[tuple[Cell, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, rules, keys, goal in CASES:
            ruled = replace(advisor, rules=Rules(sharing=rules))
            shares, walled = (list(example_shares(ruled, Path(folder), keys, limit)) for limit in ("cap", "wall"))
            training = sum(mode == "train" for mode, _ in shares)
            mean = round(sum(share for _, share in shares) / max(len(shares), 1))
            rows.append((name, len(shares), len(walled), training, mean, None if goal is None else f">= {goal}"))
    return ScoreTable(
        title="96 submissions to the example cluster",
        columns=("rule, and what the jobs say", "share on cap", "on wall", "training", "mean share %", "goal"),
        rows=tuple(rows),
    )


def example_shares(advisor: Advisor, folder: Path, keys: str, limit: LimitedBy) -> Iterator[tuple[str, int]]:
    """Yield mode and percentage of each submission that becomes a share where *limit* limits memory."""
    cluster = example_cluster("slurm", advisor.catalogue)
    cluster = replace(cluster, pools=tuple(replace(pool, limited_by=limit) for pool in cluster.pools))
    # The 96 jobs are this site's week: a share counts if one of theirs fits beside it.
    rewritten = [*rewritten_jobs(advisor, folder, keys, cluster)]
    smallest: dict[str, int] = {}
    for _, request, percent in rewritten:
        for name in request.required_gpus or ("",):
            smallest[name] = min(percent, smallest.get(name, percent))
    cluster = replace(cluster, smallest_shares=smallest)
    rewritten = [*rewritten_jobs(advisor, folder, keys, cluster)]
    yield from ((mode, percent) for mode, _, percent in rewritten)


def rewritten_jobs(
    advisor: Advisor, folder: Path, keys: str, cluster: Cluster
) -> Iterator[tuple[str, GpuRequest, int]]:
    """Yield mode, request and percentage of each submission that becomes a share on *cluster*."""
    for model in sorted(MODELS.glob("*.onnx")):
        for mode, batch in RUNS:
            comment = f"model={model},mode={mode},batch={batch},precision=fp16{keys}"
            text = f'#!/bin/sh\n#SBATCH --gres=gpu:1\n#SBATCH --comment="{comment}"\n'
            outcome = validate(Script(path=str(folder / "job.sh"), text=text), cluster, advisor).outcome
            request = outcome.decision.request if outcome else None
            if request is not None and request.mps_thread_percent is not None:
                yield mode, request, request.mps_thread_percent


def zoo_shares(advisor: Advisor) -> ScoreTable:
    """Return which part of the zoo's jobs has a share at each limit, and the GPU time that is saved by it."""
    zoo, gpus = load_zoo(), [advisor.catalogue.find(name) for name in GPUS]
    keys = random.Random(7).sample(sorted(zoo), MODEL_COUNT)  # the same each time
    jobs = [candidates(advisor, zoo.graph(key), run, gpus) for key in keys for run in ZOO_RUNS]
    priced = list(zip(*jobs, strict=True))
    rows = ((f"{limit:g}", *(within(limits(SharingRules(), limit), of_gpu) for of_gpu in priced)) for limit in LIMITS)
    return ScoreTable(
        title=f"{MODEL_COUNT} models of the zoo: jobs with a share, and the GPU time that all jobs together save",
        columns=("a step may take, times as long", *GPUS),
        rows=tuple(rows),
    )


def within(limit: Limits, jobs: Sequence[Candidate]) -> str:
    """Return the part of *jobs* that has a share, and what that saves."""
    taken = [best for candidate in jobs if (best := cheapest(candidate, limit))]
    saved = sum(1 - offer.gpu_time for offer in taken) / len(jobs)
    return f"{100 * len(taken) / len(jobs):.0f} %, saves {100 * saved:.0f} %"


def candidates(advisor: Advisor, graph: ModelGraph, run: Workload, gpus: Sequence[Gpu]) -> list[Candidate]:
    """Return what a job needs on each of *gpus*, with the price of each size."""
    priced = zip(
        gpus, advisor.predict(graph, run, gpus), advisor.price(graph, run, gpus, SharingRules().sizes), strict=True
    )
    return [candidate_of(gpu, need, prices) for gpu, need, prices in priced]


def promises(
    source: str, jobs: Sequence[Measured], constants: Sequence[int], sizes: Sequence[int]
) -> Iterator[ScoreTable]:
    """Yield, for each limit, how often each rule's promise is kept on measured prices."""
    for limit in LIMITS:
        yield ScoreTable(
            title=f"{source}, {len(jobs)} models and batch sizes: at most {100 * (limit - 1):.0f} % slower",
            columns=("rule", "with a share %", "mean share %", "GPU time %", "kept %", "kept of the shares %", "goal"),
            rows=tuple(promise(line) for line in promise_scores(jobs, rules_at(limit, constants, sizes), limit)),
        )


def promise(line: PromiseScore) -> tuple[Cell, ...]:
    """Return the cells of one rule."""
    cells = (
        line.shares_percent,
        line.mean_share_percent,
        line.gpu_time_percent,
        line.met_percent,
        line.of_shares_percent,
    )
    return (line.rule, *map(round, cells), f">= {GOAL_WITHIN} % kept" if line.rule == PROMISED else None)


def packing(data: DataFolder) -> ScoreTable:
    """Return how often two jobs of known utilizations, packed without a cap, slow one of them by more than 25 %."""
    alone = data.read(LUCID_ALONE).itertuples()
    percents = {(row.model, row.dataset, row.batch_size, row.amp): row.gpu_util_pct for row in alone}
    pairs = [
        (percents[first] + percents[second], worse)
        for first, second, worse in lucid_pairs(data)
        if first in percents and second in percents
    ]
    rows = []
    for most in (100, 130, 200):
        packed = [worse for total, worse in pairs if total <= most]
        broken = sum(worse < LUCID_LEAST_SPEED for worse in packed)
        rows.append((most, round(100 * len(packed) / max(len(pairs), 1)), 100 * broken / max(len(packed), 1)))
    columns = ("sum of utilizations at most %", "of all pairs %", "one job more than 25 % slower, %")
    return ScoreTable(title="Lucid's pairs, no cap", columns=columns, rows=tuple(rows))


def lucid_pairs(data: DataFolder) -> Iterator[tuple[tuple[object, ...], tuple[object, ...], float]]:
    """Yield both jobs of each pair and the speed of the one that suffers more, against alone."""
    for row in data.read(LUCID).itertuples():
        first = row.model1, row.dataset1, row.batch_size_1, row.amp1
        second = row.model2, row.dataset2, row.batch_size_2, row.amp2
        yield first, second, min(row.norm_speed_1, row.norm_speed_2)


main = command_of("yield", tables, ())

if __name__ == "__main__":
    main()
