"""The kernels of one step, forward, backward and update, as numpy columns; no GPU is known here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from gpusage.devices.precisions import AUTOCAST, QUANTISED_BYTES, parameter_share
from gpusage.predictors.arrays import FloatArray, IntArray
from gpusage.predictors.parallel.data_parallel import is_megatron
from gpusage.predictors.parallel.expert_parallel import own_share
from gpusage.predictors.times.low_precision import CAST_TRAFFIC, casts_of, dequantization_work, narrow_products
from gpusage.predictors.work.checkpoints import Checkpoints
from gpusage.predictors.work.lowering import WIDE_BYTES, Lowering, hidden_matrices, is_adapter, is_autocast, is_fused
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Workload

_C = OperatorClass
_OUTPUTS_PER_BLOCK: dict[OperatorClass, float] = {
    _C.CONVOLUTION: 4096,
    _C.GROUPED_CONVOLUTION: 1024,
    _C.PRODUCT: 8192,
    _C.BATCHED_PRODUCT: 4096,
    _C.ATTENTION: 4096,
    _C.RECURRENT: 4096,
}
DEFAULT_OUTPUTS_PER_BLOCK = 1024.0
"""Of the other classes. All of these are assumptions: the efficiencies are fitted with them."""
OUTPUTS_PER_BLOCK: FloatArray = np.array(
    [_OUTPUTS_PER_BLOCK.get(operator_class, DEFAULT_OUTPUTS_PER_BLOCK) for operator_class in OperatorClass]
)
"""Outputs that one thread block computes, by class."""
# Bytes that the backward pass moves for each byte of the forward pass: it reads the gradient and what was kept.
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
# Whose backward pass is two of equal work: one for the gradient of the input, one for that of the weight.
_WITH_TWO_PRODUCTS = (_C.CONVOLUTION, _C.GROUPED_CONVOLUTION, _C.PRODUCT, _C.RECURRENT)
# Whose backward pass is two kernels; 1 elsewhere.
_WITH_TWO_KERNELS = (*_WITH_TWO_PRODUCTS, _C.BATCHED_PRODUCT, _C.NORMALIZATION)
# In training the input is read twice: for its statistics and to be normalised.
_TRAINED_BATCH_NORMALIZATION = 1.5
# Bytes that an update moves for each weight: weight, gradient and state, read and written, 4 bytes each; moments of 8
# bits have 1.
_OPTIMIZER_TRAFFIC = {
    "none": 0.0,
    "sgd": 12.0,
    "momentum": 20.0,
    **dict.fromkeys(("adam", "adamw", "muon"), 28.0),
    "adafactor": 24.0,
    **dict.fromkeys(("adam8bit", "adamw8bit"), 16.0),
}
# The part of it that moves as many bytes where weights have 2.
_MOMENTS_TRAFFIC = {"adam8bit": 4.0, "adamw8bit": 4.0}
# Bytes that Muon's update moves for a weight of 4 bytes, beside AdamW's and its products: two averages, a cast, a norm,
# a division, the decay and the sum of `torch.optim.Muon` of PyTorch 2.9.
_MUON_TRAFFIC, _MUON_STEPS = 26.0, 5
# Mixed precision: bytes to cast one number between 2 and 4 bytes: one is read, the other written.
_CAST_TRAFFIC = 6.0
# Mixed precision: bytes per weight to cast its gradient to 4 bytes, and to unscale the gradient.
_UPDATE_CAST_TRAFFIC = _CAST_TRAFFIC + 8.0
NARROW_UNITS, BF16_UNITS = 2.0, 3.0
"""In the column of matrix units: they multiply numbers of 1 byte, or of bf16 whatever the precision is."""
# Tensors that one kernel of the optimizer updates, about: PyTorch's ``foreach`` puts 30 to 48 into one launch.
_TENSORS_PER_UPDATE = 32.0
# Bytes to add a weight's gradient to that of the steps before: two read, one written, 4 bytes each.
_SUM_TRAFFIC = 12.0
# The same where the product adds to the sum in 4 bytes, and writes no gradient of 2: Megatron's default, by Transformer
# Engine or Apex (``--no-gradient-accumulation-fusion`` turns it off).
_FUSED_SUM_TRAFFIC = 6.0
# Bytes that a cross-entropy moves for each output: softmax and its gradient, read and written, 4 bytes each.
_LOSS_TRAFFIC = 24.0
# Of a cross-entropy, forward and backward; each is taken to move an equal part of its bytes.
_LOSS_KERNELS = 5.0
# A view costs the host a quarter of what a kernel does, and the GPU nothing.
_VIEW_LAUNCH = 0.25
# What an autocast of one tensor costs the host, in kernels: it looks for an earlier one, and calls three operators.
#
# Published times of small batches ask for 3 with PyTorch, and for none with TensorFlow, whose graph is fixed; this is
# between them.
_CAST_LAUNCHES = 1.5
# By class: FLOP, traffic and kernels of the backward pass for those of the forward pass.
_BACKWARD_COLUMNS = np.array([
    [2.5 if c is _C.ATTENTION else 2.0 for c in OperatorClass],
    [_BACKWARD_TRAFFIC.get(c, 0.0) for c in OperatorClass],
    [2.0 if c in _WITH_TWO_KERNELS else float(c is not _C.VIEW) for c in OperatorClass],
])  # fmt: skip
_TRAINED_TRAFFIC_COLUMN = np.array(
    [_TRAINED_BATCH_NORMALIZATION if c is _C.BATCH_NORMALIZATION else 1.0 for c in OperatorClass]
)
_HAS_TWO_PRODUCTS = np.array([c in _WITH_TWO_PRODUCTS for c in OperatorClass])
_WORKS = np.array([float(c is not _C.VIEW) for c in OperatorClass])
_VIEW_LAUNCHES = _VIEW_LAUNCH * (1.0 - _WORKS)
_NEVER_PASSES_ON = np.array([c is not _C.ELEMENTWISE for c in OperatorClass])


class _Row:
    """The rows of the table that kernels are written to, one column per kernel; `Kernels` says what they are.

    Plain numbers: indexing an array by a member of an enumeration takes three times as long.
    """

    OPERATOR_CLASS = 0
    FLOP = 1
    TRAFFIC_BYTES = 2
    LAUNCHES = 3
    ELEMENTS = 4
    """Of the outputs: blocks are counted by them."""
    COUNTS = 5
    MATRIX_UNITS = 6
    INNER = 7
    WIDTH = 8
    BACKWARD = 9
    KIND = 10
    TRIPS = 11
    COUNT = 12
    """Of the rows."""


# FLOP, traffic and launches.
_WORK = slice(_Row.FLOP, _Row.LAUNCHES + 1)
# One kernel's entry of each `_Row`.
_Single = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The columns, one entry per kind of kernel.

    Attributes:
        flop: Of one execution, as are the other columns.
        blocks: Thread blocks: how many SMs can work at once.
        matrix_units: 1 where tensor cores can do the work, `NARROW_UNITS` where in fp8, `BF16_UNITS` in bf16, else 0.
        launches: Kernels of one execution that follow one another on the GPU.
        dependent_loads: Waits for memory of one execution that follow one another, as in `Lowering`.
        counts: Executions per step.
        inner: Length of the sums, as in `Lowering`.
        width: As in `Lowering`.
        backward: 1 for a backward pass, else 0.
        kind: Index into `Structure.kinds`; -1 for what is no node: loss, update, sums of gradients, casts.
        host_counts: What the host does in each step: the step itself, launches of the forward and of the backward
            pass, weights that the optimizer visits.
    """

    operator_class: IntArray
    flop: FloatArray
    traffic_bytes: FloatArray
    blocks: FloatArray
    launches: FloatArray
    dependent_loads: FloatArray
    counts: FloatArray
    matrix_units: FloatArray
    inner: FloatArray
    width: FloatArray
    backward: FloatArray
    host_counts: FloatArray
    kind: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


# What there is of each kind of kernel.
_COLUMNS = tuple(each.name for each in fields(Kernels) if each.name != "host_counts")


def answer_kernels(passes: Sequence[Kernels], decode_count: int) -> Kernels:
    """Return the kernels of one answer: of its pass over the prompt, and of *decode_count* passes over one token."""
    prompt, token = passes
    table = {name: np.concatenate([getattr(prompt, name), getattr(token, name)]) for name in _COLUMNS}
    table["counts"] = np.concatenate([prompt.counts, token.counts * decode_count])
    return Kernels(**table, host_counts=prompt.host_counts + token.host_counts * decode_count)


def kernels_of(lowering: Lowering, workload: Workload, checkpoints: Checkpoints | None = None) -> Kernels:
    """Return the kernels of one step; the backward pass computes blocks with *checkpoints* once more."""
    count, passes = len(lowering.flop), 2 if lowering.train else 1

    # Kernels of no node: they stand behind those of the nodes in the table.
    others = _training_kernels(lowering, workload) if lowering.train else []
    launches = 0.0
    if workload.precision in QUANTISED_BYTES:
        work = dequantization_work(lowering, workload, checkpoints)
        launches = work.launch_count
        if work.kernel_count:
            others.append(_single(_C.COPY, 0.0, work.traffic_bytes, work.weight_count, work.kernel_count))
    casts_per_kind = (lowering.cast_elements > 0) * lowering.structure.counts
    if is_autocast(workload):
        others += _cast_kernels(lowering, casts_per_kind)
    reordered = (lowering.reorder_bytes > 0) * lowering.structure.counts
    if lowering.reorder_bytes @ lowering.structure.counts > 0:
        copies = float(reordered.sum())
        moved = float(lowering.reorder_bytes @ reordered) / copies
        others.append(_single(_C.COPY, 0.0, moved, moved / WIDE_BYTES, copies * passes))  # gradients go back
    narrow = narrow_products(lowering) if workload.precision == "fp8-mixed" else None
    if narrow is not None:
        casts, elements = casts_of(lowering, narrow, checkpoints)
        others.append(_single(_C.COPY, 0.0, CAST_TRAFFIC * elements, elements, casts))

    table = np.empty((_Row.COUNT, passes * count + len(others)))
    if others:
        table[:, passes * count :] = np.array(others).T
    forward, backward = table[:, :count], table[:, count : passes * count]
    _write_forward(lowering, forward)
    if narrow is not None:
        forward[_Row.MATRIX_UNITS, narrow] = NARROW_UNITS
    if lowering.train:
        _write_backward(lowering, forward, backward, workload.trainable)
        if checkpoints:  # only now, as the backward pass has the counts of the forward pass without checkpoints
            forward[_Row.COUNTS] += checkpoints.recomputed_counts(lowering.structure)

    host_counts = [1.0, 0.0, 0.0, 0.0]
    of_each = forward[_Row.LAUNCHES] + _VIEW_LAUNCHES[lowering.operator_class]
    host_counts[1] = float(of_each @ forward[_Row.COUNTS]) + launches
    if lowering.train:
        trained = _trained_tensors(lowering, workload)
        returned = float(backward[_Row.LAUNCHES] @ backward[_Row.COUNTS]) + others[0][_Row.COUNTS]
        returned += trained * (1.0 - 1.0 / workload.accumulate)  # sums with the gradients of steps before
        returned += sum(one[_Row.COUNTS] for one in others if one[_Row.MATRIX_UNITS] == BF16_UNITS)
        host_counts[2:] = returned + _LOSS_KERNELS, trained / workload.accumulate
    if is_autocast(workload):
        weights = float(lowering.cast_tensor_count)
        # A compiler has no casts of activations alone.
        each = weights if is_fused(workload) else _CAST_LAUNCHES * (weights + float(casts_per_kind.sum()))
        host_counts[1] += each
        host_counts[2] += each * lowering.train
    return _working_kernels(table, np.array(host_counts))


def _working_kernels(table: FloatArray, host_counts: FloatArray) -> Kernels:
    """Return the columns of *table* that do any work; *table* has one row for each `_Row`."""
    works = (table[_Row.FLOP] > 0) | (table[_Row.TRAFFIC_BYTES] > 0)
    table = table.take(works.nonzero()[0], axis=1)
    operator_class = table[_Row.OPERATOR_CLASS].astype(np.int64)
    return Kernels(
        operator_class=operator_class,
        flop=table[_Row.FLOP],
        traffic_bytes=table[_Row.TRAFFIC_BYTES],
        blocks=np.maximum(table[_Row.ELEMENTS] / OUTPUTS_PER_BLOCK[operator_class], 1.0),
        launches=table[_Row.LAUNCHES],
        dependent_loads=table[_Row.TRIPS],
        counts=table[_Row.COUNTS],
        matrix_units=table[_Row.MATRIX_UNITS],
        inner=table[_Row.INNER],
        width=table[_Row.WIDTH],
        backward=table[_Row.BACKWARD],
        host_counts=host_counts,
        kind=table[_Row.KIND].astype(np.int64),
    )


def _write_forward(lowering: Lowering, forward: FloatArray) -> None:
    forward[_Row.OPERATOR_CLASS] = lowering.operator_class
    forward[_Row.FLOP] = lowering.flop

    # Turning a layout moves activations, not weights.
    moved = (lowering.read_bytes + lowering.written_bytes) * lowering.traffic_factor
    forward[_Row.TRAFFIC_BYTES] = moved + lowering.parameter_bytes
    if lowering.train:
        forward[_Row.TRAFFIC_BYTES] *= _TRAINED_TRAFFIC_COLUMN[lowering.operator_class]

    forward[_Row.ELEMENTS] = lowering.output_elements
    forward[_Row.LAUNCHES] = lowering.sequential_steps * _WORKS[lowering.operator_class]
    forward[_Row.COUNTS] = lowering.structure.counts
    forward[_Row.MATRIX_UNITS] = lowering.matrix_units
    forward[_Row.INNER] = lowering.inner
    forward[_Row.WIDTH] = lowering.width
    forward[_Row.BACKWARD] = 0.0
    forward[_Row.KIND] = np.arange(len(lowering.flop))
    forward[_Row.TRIPS] = lowering.dependent_loads


def _write_backward(lowering: Lowering, forward: FloatArray, backward: FloatArray, trainable: float) -> None:
    """Write the backward passes; a sum passes its gradient on, without a kernel, and a frozen weight has none."""
    operator_class = lowering.operator_class
    works = _NEVER_PASSES_ON[operator_class] | lowering.saves_inputs | lowering.saves_output
    works |= lowering.saved_bytes != 0
    backward[:] = forward
    backward[_WORK] *= _BACKWARD_COLUMNS.take(operator_class, axis=1) * works

    if trainable < 1:  # half of a product's backward pass is the gradient of its weight
        frozen = _HAS_TWO_PRODUCTS[operator_class] & (lowering.parameter_bytes > 0) & ~is_adapter(lowering.structure)
        backward[_WORK, frozen] *= (1.0 + trainable) / 2.0
    backward[_Row.BACKWARD] = 1.0
    backward[_Row.TRIPS] = 0.0


def _training_kernels(lowering: Lowering, workload: Workload) -> list[_Single]:
    """Return the kernels of a training step that are of no node, the sums of gradients first."""
    is_half = workload.precision in AUTOCAST
    weights = float(lowering.parameter_count) * workload.trainable
    tensors = _trained_tensors(lowering, workload)

    # Where a tensor is read more than once, its gradients are added: two read, one written, for each reader. A
    # compiler makes these sums parts of the kernels beside them.
    structure = lowering.structure
    readers = np.bincount(structure.sources, minlength=len(structure.kind_of_node))
    more = np.bincount(structure.kind_of_node, np.maximum(readers - 1, 0), len(structure.counts))
    more *= (lowering.output_bytes > 0) & (not is_fused(workload))
    count = float(more.sum())
    mean = 1.0 / max(count, 1.0)
    elements = float(more @ lowering.output_elements) * mean
    summed_bytes = 3.0 * float(more @ lowering.output_bytes) * mean
    kernels = [_single(_C.ELEMENTWISE, elements, summed_bytes, elements, count)]

    # The update of the weights, of which a step that accumulates has a part.
    own = weights if workload.strategy == "ddp" else weights * own_share(lowering, workload)
    moments = _MOMENTS_TRAFFIC.get(workload.optimizer, 0.0)
    traffic = (_OPTIMIZER_TRAFFIC[workload.optimizer] - moments) * parameter_share(workload.precision) + moments
    if workload.optimizer == "muon":
        part = 1.0 / max(lowering.parameter_count, 1)
        for count, n, m in hidden_matrices(lowering).tolist():
            traffic += _MUON_TRAFFIC * parameter_share(workload.precision) * count * n * m * part
            for flop, moved, size, inner, width in _muon_products(n, m):
                row = _single(_C.PRODUCT, flop, moved, size, _MUON_STEPS * count * own * part / workload.accumulate)
                kernels.append((*row[: _Row.MATRIX_UNITS], BF16_UNITS, inner, width, *row[_Row.BACKWARD :]))
    if is_half:
        traffic += _UPDATE_CAST_TRAFFIC
    launches = max(tensors / _TENSORS_PER_UPDATE, 1.0)
    one = 2.0 * own / launches, traffic * own / launches, own / launches
    kernels.append(_single(_C.OPTIMIZER, *one, launches / workload.accumulate))

    outputs, share = lowering.output_elements_of_model, 1.0 / _LOSS_KERNELS
    kernels.append(_single(_C.LOSS, outputs, _LOSS_TRAFFIC * outputs * share, outputs, _LOSS_KERNELS))

    if workload.accumulate > 1:
        # Sums of the weights' gradients over steps, and the casts that the update then does not do.
        traffic = _SUM_TRAFFIC * parameter_share(workload.precision) + (_CAST_TRAFFIC if is_half else 0.0)
        share = 1.0 - 1.0 / workload.accumulate  # the first of these steps writes, the others add
        if is_half and is_megatron(workload):
            traffic, share = _FUSED_SUM_TRAFFIC, 1.0
        launches = max(tensors, 1.0)
        each = weights / launches
        kernels.append(_single(_C.ELEMENTWISE, each, traffic * each, each, launches * share))
    return kernels


def _muon_products(n: float, m: float) -> Iterator[tuple[float, float, float, float, float]]:
    """Yield the products of a Newton-Schulz step, in bf16: FLOP, bytes moved, outputs, inner and width.

    These steps make the update X of a hidden matrix orthogonal. It has n rows and m columns, n <= m. A step multiplies
    it by its transpose, the result by itself, and the sum of both by X: 4 n^2 m + 2 n^3 FLOP, whatever the batch.

    Source:
        Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, "Runtime analysis".
    """
    size, square = n * m, n * n
    yield 2 * square * m, 2 * (size + square), square, m, n  # a number has two bytes
    yield 2 * square * n, 2 * 3 * square, square, n, n
    yield 2 * square * m, 2 * (2 * size + square), size, n, m


def _trained_tensors(lowering: Lowering, workload: Workload) -> float:
    """Return how many weights the optimizer visits."""
    of_adapters = float(is_adapter(lowering.structure) @ lowering.structure.counts)
    return of_adapters or float(lowering.parameter_tensor_count) * workload.trainable


def _cast_kernels(lowering: Lowering, casts_per_kind: IntArray) -> list[_Single]:
    """Return the casts to 2 bytes, which autocast makes anew in every step, and of gradients back to 4."""
    tensors = max(float(lowering.parameter_tensor_count), 1.0)
    weights = float(lowering.parameter_count) / tensors

    count = float(casts_per_kind.sum())
    elements = float(lowering.cast_elements @ casts_per_kind) / max(count, 1.0)
    passes = 2.0 if lowering.train else 1.0
    return [
        _single(_C.COPY, 0.0, _CAST_TRAFFIC * weights, weights, tensors),
        _single(_C.COPY, 0.0, _CAST_TRAFFIC * elements, elements, passes * count),
    ]


def _single(operator_class: OperatorClass, flop: float, traffic_bytes: float, elements: float, count: float) -> _Single:
    """Return one kernel without matrix units and of no node, in the order of `_Row`."""
    return float(operator_class), flop, traffic_bytes, 1.0, elements, count, 0.0, 1.0, 1.0, 0.0, -1.0, 0.0
