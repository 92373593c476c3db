"""Graph and workload -> numpy columns: the work of each kind of node, forward and backward.

A compiler makes one kernel of operators that follow one another. As PyTorch's Inductor does, elementwise operators,
normalizations and reductions are fused: nothing between those of a group goes through memory. Convolutions, products
and attentions stay kernels of their libraries. Views launch no kernel, and strided tensors are read as they lie.

**LoRA.** A pair of thin products stands beside each linear layer, and they are all that is trained. The pair reads what
the layer reads, and a scaled sum joins it to what the layer writes, as peft and litgpt have it. A layer that makes the
model's output has none, as with ``target_modules="all-linear"``.

Invariants:

1. One row per kind of node, not one per node; ``counts`` says how often it occurs.
2. Nothing here depends on a GPU.
3. Every column grows or stays when the batch grows.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685, section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from gpusage.devices.precisions import AUTOCAST, FLOAT_BYTES, PURE, QUANTISED_BYTES
from gpusage.predictors.arrays import BoolArray, FloatArray, IntArray
from gpusage.predictors.work.kind_table import kind_table
from gpusage.predictors.work.operators import OperatorClass, convolution_weight, element_count
from gpusage.predictors.work.structure import Role, Structure, analyze_structure
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node, Precision, Shape, Workload

WIDE_BYTES = 4
"""Of a number in fp32, in which mixed precision leaves some tensors."""
_NORMALIZATION = int(OperatorClass.NORMALIZATION)
_CONVOLUTION, _GROUPED_CONVOLUTION = int(OperatorClass.CONVOLUTION), int(OperatorClass.GROUPED_CONVOLUTION)
# In half precision cuDNN turns what a convolution reads and writes to channels last and back: each is read and written
# once more.
_LAYOUT_CHANGE_FACTOR = 3.0
# Of images: batch, channels, height and width.
_IMAGE_RANK = 4
# Rows of the largest filter for which cuDNN has a kernel of depthwise convolutions with channels last. A larger one
# reads its input once for each row, about: focalnet's take 7 to 11 times as long, on five GPUs.
_SHORT_FILTER = 7
MINIMUM_MATRIX_WIDTH = 8
"""Matrix units take their operands eight at a time; narrower sums (an image's three channels) leave them idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """The columns; one entry per kind of node unless noted otherwise.

    Attributes:
        operator_class: `OperatorClass` numbers.
        flop: Of one forward execution.
        read_bytes: Activations read by one forward execution.
        parameter_bytes: Weights read by one forward execution; in training those that are quantised, widened.
        written_bytes: Written by one forward execution.
        output_elements: Elements of the outputs, which say how many SMs can work at once.
        output_bytes: Storage that the outputs need; 0 for a view and for what is fused away.
        saved_bytes: What the backward pass needs in addition to inputs and outputs: masks and indices.
        saves_inputs: Whether the backward pass needs the inputs again.
        saves_output: Whether the backward pass needs the output again.
        matrix_units: Whether tensor cores can do the work.
        sequential_steps: How often kernels must follow one another within one execution: time steps of an LSTM.
        dependent_loads: How often one thread waits for memory within one forward execution, one wait after the other.
        inner: Length of the sums: K of a product, channels per group x kernel of a convolution; 1 elsewhere.
        width: Columns that share one operand: N of a product, channels that a group writes, a row that is normalised.
        cast_elements: Elements that mixed precision casts to 2 bytes, or an attention to 4, before the node reads them.
        reorder_bytes: Read and written to turn what lies in another order than the node needs.
        traffic_factor: How often a kernel moves what the node reads and writes; above 1 where it transposes first.
        parameter_count: Elements of all weights.
        parameter_tensor_count: How many weights the optimizer visits.
        cast_tensor_count: How many of them mixed precision casts to 2 bytes.
        structure: Of the graph.
        output_elements_of_model: What the loss reads.
        train: Whether backward passes and the optimizer follow.
    """

    operator_class: IntArray
    flop: FloatArray
    read_bytes: FloatArray
    parameter_bytes: FloatArray
    written_bytes: FloatArray
    output_elements: FloatArray
    output_bytes: FloatArray
    saved_bytes: FloatArray
    saves_inputs: BoolArray
    saves_output: BoolArray
    matrix_units: BoolArray
    sequential_steps: FloatArray
    dependent_loads: FloatArray
    inner: FloatArray
    width: FloatArray
    cast_elements: FloatArray
    reorder_bytes: FloatArray
    traffic_factor: FloatArray
    parameter_count: int
    parameter_tensor_count: int
    cast_tensor_count: int
    structure: Structure
    output_elements_of_model: float
    train: bool


def lower(graph: ModelGraph, structure: Structure, workload: Workload) -> Lowering:
    """Return the columns of *graph* under *workload*.

    Args:
        graph: The model.
        structure: Its structure; where the workload's floats have 2 bytes, the widened one.
        workload: Its batch size, mode, precision, layout and engine count.
    """
    # TensorRT quantizes what stands between two operators, too.
    is_quantized = (workload.engine, workload.precision) == ("tensorrt", "int8")
    batch_size, float_bytes = workload.batch_size, 1 if is_quantized else FLOAT_BYTES[workload.precision]
    kinds = kind_table(structure, batch_size)
    is_training = workload.mode == "train"
    weight_bytes = float_bytes if is_training else bytes_per_weight(kinds.operator_class, structure, workload.precision)
    outputs, flop = kinds.outputs, kinds.flop

    of_float = np.where(structure.stays_fp32, WIDE_BYTES, float_bytes)
    output_bytes = outputs * np.where(kinds.element_bytes > 0, kinds.element_bytes, of_float)
    stored_bytes = output_bytes * kinds.stored

    # Mixed precision casts what products read to 2 bytes; an attention that no fused kernel takes casts it to 4.
    is_widened = kinds.sums & (structure.roles == Role.UNFUSED) & (float_bytes < WIDE_BYTES)
    cast = np.where(is_widened, kinds.inputs - kinds.fp32_inputs, kinds.fp32_inputs * kinds.reads_half)
    wide = np.where(is_widened, kinds.inputs, kinds.fp32_inputs - cast)
    read = kinds.inputs * float_bytes + wide * (WIDE_BYTES - float_bytes)
    reordered_bytes = np.where(kinds.operator_class == _NORMALIZATION, of_float, float_bytes)

    # The loss reads the last output of floats.
    made = map(graph.nodes.__getitem__, structure.output_nodes.tolist())
    counts = [element_count(one.outputs[0], batch_size) for one in made if one.element_type == "float" and one.outputs]
    return Lowering(
        operator_class=kinds.operator_class,
        flop=flop,
        read_bytes=read + output_bytes * kinds.gathers,
        parameter_bytes=kinds.weight_elements * weight_bytes,
        written_bytes=stored_bytes,
        output_elements=outputs,
        output_bytes=stored_bytes,
        saved_bytes=kinds.extra_bytes * outputs,
        saves_inputs=kinds.saves_inputs,
        saves_output=kinds.saves_output,
        matrix_units=kinds.matrix & (flop >= 2 * MINIMUM_MATRIX_WIDTH * outputs),
        sequential_steps=kinds.sequential_steps,
        dependent_loads=kinds.dependent_loads,
        inner=np.maximum(kinds.sums * flop / np.maximum(2.0 * outputs, 1.0), 1.0),
        width=kinds.width,
        cast_elements=cast,
        reorder_bytes=2.0 * kinds.non_contiguous * reordered_bytes,
        traffic_factor=_layout_factors(kinds.operator_class, structure, workload),
        parameter_count=graph.parameter_count,
        parameter_tensor_count=int(kinds.weight_tensors @ structure.counts),
        cast_tensor_count=int((kinds.weight_tensors * kinds.reads_half) @ structure.counts),
        structure=structure,
        output_elements_of_model=float(sum(counts[-1:])),
        train=is_training,
    )


def _layout_factors(operator_class: IntArray, structure: Structure, workload: Workload) -> FloatArray:
    """Return how often a kernel of each kind moves what it reads and writes; more than once in half precision alone."""
    if FLOAT_BYTES[workload.precision] == WIDE_BYTES:
        return np.ones(len(operator_class))

    is_last = structure.roles == Role.CHANNELS_LAST
    if workload.layout == "channels_last" or workload.engine == "tensorrt":  # which orders tensors as its kernels read
        is_last |= np.array([max(map(len, kind.inputs), default=0) == _IMAGE_RANK for kind in structure.kinds])
    factors = np.where((operator_class == _CONVOLUTION) & ~is_last, _LAYOUT_CHANGE_FACTOR, 1.0)
    for kind in (is_last & (operator_class == _GROUPED_CONVOLUTION)).nonzero()[0].tolist():
        rows = max(convolution_weight(structure.kinds[kind])[2:3], default=1)
        factors[kind] = rows if rows > _SHORT_FILTER else 1.0
    return factors


def split_kinds(lowering: Lowering, labels: IntArray) -> tuple[Lowering, IntArray]:
    """Return *lowering* with a kind for each kind of node and label, and the label of each kind.

    Args:
        lowering: Of a graph.
        labels: Small numbers from 0 on, one entry per node.
    """
    structure, count = lowering.structure, int(labels.max(initial=0)) + 1
    pairs, kind_of_node = np.unique(structure.kind_of_node * count + labels, return_inverse=True)
    origin, label_of_kind = np.divmod(pairs, count)

    columns = {field.name: getattr(lowering, field.name) for field in fields(lowering)}
    chosen: dict[str, Any] = {name: one[origin] for name, one in columns.items() if isinstance(one, np.ndarray)}
    kinds = origin.tolist()
    of_kinds = replace(
        structure,
        kinds=tuple(structure.kinds[kind] for kind in kinds),
        operators=structure.operators[origin],
        roles=structure.roles[origin],
        stays_fp32=structure.stays_fp32[origin],
        kind_of_node=kind_of_node,
        counts=np.bincount(kind_of_node, minlength=len(kinds)),
        fp32_inputs=tuple(structure.fp32_inputs[kind] for kind in kinds) if structure.fp32_inputs else (),
    )
    return replace(lowering, **chosen, structure=of_kinds), label_of_kind


def bytes_per_weight(operator_class: IntArray, structure: Structure, precision: Precision) -> FloatArray:
    """Return for each kind the bytes of one of its weights.

    Quantised are those of products, but for the model's outputs and adapters, and in ``int8`` those of convolutions.
    """
    quantised: FloatArray = np.full(len(operator_class), float(FLOAT_BYTES[precision]))
    if precision in QUANTISED_BYTES:
        narrow = operator_class == OperatorClass.PRODUCT
        if precision == "int8":  # of which runtimes have convolutions, too
            narrow |= (operator_class == _CONVOLUTION) | (operator_class == _GROUPED_CONVOLUTION)

        # Libraries leave the model's head as it is, and adapters are trained.
        narrow[structure.kind_of_node[structure.output_nodes]] = False
        narrow &= ~is_adapter(structure)
        quantised[narrow] = QUANTISED_BYTES[precision]
    return quantised


def weight_memory_bytes(lowering: Lowering, precision: Precision) -> float:
    """Return the bytes of all weights that have no optimizer: in inference, and below adapters."""
    whole = lowering.parameter_count * float(FLOAT_BYTES[precision])
    if precision not in QUANTISED_BYTES:
        return whole

    # In training, the lowering has the bytes of widened weights.
    of_one = bytes_per_weight(lowering.operator_class, lowering.structure, precision)
    weights = lowering.parameter_bytes / (FLOAT_BYTES[precision] if lowering.train else of_one)
    return whole - float(weights * (FLOAT_BYTES[precision] - of_one) @ lowering.structure.counts)


def forward_flop(graph: ModelGraph) -> float:
    """Return the FLOP of one sample's forward pass, a multiply-add being 2."""
    batch_size = graph.fixed_batch_size or 1
    lowering = lower(graph, analyze_structure(graph), Workload(batch_size=batch_size, mode="infer"))
    return step_flop(lowering) / batch_size


def step_flop(lowering: Lowering) -> float:
    """Return the FLOP of one step's forward pass."""
    return float(lowering.flop @ lowering.structure.counts)


_C = OperatorClass
_FUSED = (_C.ELEMENTWISE, _C.BATCH_NORMALIZATION, _C.NORMALIZATION, _C.REDUCTION, _C.COPY)
_FUSES = np.array([one in _FUSED for one in OperatorClass])
MEASURED = (*AUTOCAST, *PURE.values())
"""In inference; no compiled run in fp32 is in public data that we may use, and of training only published figures."""


def is_autocast(workload: Workload) -> bool:
    """Return whether weights of 4 bytes are cast for each product.

    ZeRO and FSDP run the whole module in two bytes, and an engine builds it with weights of two bytes.
    """
    is_sharded = workload.gpus > 1 and workload.strategy != "ddp"
    is_built = workload.engine not in ("eager", "compile")
    return workload.precision in AUTOCAST and workload.generate is None and not is_sharded and not is_built


def is_fusion_measured(workload: Workload) -> bool:
    """Return whether *workload* is compiled and of a kind that was measured compiled."""
    plain = workload.mode == "infer" and workload.generate is None
    compiled = workload.compile or workload.engine == "compile"
    return compiled and plain and workload.precision in MEASURED


def is_fused(workload: Workload) -> bool:
    """Return whether a compiler fuses the operators of *workload*: of a plain pass, or of a training step."""
    trains = workload.mode == "train" and workload.compile and workload.precision in MEASURED
    return trains or is_fusion_measured(workload)


def fused(lowering: Lowering) -> Lowering:
    """Return the work of a pass whose operators are fused, one kind for all nodes that lose as much by it."""
    structure, kind = lowering.structure, lowering.structure.kind_of_node
    classes, count = lowering.operator_class[kind], len(kind)
    fuses = _FUSES[classes]

    # An edge between two nodes that fuse moves nothing; who reads several reads what is left of them.
    works = classes[structure.destinations] != OperatorClass.VIEW
    source, reader = structure.sources[works], structure.destinations[works]
    of_both = fuses[source] & fuses[reader]
    unread_bytes = np.bincount(reader, lowering.output_bytes[kind][source] * of_both, count)

    # What only fused readers read is never written.
    readers = np.bincount(source, minlength=count)
    is_passed_on = fuses & (readers > 0) & (np.bincount(source, of_both, count) == readers)

    changes, labels = np.unique(np.stack([unread_bytes, is_passed_on]), axis=1, return_inverse=True)
    whole, label_of_kind = split_kinds(lowering, labels.reshape(-1))
    not_read, passed_on = changes[:, label_of_kind]
    stays = 1.0 - passed_on
    return replace(
        whole,
        read_bytes=np.maximum(whole.read_bytes - not_read, 0.0),
        written_bytes=whole.written_bytes * stays,
        sequential_steps=whole.sequential_steps * stays,
        dependent_loads=whole.dependent_loads * stays,
        reorder_bytes=np.zeros_like(whole.reorder_bytes),
        cast_elements=whole.cast_elements * (not whole.train),  # in inference the fitted factors have the casts
    )


# An attribute of the thin products, so that they are of another kind than any product of the model.
_MARK = ("adapter", 1)
_MATRIX_RANK = 2


def with_adapters(graph: ModelGraph, rank: int) -> ModelGraph:
    """Return *graph* with adapters of *rank* at its linear layers; its trained share is theirs.

    Raises:
        GraphError: No layer can have an adapter.
    """
    read = {source for sources in graph.producers for source in sources}
    nodes: list[Node] = []
    producers: list[tuple[int, ...]] = []
    place: dict[int, int] = {}  # of each old node, the node whose output takes its place
    for index, (node, sources) in enumerate(zip(graph.nodes, graph.producers, strict=True)):
        sources_here = tuple(place.get(source, source) for source in sources)
        nodes.append(node)
        producers.append(sources_here)
        is_linear = node.op_type in ("MatMul", "Gemm") and len(node.inputs) == len(node.parameters[:1]) == 1
        if index in read and is_linear and len(node.parameters[0]) == _MATRIX_RANK:
            layer = len(nodes) - 1
            nodes += _adapter(node.inputs[0], node.outputs[0], rank)
            producers += [sources_here, (layer + 1,), (layer + 2,), (layer, layer + 3)]
        place[index] = len(nodes) - 1

    added = sum(rows * columns for node in nodes if _MARK in node.attributes for rows, columns in node.parameters)
    if not added:
        message = f"Model {graph.name!r} must have linear layers before its output for 'lora'; got none. Remove 'lora'."
        raise GraphError(message)

    count = graph.parameter_count + added
    return replace(
        graph, nodes=tuple(nodes), producers=tuple(producers), parameter_count=count, trainable=added / count
    )


@lru_cache(maxsize=64)
def _adapter(read: Shape, written: Shape, rank: int) -> tuple[Node, Node, Node, Node]:
    """Return the nodes beside a layer that reads and writes tensors of these shapes: two products, scale and sum.

    Equal layers share them, as nodes of one kind are recognized as the same object.
    """
    thin = (*read[:-1], rank)
    down, up = (
        Node(op_type="MatMul", inputs=(a,), outputs=(b,), parameters=((a[-1], b[-1]),), attributes=(_MARK,))
        for a, b in ((read, thin), (thin, written))
    )
    scale = Node(op_type="Mul", inputs=(written,), outputs=(written,))
    return down, up, scale, Node(op_type="Add", inputs=(written, written), outputs=(written,))


def hidden_matrices(lowering: Lowering) -> FloatArray:
    """Return a row for each kind of hidden matrices that Muon updates: their number, shorter and longer side.

    Hidden are the weights of products that another one follows. Adapters have them alone, as if they were all weights.
    """
    structure, rows = lowering.structure, []
    multiplies, hidden = (lowering.inner > 1)[structure.kind_of_node], np.zeros(len(structure.kind_of_node), dtype=bool)
    for source, reader in zip(structure.sources[::-1].tolist(), structure.destinations[::-1].tolist(), strict=True):
        hidden[source] |= hidden[reader] | multiplies[reader]
    counts = np.bincount(structure.kind_of_node, hidden, len(structure.counts))
    counts *= lowering.operator_class == OperatorClass.PRODUCT

    # What the model has beside all others, which count once for each size: an output may share the weight of a table.
    others = [structure.kinds[kind].parameters for kind in (counts < structure.counts).nonzero()[0].tolist()]
    owned = lowering.parameter_count - sum(map(prod, {tuple(sorted(one)) for weights in others for one in weights}))
    if (adapters := is_adapter(structure)).any():
        counts = structure.counts * adapters
    for kind in counts.nonzero()[0].tolist():
        weights = structure.kinds[kind].parameters  # experts lie one behind the other in one tensor
        rows += [(counts[kind] * prod(one[:-2]), *sorted(one[-2:])) for one in weights if len(one) > 1]

    # Nodes do not say which of them use one weight, so each counts for its part of it.
    result = np.array(rows, dtype=float).reshape(-1, 3)
    used = max(float(result.prod(axis=1).sum()), 1.0)
    result[:, 0] *= lowering.parameter_count / used if adapters.any() else min(max(owned / used, 0.0), 1.0)
    return result


def hidden_share(lowering: Lowering) -> float:
    """Return which part of the weights Muon updates, 0 to 1."""
    return min(float(hidden_matrices(lowering).prod(axis=1).sum()) / max(lowering.parameter_count, 1), 1.0)


def is_adapter(structure: Structure) -> BoolArray:
    """Tell for each kind of node whether it is one of an adapter's products."""
    return np.array([_MARK in kind.attributes for kind in structure.kinds], dtype=bool)
