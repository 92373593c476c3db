"""GPU busy by the account of kernels and gaps, against measured jobs: for other lengths of the gaps, and other batches.

Run: ``python bench/busy_account.py --data ../shared/data``, a minute. It prints the tables of decision 46: RMSLE on
percent for each gap, sealed families left out unless ``--sealed bench/looks.txt`` counts the look; and how far a larger
batch lowers GPU busy of models of the zoo, on each GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.artifacts import ActivityParameters, pretrained
from gpusage.predictors.times.activity import GREATEST_SHARE, gaps_of
from gpusage_hooks.types import Gpu, Mode, ModelGraph, Precision, Workload
from gpusage_lab.learning import random_networks
from gpusage_lab.learning.activity_rows import random_cases
from gpusage_lab.learning.activity_tests import real_tests
from gpusage_lab.learning.scores import rmsle
from gpusage_lab.learning.seal import count_evaluation, is_sealed
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.zoo import load_zoo

USUAL = Path(__file__).resolve().parents[2] / "shared" / "data"
GAPS_US = (0, 10, 20, 25, 30, 40, 50)
RANDOM_ROWS = 1200
BATCH_SIZES = (1, 2, 3, 4, 7, 8, 16, 17, 32, 64, 100, 128, 256, 512)
RUNS: tuple[tuple[Mode, Precision], ...] = (("train", "fp32"), ("train", "bf16"), ("infer", "fp16"))
FAMILIES = {
    "bert": "BERT", "bert_base_squad": "BERT", "resnet50": "ResNet50", "IC": "ResNet50", "RT": "gnmt",
    "TL": "Transformer", "RM": "NeuMF", "cyclegan": "CycleGAN", "mobilenet_v2": "MobileNetV2",
}  # fmt: skip
"""Of models that the sources name in different ways."""


class Run(NamedTuple):
    """One measured run: its utilization in percent, and what is said of it for each of `GAPS_US`."""

    source: str
    is_sealed: bool
    measured: float
    estimates: list[float]


def run_of(source: str, family: str, graph: ModelGraph, workload: Workload, gpu: Gpu, measured: float) -> Run:
    """Return one run."""
    analysis = WorkloadAnalysis(graph, workload)
    timing, count = analysis.timing([gpu]), float(analysis.kernels.counts.sum())
    gaps = [gaps_of(_with_gaps(gap_us), workload.mode, count) for gap_us in GAPS_US]
    busy = [100.0 * min(timing.busy_s[0] / (timing.step_s[0] + gaps_s), GREATEST_SHARE) for gaps_s in gaps]
    return Run(source, is_sealed(family), measured, busy)


def _with_gaps(gap_us: float) -> ActivityParameters:
    return replace(pretrained().activity, gap_s=1e-6 * gap_us)


def runs_of(data: DataFolder) -> Iterator[Run]:
    """Yield runs of real models, and some of the random networks, which wait for their data."""
    for test in real_tests(data):
        if test.utilization is not None:
            family = FAMILIES.get(test.model, test.model)
            yield run_of(test.source, family, test.graph, test.workload, test.gpu, test.utilization)
    cases = list(random_cases(random_networks.load(data)))
    for number in np.random.default_rng(0).choice(len(cases), min(RANDOM_ROWS, len(cases)), replace=False):
        case = cases[number]
        yield run_of("random networks", case.architecture, case.graph, case.workload, case.gpu, case.measured[0])


def show_gaps(name: str, runs: Sequence[Run]) -> None:
    """Print one line a source."""
    print(f"{name}; gaps of {', '.join(map(str, GAPS_US))} us")
    for source in sorted({run.source for run in runs}):
        rows = [run for run in runs if run.source == source]
        truth, estimates = np.array([run.measured for run in rows]), np.array([run.estimates for run in rows])
        errors = " ".join(f"{rmsle(truth, column):.3f}" for column in estimates.T)
        print(f"  {source}, {len(rows)} runs: {errors}")


def falls() -> Iterator[float]:
    """Yield how far each next batch lowers GPU busy, at most over the GPUs: 0 or less where it does not."""
    zoo, gpus = load_zoo(), [gpu for gpu in builtin_catalogue() if not gpu.parent_gpu]
    for key, (mode, precision) in product(sorted(zoo), RUNS):
        runs = [Workload(batch_size=size, mode=mode, precision=precision) for size in BATCH_SIZES]
        estimates = [
            [each.gpu_utilization.value for each in WorkloadAnalysis(zoo.graph(key), run).activity(gpus)]
            for run in runs
        ]
        yield from (float((np.array(before) - after).max()) for before, after in pairwise(estimates))


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=USUAL)
@click.option(
    "--sealed", type=click.Path(path_type=Path, dir_okay=False), help="Show all families; count the look here."
)
def main(data: Path, sealed: Path | None) -> None:
    """Print the tables."""
    if not data.is_dir():
        click.echo(f"Folder '{data}' must have the public measurements; got none. Name it with --data.", err=True)
        return
    runs = list(runs_of(DataFolder(data)))
    show_gaps("Open families", [run for run in runs if not run.is_sealed])
    if sealed:
        count_evaluation(sealed, ["activity"])
        show_gaps("All families", runs)
    steps = list(falls())
    print(f"GPU busy falls in {sum(step > 0 for step in steps)} of {len(steps)} larger batches, by {max(steps):.1e}")


if __name__ == "__main__":
    main()
