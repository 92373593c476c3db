"""What policies see: the advisor's predictions for each kind of jobs on each GPU type, and who fits beside whom.

Jobs share a GPU by their utilizations, which is Yeung's way, or by what a set would do together. The latter is KACE's
beyond pairs: a job joins the set to whose throughput it adds most, if nobody becomes slower than was promised.

Source:
    Yeung et al., "Towards GPU Utilization Prediction for Cloud Deep Learning", HotCloud 2020.
    Han et al., "KACE", SoCC 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from gpusage.cli import options
from gpusage.decisions.advisor import Advisor
from gpusage.policies.share_price import MOST_GPU_TIME, sizes
from gpusage.predictors.artifacts import pretrained
from gpusage.predictors.sharing.colocation import features_of, learn_pairs, learned_colocation, pair_throughputs
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import GpuNeed, ModelGraph, Price, SharingRules, Workload
from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_planning.simulator.contract import FloatArray, Jobs, Kind
from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.zoo import load_zoo

MOST_JOBS = 3
"""On one GPU, as in Yeung et al."""
ROUNDING = 1e-9
"""Of a sum of shares that are 1 together."""
LEAST_ADDED = 1 / MOST_GPU_TIME - 1
"""Throughput that a job must add to a set, in parts of a whole GPU: a share must save as much (`price`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one job takes of a GPU: its busy share (0 to 1) and its memory."""

    utilization: float
    memory_bytes: float


def fits(loads: Sequence[Load], memory_bytes: float) -> bool:
    """Return whether *loads* may run on one GPU of so much memory together; one alone may have all of its time."""
    busy = sum(load.utilization for load in loads)
    is_enough = sum(load.memory_bytes for load in loads) <= memory_bytes
    return is_enough and len(loads) <= MOST_JOBS and (len(loads) <= 1 or busy <= 1.0 + ROUNDING)


def added(before: Sequence[float], after: Sequence[float], accepted_slowdown: float) -> float | None:
    """Return what a job adds to the throughput of a set, in parts of a whole GPU; ``None`` where it must not join.

    Args:
        before: Throughput of each job of the set, relative to running alone.
        after: The same with the newcomer.
        accepted_slowdown: How many times as long a step of any of them may take.
    """
    gain = sum(after) - sum(before)
    slowest = min(after)
    return gain if slowest * accepted_slowdown >= 1 and (not before or gain >= LEAST_ADDED) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Foresight:
    """Predictions for the kinds that have a model, by kind and GPU type.

    Attributes:
        loads: What a job takes of a GPU.
        pair_throughputs: For each GPU type, the throughput of each row's kind beside each column's, relative to alone.
    """

    loads: Mapping[tuple[int, int], Load]
    pair_throughputs: Sequence[FloatArray]


def colocated_throughputs(pair_throughputs: FloatArray, kinds: Sequence[int]) -> tuple[float, ...]:
    """Return each job's throughput relative to alone; the delays that its partners cause add up."""
    return tuple(
        1 / (1 + sum(1 / pair_throughputs[one, other] - 1 for place, other in enumerate(kinds) if place != own))
        for own, one in enumerate(kinds)
    )


def pairs_of(needs: Sequence[GpuNeed], measured: FloatArray | None = None) -> FloatArray:
    """Return the predicted throughput of each of *needs* beside each, relative to alone.

    Args:
        needs: Of the jobs.
        measured: The same as the site measured it, NaN where it did not; all are predicted by what that shows.
    """
    rows, models, learned = features_of(needs), [need.parameter_count for need in needs], pretrained().colocation
    if measured is not None and not np.isnan(measured).all():
        learned = learn_pairs(learned, rows, models, measured)
    return pair_throughputs(learned_colocation(learned), rows, models)[0]


def load_of(need: GpuNeed) -> Load:
    """Return what a job with *need* is expected to take; the memory is what a share would book."""
    return Load(utilization=need.gpu_utilization.value, memory_bytes=need.share_memory_bytes)


WORKLOADS = tuple(Workload(batch_size=batch, precision="fp16") for batch in (16, 64))
DRAWN = (
    "torchvision:resnet18@224", "torchvision:resnet50@224", "torchvision:mobilenet_v2@224", "torchvision:vgg16@224",
    "torchvision:densenet121@224", "torchvision:efficientnet_b0@224", "gavel:lm@35", "gavel:transformer@32",
    "gavel:recommendation@20108", "torchvision:regnet_y_400mf@224", "lucid:bert@384", "lucid:neumf@1",
)  # fmt: skip
"""Models of the zoo that generated jobs train."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Models:
    """The kinds that have a model, by their number.

    Attributes:
        needs: By kind and GPU type.
        prices: The same of what shares cost.
        unreadable: Why the model of a kind cannot be read, by the kind's number; one sentence each.
    """

    graphs: Mapping[int, ModelGraph]
    workloads: Mapping[int, Workload]
    needs: Mapping[tuple[int, int], GpuNeed]
    prices: Mapping[tuple[int, int], tuple[Price, ...]]
    unreadable: Mapping[int, str] = field(default_factory=dict)


def draw_kinds(gpu_type: str | None = None) -> tuple[Kind, ...]:
    """Return the kinds that generated jobs are of."""
    zoo = load_zoo()
    return tuple(
        Kind(name=f"{key}, batch {run.batch_size}", model=key, workload=run, gpu_type=gpu_type)
        for key in DRAWN
        if key in zoo
        for run in WORKLOADS
    )


def read_models(kinds: Sequence[Kind], fleet: Fleet, advisor: Advisor, folder: Path) -> Models:
    """Return what is predicted for *kinds*; paths of models count from *folder*."""
    graphs: dict[int, ModelGraph] = {}
    workloads: dict[int, Workload] = {}
    needs: dict[tuple[int, int], GpuNeed] = {}
    prices: dict[tuple[int, int], tuple[Price, ...]] = {}
    unreadable: dict[int, str] = {}
    places = [index for index, one in enumerate(fleet.types) if one.gpu is not None]
    gpus = [one.gpu for one in fleet.types if one.gpu is not None]

    for number, kind in enumerate(kinds):
        if kind.model is None:
            continue
        try:
            graph, run = _read(kind, advisor, folder)
            predicted = advisor.predict(graph, run, gpus)
            priced = advisor.price(graph, run, gpus, sizes(SharingRules()))
        except GpuUsageError as error:
            unreadable[number] = str(error)
            continue
        graphs[number], workloads[number] = graph, run
        needs.update({(number, place): need for place, need in zip(places, predicted, strict=True)})
        prices.update({(number, place): price for place, price in zip(places, priced, strict=True)})

    return Models(graphs=graphs, workloads=workloads, needs=needs, prices=prices, unreadable=unreadable)


def make_foresight(models: Models, fleet: Fleet, count: int, measured: Sequence[FloatArray] = ()) -> Foresight:
    """Return the predictions for *count* kinds, as policies see them; *measured* has each type's pairs, NaN if none."""
    loads = {key: load_of(need) for key, need in models.needs.items()}
    unmeasured = np.full((count, count), np.nan)
    matrices = []
    for place in range(len(fleet.types)):
        known = [kind for kind in range(count) if (kind, place) in models.needs]
        matrix = np.ones((count, count))  # of an unknown kind, which no policy reads
        if known:
            # Only known kinds are predicted; the predictor takes them all at once.
            shown = (measured[place] if measured else unmeasured)[np.ix_(known, known)]
            matrix[np.ix_(known, known)] = pairs_of([models.needs[kind, place] for kind in known], shown)
        matrices.append(matrix)
    return Foresight(loads=loads, pair_throughputs=tuple(matrices))


def _read(kind: Kind, advisor: Advisor, folder: Path) -> tuple[ModelGraph, Workload]:
    """Return the graph, from the zoo or from a file, and how it is run."""
    text, zoo = kind.model or "", load_zoo()
    if text in zoo:
        return zoo.graph(text), kind.workload
    request = options.read_request(text, {})
    path = options.resolve_model_path(folder, request.model)
    return advisor.read(path, dict(request.workload.shape)), request.workload


def with_drawn_models(jobs: Jobs, seed: int) -> Jobs:
    """Return *jobs*, where those without a model that ask for whole GPUs have one of those of generated jobs.

    A user's jobs for one GPU type and number of GPUs have the same one: people run what they ran before.
    """
    models, generator = draw_kinds(), np.random.default_rng(seed)
    numbers: dict[Kind, int] = {}
    drawn: dict[tuple[int, int, int], int] = {}
    kind = jobs.kind.copy()

    for job, group in enumerate(zip(jobs.user.tolist(), jobs.kind.tolist(), jobs.gpu_count.tolist(), strict=True)):
        before = jobs.kinds[group[1]]
        if before.model is not None or before.share_percent < WHOLE_PERCENT:
            continue
        if group not in drawn:
            new = replace(models[generator.integers(len(models))], gpu_type=before.gpu_type)
            drawn[group] = numbers.setdefault(new, len(jobs.kinds) + len(numbers))
        kind[job] = drawn[group]

    # Kinds of which no job is left would be predicted for nothing.
    used, kind = np.unique(kind, return_inverse=True)
    kinds = (*jobs.kinds, *numbers)
    return replace(jobs, kind=kind.astype(np.int32), kinds=tuple(kinds[place] for place in used))
