"""What the advisor predicts for each kind of jobs on each GPU type, each asked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from gpusage.cli import options
from gpusage.decisions.advisor import Advisor
from gpusage.policies.share_price import sizes
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import GpuNeed, ModelGraph, Price, SharingRules, Workload
from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.simulator.foresight import FloatArray, Foresight, load_of, pairs_of
from gpusage_planning.simulator.jobs import Jobs, Kind
from gpusage_planning.zoo import load_zoo

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


def make_foresight(models: Models, fleet: Fleet, count: int) -> Foresight:
    """Return the predictions for *count* kinds, as policies see them."""
    loads = {key: load_of(need) for key, need in models.needs.items()}
    return Foresight(
        loads=loads, pair_throughputs=tuple(_pairs(models, place, count) for place in range(len(fleet.types)))
    )


def _pairs(models: Models, place: int, count: int) -> FloatArray:
    """Return the throughputs of pairs on one GPU type; 1 where nothing is known, which no policy reads."""
    known = [kind for kind in range(count) if (kind, place) in models.needs]
    matrix = np.ones((count, count))
    if known:
        matrix[np.ix_(known, known)] = pairs_of([models.needs[kind, place] for kind in known])
    return matrix


def _read(kind: Kind, advisor: Advisor, folder: Path) -> tuple[ModelGraph, Workload]:
    """Return the graph, from the zoo or from a file, and how it is run."""
    text, zoo = kind.model or "", load_zoo()
    if text in zoo:
        return zoo.graph(text), kind.workload
    (request,) = options.read_requests([text], {})
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
    return _of_used_kinds(replace(jobs, kind=kind, kinds=(*jobs.kinds, *numbers)))


def _of_used_kinds(jobs: Jobs) -> Jobs:
    """Return *jobs* without kinds that none of them is of."""
    used, kind = np.unique(jobs.kind, return_inverse=True)
    return replace(jobs, kind=kind.astype(np.int32), kinds=tuple(jobs.kinds[place] for place in used))
