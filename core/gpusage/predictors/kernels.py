"""The kernels of one step, forward, backward and update, as numpy columns; no GPU is known here."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from gpusage.predictors.efficiency import OUTPUTS_PER_BLOCK
from gpusage.predictors.identity import Identity
from gpusage.predictors.lowering import FloatArray, IntArray, Lowering, lower
from gpusage.predictors.operators import OperatorClass
from gpusage_hooks.types import ModelGraph, Workload

_C = OperatorClass
_BACKWARD_TRAFFIC = {
    _C.CONVOLUTION: 2.0,
    _C.GROUPED_CONVOLUTION: 2.0,
    _C.PRODUCT: 2.0,
    _C.BATCHED_PRODUCT: 2.0,
    _C.ATTENTION: 2.5,
    _C.RECURRENT: 2.0,
    _C.BATCH_NORMALIZATION: 2.5,
    _C.NORMALIZATION: 2.5,
    _C.REDUCTION: 1.5,
    _C.ELEMENTWISE: 1.5,
    _C.GATHER: 3.0,
    _C.COPY: 1.0,
    _C.UNKNOWN: 2.0,
}
"""Bytes that the backward pass moves for each byte of the forward pass: it reads the gradient and what was kept."""
_BACKWARD_KERNELS = {
    _C.CONVOLUTION: 2.0,
    _C.GROUPED_CONVOLUTION: 2.0,
    _C.PRODUCT: 2.0,
    _C.BATCHED_PRODUCT: 2.0,
    _C.ATTENTION: 1.0,
    _C.RECURRENT: 2.0,
    _C.NORMALIZATION: 2.0,
}
"""One for the gradient of the input, one for that of the weight; 1 elsewhere."""
_TRAINED_BATCH_NORMALIZATION = 1.5
"""In training the input is read twice: for its statistics and to be normalised."""
_OPTIMIZER_TRAFFIC = {"none": 0.0, "sgd": 12.0, "momentum": 20.0, "adam": 28.0, "adamw": 28.0, "adafactor": 24.0}
"""Bytes that an update moves for each weight: weight, gradient and state, read and written, 4 bytes each."""
_CAST_TRAFFIC = 6.0 + 8.0
"""Mixed precision: bytes a weight to cast its gradient to 4 bytes, and to unscale the gradient."""
_LOSS_TRAFFIC = 24.0
"""Bytes that a cross-entropy moves for each output: softmax and its gradient, read and written, 4 bytes each."""
_LOSS_KERNELS = 5.0
_VIEW_LAUNCH = 0.25
"""A view costs the host a quarter of what a kernel does, and the GPU nothing."""

_BACKWARD_TRAFFIC_COLUMN = np.array([_BACKWARD_TRAFFIC.get(c, 0.0) for c in OperatorClass])
_BACKWARD_FLOP_COLUMN = np.array([2.5 if c is _C.ATTENTION else 2.0 for c in OperatorClass])
_BACKWARD_KERNELS_COLUMN = np.array([_BACKWARD_KERNELS.get(c, 0.0 if c is _C.VIEW else 1.0) for c in OperatorClass])


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The columns, one entry a kind of kernel.

    Attributes:
        flop: Of one execution, as are the other columns.
        blocks: Thread blocks: how many SMs can work at once.
        launches: Kernels of one execution that follow one another on the GPU.
        counts: Executions a step.
        inner: Length of the sums, as in `Lowering`.
        width: As in `Lowering`.
        backward: 1 for a backward pass, else 0.
        kind: Index into `Structure.kinds`; -1 for what is no node: loss, update, sums of gradients, casts.
        host_counts: What the host does a step: the step itself, launches of the forward and of the backward pass,
            weights that the optimizer visits.
    """

    operator_class: IntArray
    flop: FloatArray
    traffic_bytes: FloatArray
    blocks: FloatArray
    launches: FloatArray
    counts: FloatArray
    matrix_units: FloatArray
    inner: FloatArray
    width: FloatArray
    backward: FloatArray
    host_counts: FloatArray
    kind: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def kernels_of(graph: ModelGraph, workload: Workload) -> Kernels:
    """Return the kernels of one step of *workload*."""
    return _kernels(Identity(lower(graph, workload)), workload.precision, workload.optimizer)


@lru_cache(maxsize=512)
def _kernels(key: Identity[Lowering], precision: str, optimizer: str) -> Kernels:
    lowering = key.value
    forward = _forward(lowering)
    parts = [forward]
    host_counts = [1.0, _host_launches(lowering, forward), 0.0, 0.0]
    if lowering.train:
        backward = _backward(lowering, forward)
        parts += [backward, _accumulation(lowering), _update(lowering, precision, optimizer), _loss(lowering)]
        launches = sum(float(part[_LAUNCHES] @ part[_COUNTS]) for part in parts[1:3])
        host_counts[2:] = launches + _LOSS_KERNELS, float(lowering.parameter_tensor_count)
    if precision in ("fp16", "bf16"):
        parts += [_cast(lowering), _input_casts(lowering)]
    table = np.concatenate(parts, axis=1)
    table = table[:, (table[1] > 0) | (table[2] > 0)]
    operator_class = table[0].astype(np.int64)
    return Kernels(
        operator_class=operator_class,
        flop=table[1],
        traffic_bytes=table[2],
        blocks=np.maximum(table[3] / OUTPUTS_PER_BLOCK[operator_class], 1.0),
        launches=table[_LAUNCHES],
        counts=table[_COUNTS],
        matrix_units=table[6],
        inner=table[7],
        width=table[8],
        backward=table[9],
        host_counts=np.array(host_counts),
        kind=table[10].astype(np.int64),
    )


_LAUNCHES = 4
_COUNTS = 5
_BACKWARD = 9


def _forward(lowering: Lowering) -> FloatArray:
    traffic = lowering.read_bytes + lowering.parameter_bytes + lowering.written_bytes
    if lowering.train:
        normalized = lowering.operator_class == _C.BATCH_NORMALIZATION
        traffic = np.where(normalized, traffic * _TRAINED_BATCH_NORMALIZATION, traffic)
    works = (lowering.operator_class != _C.VIEW).astype(np.float64)
    return np.stack(
        [
            lowering.operator_class,
            lowering.flop,
            traffic,
            lowering.output_elements,
            lowering.sequential_steps * works,
            lowering.structure.counts,
            lowering.matrix_units,
            lowering.inner,
            lowering.width,
            np.zeros_like(traffic),
            np.arange(len(traffic)),
        ]
    )


def _host_launches(lowering: Lowering, forward: FloatArray) -> float:
    views = lowering.operator_class == _C.VIEW
    return float(np.where(views, _VIEW_LAUNCH, forward[_LAUNCHES]) @ lowering.structure.counts)


def _backward(lowering: Lowering, forward: FloatArray) -> FloatArray:
    """Return the backward passes; a sum passes its gradient on, without a kernel."""
    operator_class = lowering.operator_class
    passes_on = (operator_class == _C.ELEMENTWISE) & ~(lowering.keeps_inputs | lowering.keeps_output)
    passes_on &= lowering.kept_bytes == 0
    works = np.where(passes_on, 0.0, 1.0)
    backward: FloatArray = forward.copy()
    backward[1] *= _BACKWARD_FLOP_COLUMN[operator_class] * works
    backward[2] *= _BACKWARD_TRAFFIC_COLUMN[operator_class] * works
    backward[_LAUNCHES] *= _BACKWARD_KERNELS_COLUMN[operator_class] * works
    backward[_BACKWARD] = 1.0
    return backward


def _accumulation(lowering: Lowering) -> FloatArray:
    """Return the sums of gradients where a tensor is read more than once: two read, one written, for each reader."""
    structure = lowering.structure
    readers = np.bincount(structure.sources, minlength=len(structure.kind_of_node))
    extra = np.maximum(readers - 1, 0) * (lowering.output_bytes[structure.kind_of_node] > 0)
    count = float(extra.sum())
    node_bytes = float(extra @ lowering.output_bytes[structure.kind_of_node])
    elements = float(extra @ lowering.output_elements[structure.kind_of_node])
    mean = 1.0 / max(count, 1.0)
    return _single(_C.ELEMENTWISE, elements * mean, 3.0 * node_bytes * mean, elements * mean, count)


def _update(lowering: Lowering, precision: str, optimizer: str) -> FloatArray:
    traffic = _OPTIMIZER_TRAFFIC[optimizer]
    if precision in ("fp16", "bf16"):
        traffic += _CAST_TRAFFIC
    kernels = max(lowering.parameter_tensor_count / 32.0, 1.0)
    count = float(lowering.parameter_count)
    return _single(_C.OPTIMIZER, 2.0 * count / kernels, traffic * count / kernels, count / kernels, kernels)


def _cast(lowering: Lowering) -> FloatArray:
    """Return the casts of the weights to 2 bytes, which autocast makes anew in every step."""
    kernels = max(float(lowering.parameter_tensor_count), 1.0)
    count = float(lowering.parameter_count) / kernels
    return _single(_C.COPY, 0.0, 6.0 * count, count, kernels)


def _input_casts(lowering: Lowering) -> FloatArray:
    """Return the casts of activations to 2 bytes, and in training of their gradients back to 4."""
    structure = lowering.structure
    cast = (lowering.cast_elements > 0) * structure.counts
    count = float(cast.sum())
    elements = float(lowering.cast_elements @ cast) / max(count, 1.0)
    passes = 2.0 if lowering.train else 1.0
    return _single(_C.COPY, 0.0, 6.0 * elements, elements, passes * count)


def _loss(lowering: Lowering) -> FloatArray:
    elements = lowering.output_elements_of_model
    share = 1.0 / _LOSS_KERNELS
    return _single(_C.LOSS, elements, _LOSS_TRAFFIC * elements * share, elements, _LOSS_KERNELS)


def _single(
    operator_class: OperatorClass, flop: float, traffic_bytes: float, elements: float, count: float
) -> FloatArray:
    column = [operator_class, flop, traffic_bytes, elements, 1.0, count, 0.0, 1.0, 1.0, 0.0, -1.0]
    return np.array(column, dtype=np.float64)[:, np.newaxis]
