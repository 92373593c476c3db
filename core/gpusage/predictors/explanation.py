"""Explains a prediction: where one step's time goes, by operator class and by layer, and what fills the memory.

What the memory prediction has beyond the tensors of the liveness walk was learned from measured peaks, and cannot be
split further: workspaces of the libraries, blocks that the caching allocator holds, copies that the update makes.

Invariants:

1. The classes' seconds and `Explanation.waiting_s` add up to the predicted step time: one account of the step, by which
   kernels, SMs and memory are busy for a part of it each.
2. Layers hold every node once, in the graph's order; what belongs to no node (loss, update, casts) is in the classes
   alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np

from gpusage.devices.precisions import FLOAT_BYTES
from gpusage.devices.shares import alone_on
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.arrays import FloatArray, IntArray
from gpusage.predictors.known import NOTHING_KNOWN
from gpusage.predictors.memory.liveness import Walk, step_walk, trained_share, walk
from gpusage.predictors.memory.peak import LOSS_BYTES, context_of, narrower_bytes, peak_pass, state_bytes, weight_share
from gpusage.predictors.parallel.data_parallel import sharding_of
from gpusage.predictors.sharing.slowdown import kernel_growths
from gpusage.predictors.times.kernels import Kernels
from gpusage.predictors.times.step_time import times_on
from gpusage.predictors.work.kind_table import SUM_CLASSES
from gpusage.predictors.work.lowering import Lowering, weight_memory_bytes
from gpusage.predictors.work.operators import OperatorClass
from gpusage.predictors.work.structure import Role
from gpusage_hooks.types import Gpu, ModelGraph, ObservedFigures, Shape, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """Bytes of one purpose, with their *operator_class* if it is known."""

    name: str
    memory_bytes: float
    operator_class: OperatorClass | None = None


REST = "workspace and allocator"


def memory_parts(analysis: WorkloadAnalysis, gpu: Gpu) -> list[MemoryPart]:
    """Return the parts of the predicted peak on *gpu*; they add up to it."""
    total = analysis.memory_bytes([gpu])[0].value

    # Of a pipeline, the GPU that needs most; of an answer, the pass in which most is there.
    analysis = analysis.fullest_stage
    lowering, workload, cached_bytes = analysis.lowering, analysis.workload, 0.0
    if analysis.divided_decoding:
        held = analysis.divided_decoding.held
        lowering, cached_bytes = peak_pass(analysis.graph, held, workload.batch_size)
    tensors = step_walk(analysis.graph, lowering, workload, analysis.checkpoints)

    known = [*(_training if lowering.train else _inference)(lowering, tensors, workload)]
    known.append(MemoryPart(name="keys and values", memory_bytes=cached_bytes))
    others = tensors.other_batches_bytes(analysis.in_flight)
    known.append(MemoryPart(name="activations of other micro-batches", memory_bytes=others))
    known.append(MemoryPart(name="CUDA context", memory_bytes=float(context_of(gpu).value)))

    rest = MemoryPart(name=REST, memory_bytes=total - sum(part.memory_bytes for part in known))
    return [part for part in (*known, rest) if part.memory_bytes]


def _training(lowering: Lowering, tensors: Walk, workload: Workload) -> Iterator[MemoryPart]:
    count, share = float(lowering.parameter_count), trained_share(workload)
    division = sharding_of(lowering, workload)
    weights = count * FLOAT_BYTES["fp32"] * weight_share(workload) - narrower_bytes(lowering, workload)
    yield MemoryPart(name="parameters", memory_bytes=weights * division.weights)
    state = count * state_bytes(workload, lowering) * share
    yield MemoryPart(name="optimizer", memory_bytes=state * division.state)
    yield MemoryPart(name="buckets of gradients", memory_bytes=division.bucket_bytes)
    yield MemoryPart(name="gathered layers", memory_bytes=division.gathered_bytes)
    yield MemoryPart(name="inputs", memory_bytes=tensors.input_bytes)
    yield MemoryPart(name="loss", memory_bytes=LOSS_BYTES * lowering.output_elements_of_model)
    if not len(tensors.stored):
        return

    # The node at which the backward pass has most: what is saved until there, and what flows.
    peak = int(np.argmax(tensors.saved_until() + tensors.live + tensors.gradients))
    yield MemoryPart(name="gradients", memory_bytes=float(tensors.gradients[peak]))
    yield MemoryPart(name="gradients of activations", memory_bytes=float(tensors.live[peak]))
    yield from _by_class("activations", lowering, tensors.saved_at(peak))


def _inference(lowering: Lowering, tensors: Walk, workload: Workload) -> Iterator[MemoryPart]:
    yield MemoryPart(name="parameters", memory_bytes=weight_memory_bytes(lowering, workload.precision))
    yield MemoryPart(name="inputs", memory_bytes=tensors.input_bytes)
    if not len(tensors.stored):
        return
    peak, nodes = int(np.argmax(tensors.live)), np.arange(len(tensors.stored))
    lives = (nodes <= peak) & (lowering.structure.last_reader >= peak)
    yield from _by_class("activations", lowering, np.where(lives, tensors.stored, 0.0))


def _by_class(name: str, lowering: Lowering, node_bytes: FloatArray) -> Iterator[MemoryPart]:
    classes = lowering.operator_class[lowering.structure.kind_of_node]
    sums = np.bincount(classes, weights=node_bytes, minlength=len(OperatorClass)).tolist()
    for operator_class in sorted(OperatorClass, key=lambda one: -sums[one]):
        yield MemoryPart(name=name, memory_bytes=sums[operator_class], operator_class=operator_class)


Bound = Literal["compute", "bandwidth", "launch"]
BOUNDS: tuple[Bound, ...] = get_args(Bound)
_NO_SHARES: Mapping[int, Gpu] = MappingProxyType({})
NAMES = {one: one.name.lower().replace("_", " ") for one in OperatorClass} | {
    OperatorClass.GROUPED_CONVOLUTION: "depthwise convolution",
    OperatorClass.PRODUCT: "matrix product",
    OperatorClass.RECURRENT: "recurrence",
    OperatorClass.UNKNOWN: "unknown operator",
}
"""Of `OperatorClass`, for people and in JSON."""
NAMES_WITHOUT_NODE = {
    OperatorClass.ELEMENTWISE: "sums of gradients",
    OperatorClass.COPY: "casts to half precision",
    OperatorClass.PRODUCT: "products of the update",
}
"""Of kernels that belong to no node."""
ANCHORS = (*SUM_CLASSES, OperatorClass.GATHER, OperatorClass.UNKNOWN)
"""A layer starts with each node of these classes, and reaches to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds of all executions in one step.

    Attributes:
        other_s: Neither forward nor backward: the loss, the update, sums of gradients and casts.
        bound_s: All three once more, by what holds the kernels up, in the order of `BOUNDS`.
    """

    forward_s: float
    backward_s: float
    other_s: float
    bound_s: tuple[float, float, float]

    @property
    def total_s(self) -> float:
        """Return all three together."""
        return self.forward_s + self.backward_s + self.other_s

    @property
    def bound(self) -> Bound:
        """Return what holds most of it up."""
        return BOUNDS[int(np.argmax(self.bound_s))]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPart:
    """What one class of operators takes.

    Attributes:
        kernel_count: Of one step.
        slowdowns: On each share of `Explanation.share_percents`: its seconds there over those on the whole GPU.
    """

    name: str
    kernel_count: int
    seconds: Seconds
    slowdowns: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Nodes that follow one another: a product or a convolution, and what is done to its result.

    Attributes:
        operator: ``op_type`` of the node that it is named after; ``Attention`` where PyTorch runs several as one.
        weight: Shape of its first weight, empty where it has none.
        output: Shape of what it writes.
        saved_bytes: What its nodes keep for the backward pass.
    """

    first_node: int
    node_count: int
    operator: str
    weight: Shape
    output: Shape
    seconds: Seconds
    parameter_bytes: float
    saved_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One prediction, taken apart.

    Attributes:
        busy_s: What the classes take together: some kernel runs.
        waiting_s: The rest of the step: the GPU waits for the host to launch.
        gaps_s: What a usual training job's host leaves idle beside the step: GPU busy is *busy_s* over both together.
        sm_s: Of *busy_s*: SMs have work, the mean over all SMs.
        dram_s: What the step's traffic would take at the memory's peak.
        classes: The longest first.
        layers: In the graph's order.
        memory: What the device's memory holds at its peak, context included.
        share_percents: The shares of the GPU that the classes have slowdowns for.
        exchange_s: Of several GPUs, what each waits for the others beside the step.
        known: What is known of the workload there; all else is as predicted.
        processes: How many the job has; the figures are of one of them, as if it were alone.
    """

    gpu: str
    step_time_s: float
    busy_s: float
    waiting_s: float
    gaps_s: float
    sm_s: float
    dram_s: float
    classes: tuple[ClassPart, ...]
    layers: tuple[Layer, ...]
    memory: tuple[MemoryPart, ...]
    share_percents: tuple[int, ...] = ()
    exchange_s: float = 0.0
    known: ObservedFigures = NOTHING_KNOWN
    processes: int = 1


def explanation_of(
    graph: ModelGraph, workload: Workload, gpu: Gpu, shares: Mapping[int, Gpu] = _NO_SHARES
) -> Explanation:
    """Return what the built-in predictors' figures for *workload* on *gpu* are made of.

    Args:
        graph: The model.
        workload: How it is run.
        gpu: A whole GPU.
        shares: By percentage the shares of *gpu* that the classes of operators are to have slowdowns for.
    """
    analysis = analyze(graph, workload)
    timing, kernels, lowering = analysis.timing([gpu]), analysis.kernels, analysis.executed
    times = times_on(analysis.efficiency, kernels, [gpu], workload.precision).as_run

    # The kernels' times, scaled to what whole steps were learned to take.
    busy_s = float(timing.busy_s[0])
    factor = busy_s / max(float(kernels.counts @ times.total_s[:, 0]), 1e-30)
    bounds = np.stack([times.compute_s[:, 0], times.traffic_s[:, 0], times.launch_s[:, 0]]).argmax(axis=0)
    total_s = times.total_s[:, 0] * factor

    growths = kernel_growths(analysis, gpu, [alone_on(share, gpu) for share in shares.values()])
    step_s, activity = float(timing.step_s[0]), analysis.activity([gpu])[0]
    return Explanation(
        gpu=gpu.name,
        step_time_s=step_s,
        busy_s=busy_s,
        waiting_s=step_s - busy_s,
        gaps_s=activity.gaps_s,
        sm_s=activity.sm_s,
        dram_s=min(float(timing.dram_s[0]), busy_s),
        classes=tuple(_classes(kernels, total_s * kernels.counts, bounds, growths)),
        layers=tuple(_layers(analysis.graph, workload, lowering, _by_kind(kernels, total_s, bounds, lowering))),
        memory=tuple(memory_parts(analysis, gpu)),
        share_percents=tuple(shares),
        exchange_s=analysis.on([gpu]).waiting_s[0],
        processes=workload.processes,
    )


def _classes(kernels: Kernels, total_s: FloatArray, bounds: IntArray, growths: FloatArray) -> list[ClassPart]:
    own = [NAMES[OperatorClass(number)] for number in kernels.operator_class.tolist()]
    of_node = zip(own, kernels.operator_class.tolist(), kernels.kind.tolist(), strict=True)
    names = np.array(
        [name if kind >= 0 else NAMES_WITHOUT_NODE.get(OperatorClass(number), name) for name, number, kind in of_node],
        dtype=object,
    )

    parts = []
    for name in dict.fromkeys(names.tolist()):
        of_it = names == name
        table = np.zeros((_PHASES, len(BOUNDS)))
        np.add.at(table, (_phases(kernels)[of_it], bounds[of_it]), total_s[of_it])
        launches = float(kernels.counts[of_it] @ kernels.launches[of_it])
        slowdowns = total_s[of_it] @ growths[of_it] / max(float(total_s[of_it].sum()), 1e-30)
        part = ClassPart(
            name=name, kernel_count=round(launches), seconds=_seconds(table), slowdowns=tuple(slowdowns.tolist())
        )
        parts.append(part)
    return sorted(parts, key=lambda part: -part.seconds.total_s)


def _by_kind(kernels: Kernels, total_s: FloatArray, bounds: IntArray, lowering: Lowering) -> FloatArray:
    """Return the seconds of each node of a kind in one step, shape (kinds, phases, bounds)."""
    table = np.zeros((len(lowering.flop), _PHASES, len(BOUNDS)))
    of_node = kernels.kind >= 0
    kind = kernels.kind[of_node]
    times = kernels.counts[of_node] / lowering.structure.counts[kind]
    np.add.at(table, (kind, _phases(kernels)[of_node], bounds[of_node]), total_s[of_node] * times)
    return table


# Forward, backward, neither.
_PHASES = 3


def _phases(kernels: Kernels) -> IntArray:
    return np.asarray(np.where(kernels.kind < 0, 2, kernels.backward), dtype=np.int64)


def _seconds(table: FloatArray) -> Seconds:
    forward_s, backward_s, other_s = table.sum(axis=1).tolist()
    compute_s, bandwidth_s, launch_s = table.sum(axis=0).tolist()
    held_s = (compute_s, bandwidth_s, launch_s)
    return Seconds(forward_s=forward_s, backward_s=backward_s, other_s=other_s, bound_s=held_s)


def _layers(graph: ModelGraph, workload: Workload, lowering: Lowering, kind_s: FloatArray) -> Iterator[Layer]:
    kind_of_node = lowering.structure.kind_of_node
    saved_bytes = walk(graph, lowering, workload.batch_size).saved if lowering.train else np.zeros(len(kind_of_node))
    weights = lowering.parameter_bytes[kind_of_node]

    edges = [*_starts(lowering), len(graph.nodes)]
    for start, end in pairwise(edges):
        # It is named after the first node that starts layers, else after the first that does work.
        classes = lowering.operator_class[kind_of_node[start:end]]
        anchors, works = np.flatnonzero(np.isin(classes, ANCHORS)), np.flatnonzero(classes != OperatorClass.VIEW)
        main = start + int([*anchors, *works, 0][0])
        node = graph.nodes[main]
        fused = lowering.operator_class[kind_of_node[main]] == OperatorClass.ATTENTION
        yield Layer(
            first_node=start,
            node_count=end - start,
            operator="Attention" if fused else node.op_type,
            weight=node.parameters[0] if node.parameters else (),
            output=node.outputs[0] if node.outputs else (),
            seconds=_seconds(kind_s[kind_of_node[start:end]].sum(axis=0)),
            parameter_bytes=float(weights[start:end].sum()),
            saved_bytes=float(saved_bytes[start:end].sum()),
        )


def _starts(lowering: Lowering) -> list[int]:
    """Return the first node of each layer; a fused attention is one layer."""
    structure = lowering.structure
    anchors = np.isin(lowering.operator_class, ANCHORS) & ~np.isin(structure.roles, (Role.INSIDE, Role.VALUES))
    has_weight = np.array([bool(node.parameters) for node in structure.kinds], dtype=bool)
    anchors &= has_weight | (lowering.operator_class != OperatorClass.GATHER)
    starts: list[int] = np.flatnonzero(anchors[structure.kind_of_node]).tolist() if len(anchors) else []
    return [0, *starts[1:]] if len(structure.kind_of_node) else []
