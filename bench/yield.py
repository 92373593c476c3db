"""How many jobs get a share, of what size, and how often its promise would be broken on measured prices.

The 96 submissions of the example models are decided as `gpusage validate` does it on the example cluster, models of
the zoo on one GPU type at a time. For measured prices of inference on a V100 (RaPP) each rule sees what a user could
tell it, and the measurement says whether its promise was kept. An oracle and constants stand beside. Lucid's pairs,
which nothing here was fitted on, say how often packing by known utilizations is broken.

Example: python bench/yield.py --data ../shared/data
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gpusage.advisor import Advisor, make_advisor
from gpusage.cli.cluster_file import example_cluster
from gpusage.cli.scripts import Script
from gpusage.cli.validate import validate
from gpusage.policies.price import Limits, Offer, holds, limits
from gpusage.policies.sharing import granted_percent
from gpusage.verdict import Premises
from gpusage_hooks.types import Alone, GpuPool, Mode, ModelGraph, Place, Rules, SharingRules, Workload
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.zoo.cards import load_zoo

MODELS = Path(__file__).parent.parent / "examples" / "models"
RAPP, LUCID, LUCID_ALONE = "rapp_mps_percent.csv.gz", "lucid_pairs.csv", "lucid_solo.csv"
SIZES = (25, 35, 50, 75)
"""Percentages that RaPP measured; 35 stands for a third."""
WHOLE = 100
MOST_ACTIVITY = 80
GOAL_KEPT = 90
LUCID_KEPT = 0.8
"""Of the speed alone: a step takes a quarter longer."""
RUNS: tuple[tuple[Mode, int], ...] = (
    ("infer", 1),
    ("infer", 8),
    ("infer", 32),
    ("train", 8),
    ("train", 32),
    ("train", 64),
)
CASES = (
    ("by SM activity, as before", SharingRules(rule="activity"), "", None),
    ("by price", SharingRules(), "", 22),
    ("by price, slowdown=1.5", SharingRules(), ",slowdown=1.5", 45),
    ("by price, slowdown=2", SharingRules(), ",slowdown=2", None),
    ("by price, utilization=60", SharingRules(), ",utilization=60", 80),
    ("by price, binding never", SharingRules(bind="never"), "", None),
)
LIMITS = (1.1, 1.25, 1.5, 2.0)
GPUS = ("v100", "a100", "h100")
console = Console(highlight=False, width=max(Console().width, 110))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One model and batch size of RaPP: the measured slowdown at each percentage, and what is predicted."""

    place: Place
    activity_percent: int
    slowdowns: dict[int, float]


def main() -> int:
    """Print the tables; return 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, help="folder of the public measurements; without it, no promise is checked"
    )
    parser.add_argument("--models", type=int, default=40, help="models drawn from the zoo (default 40)")
    options = parser.parse_args()
    advisor = make_advisor()
    met = show_examples(advisor)
    show_zoo(advisor, options.models)
    if options.data:
        data = DataFolder(options.data)
        met &= show_promises(advisor, data)
        show_packing(data)
    return 0 if met else 1


def show_examples(advisor: Advisor) -> bool:
    """Show how many of the 96 submissions become a share; return whether the goals are met."""
    table = Table("rule", "shares of 96", "of them training", "mean share %", "goal", title="Example cluster")
    met = True
    with tempfile.TemporaryDirectory() as folder:
        for name, rules, wish, goal in CASES:
            shares = list(example_shares(replace(advisor, rules=Rules(sharing=rules)), Path(folder), wish))
            training = sum(mode == "train" for mode, _ in shares)
            mean = sum(share for _, share in shares) / max(len(shares), 1)
            met &= goal is None or len(shares) >= goal
            table.add_row(name, str(len(shares)), str(training), f"{mean:.0f}", "" if goal is None else f">= {goal}")
    console.print(table)
    return met


def example_shares(advisor: Advisor, folder: Path, wish: str) -> Iterator[tuple[str, int]]:
    """Yield mode and percentage of each submission that becomes a share."""
    premises = Premises(advisor=advisor, mode="enforce")
    cluster = example_cluster("slurm", advisor.catalogue)
    for model in sorted(MODELS.glob("*.onnx")):
        for mode, batch in RUNS:
            comment = f"model={model},mode={mode},batch={batch},precision=fp16{wish}"
            text = f'#!/bin/sh\n#SBATCH --gres=gpu:1\n#SBATCH --comment="{comment}"\n'
            verdict = validate(Script(path=str(folder / "job.sh"), text=text), cluster, premises).verdict
            share = verdict.decision.request.mps_thread_percent if verdict else None
            if share is not None:
                yield mode, share


def show_zoo(advisor: Advisor, count: int) -> None:
    """Show which part of the zoo's jobs has a share at each limit, and the GPU time that is saved by it."""
    zoo, table = (
        load_zoo(),
        Table("limit", *GPUS, title=f"{count} models of the zoo, share of jobs / GPU time saved, %"),
    )
    keys = random.Random(7).sample(sorted(zoo), count)  # noqa: S311 - the same each time
    priced = {
        gpu: [
            place
            for key in keys
            for mode, batch in RUNS
            for place in [
                place_of(advisor, zoo.graph(key), Workload(mode=mode, batch_size=batch, precision="fp16"), gpu)
            ]
        ]
        for gpu in GPUS
    }
    for limit in LIMITS:
        within = limits(SharingRules(), limit)
        cells = []
        for gpu in GPUS:
            taken = [best for place in priced[gpu] if (best := cheapest(place, within))]
            saved = sum(1 - offer.gpu_time for offer in taken) / len(priced[gpu])
            cells.append(f"{100 * len(taken) / len(priced[gpu]):.0f} / {100 * saved:.0f}")
        table.add_row(f"{limit:g}", *cells)
    console.print(table)


def place_of(
    advisor: Advisor,
    graph: ModelGraph,
    workload: Workload,
    name: str,
    sizes: Sequence[int] = (25, 33, 50, 75),
) -> Place:
    """Return what a job needs on one GPU, with the price of each size."""
    gpu = advisor.catalogue.find(name)
    pool = GpuPool(gpu=gpu.name, site_type=name, gpu_count=1, free_gpu_count=1, mps_per_gpu=WHOLE)
    (need,), (shares,) = advisor.predict(graph, workload, [gpu]), advisor.price(graph, workload, [gpu], sizes)
    return Place(pool=pool, gpu=gpu, need=need, shares=shares)


def cheapest(place: Place, within: Limits) -> Offer | None:
    """Return the share that the rule takes at *place*."""
    offers = (Offer(place=place, price=price) for price in place.shares)
    return min((offer for offer in offers if holds(offer, within)), key=lambda offer: offer.gpu_time, default=None)


def show_promises(advisor: Advisor, data: DataFolder) -> bool:
    """Show how often each rule's promise is kept on RaPP; return whether the price's is broken in 10 % at most."""
    known, unknown = list(measured(advisor, data, known=True)), list(measured(advisor, data, known=False))
    met = True
    for limit in LIMITS[:3]:
        within = limits(SharingRules(), limit)
        table = Table(
            "rule", "shares %", "mean share %", "kept %", "kept of the shares %",
            title=f"RaPP, {len(known)} models and batch sizes on a V100: at most {100 * (limit - 1):.0f} % slower",
        )  # fmt: skip
        rules: dict[str, tuple[list[Measured], Callable[[Measured], int]]] = {
            "price, step time known": (known, lambda job, within=within: by_price(job, within)),  # type: ignore[misc]
            "price, nothing known": (unknown, lambda job, within=within: by_price(job, within)),  # type: ignore[misc]
            "SM activity, as before": (
                unknown,
                lambda job: job.activity_percent if job.activity_percent <= MOST_ACTIVITY else WHOLE,
            ),
            "always 50 %": (known, lambda _: 50),
            "always 75 %": (known, lambda _: 75),
            "oracle": (known, lambda job, limit=limit: oracle(job, limit)),  # type: ignore[misc]
        }
        for name, (jobs, rule) in rules.items():
            chosen = [(job, rule(job)) for job in jobs]
            shares = [(job, size) for job, size in chosen if size < WHOLE]
            kept = [slowdown_at(job, size) <= limit for job, size in shares]
            of_shares = 100 * sum(kept) / max(len(kept), 1)
            all_kept = 100 * (len(chosen) - len(kept) + sum(kept)) / len(chosen)
            mean = sum(size for _, size in chosen) / len(chosen)
            table.add_row(
                name, f"{100 * len(shares) / len(chosen):.0f}", f"{mean:.0f}", f"{all_kept:.0f}", f"{of_shares:.0f}"
            )
            met &= name != "price, step time known" or all_kept >= GOAL_KEPT
        console.print(table)
    return met


def measured(advisor: Advisor, data: DataFolder, *, known: bool) -> Iterator[Measured]:
    """Yield RaPP's jobs whose model the zoo has; *known* tells their step time alone, as a user may."""
    table, zoo = data.read(RAPP), load_zoo()
    table = table[table["time_quota_percent"] == WHOLE]
    for (model, batch), group in table.groupby(["model", "batch_size"]):
        key = f"torchvision:{model}@224"
        if key not in zoo:
            continue
        latency_ms = group.set_index("mps_percent")["latency_ms"]
        whole_ms = float(latency_ms[latency_ms.index >= 85].median())  # noqa: PLR2004 - as the fits do
        alone = Alone(step_time_s=whole_ms / 1e3) if known else Alone()
        workload = Workload(mode="infer", batch_size=int(batch), alone=alone)
        place = place_of(advisor, zoo.graph(key), workload, "v100", SIZES)
        activity = granted_percent(round(100 * place.need.sm_activity.high + 10), SharingRules(rule="activity"))
        slowdowns = {int(percent): max(float(ms) / whole_ms, 1.0) for percent, ms in latency_ms.items()}
        yield Measured(place=place, activity_percent=activity, slowdowns=slowdowns)


def by_price(job: Measured, within: Limits) -> int:
    """Return the share of the price's rule."""
    offer = cheapest(job.place, within)
    return offer.share_percent if offer else WHOLE


def oracle(job: Measured, limit: float) -> int:
    """Return the smallest share that keeps the limit."""
    return min((size for size in SIZES if slowdown_at(job, size) <= limit), default=WHOLE)


def slowdown_at(job: Measured, size: int) -> float:
    """Return the measured slowdown at the nearest percentage that was measured, in steps of 5."""
    return job.slowdowns.get(5 * round(size / 5), 1.0)


def show_packing(data: DataFolder) -> None:
    """Show how often two jobs of known utilizations, packed without a cap, slow one of them by more than 25 %."""
    rows = data.read(LUCID_ALONE).itertuples()
    percents = {(row.model, row.dataset, row.batch_size, row.amp): row.gpu_util_pct for row in rows}
    pairs = [
        (percents[first] + percents[second], worse)
        for first, second, worse in lucid_pairs(data)
        if first in percents and second in percents
    ]
    table = Table("sum of utilizations at most %", "of all pairs %", "broken %", title="Lucid's pairs, no cap")
    for most in (100, 130, 200):
        packed = [worse for total, worse in pairs if total <= most]
        broken = sum(worse < LUCID_KEPT for worse in packed)
        table.add_row(
            str(most), f"{100 * len(packed) / max(len(pairs), 1):.0f}", f"{100 * broken / max(len(packed), 1):.1f}"
        )
    console.print(table)


def lucid_pairs(data: DataFolder) -> Iterator[tuple[tuple[object, ...], tuple[object, ...], float]]:
    """Yield both jobs of each pair and the speed of the one that suffers more, against alone."""
    for row in data.read(LUCID).itertuples():
        first = row.model1, row.dataset1, row.batch_size_1, row.amp1
        second = row.model2, row.dataset2, row.batch_size_2, row.amp2
        yield first, second, min(row.norm_speed_1, row.norm_speed_2)


if __name__ == "__main__":
    sys.exit(main())
