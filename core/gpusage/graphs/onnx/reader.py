"""Reads ONNX files: the graph alone, never the weights, for any batch size.

The model runs twice on shapes alone, at two batch sizes; a size that grows with the batch is a multiple of it. A file
that was exported for one batch size runs at two others, which counts only if all sizes follow. Steps of a run that
cost a GPU time become nodes with the figures of their cost; constants and arithmetic on shapes are free.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from gpusage.graphs.batch_sizes import (
    MergedRun,
    ModelRun,
    edges_note,
    merge_runs,
    scale_one_batch,
    scaled_note,
    to_graph,
    without_dead_nodes,
)
from gpusage.graphs.model_files import DYNAMIC_BATCH, open_regular_file, printable, quoted
from gpusage.graphs.onnx.file import OnnxModel, OnnxTensor, read_file
from gpusage.graphs.onnx.inputs import InputBinding, bind_inputs
from gpusage.graphs.onnx.rewrites import fuse_patterns, restore_batch_normalizations, split_fused_nodes
from gpusage.graphs.onnx.shape_inference import InferenceError, Step, Trace, infer, packed_weight
from gpusage.graphs.onnx.shapes import Value
from gpusage.graphs.quantization import quantized_weights_note
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Attribute, ModelGraph, Node, Precision, Shape

BATCHES = (8, 12)
"""Batch sizes of the two runs. Both divide by 2 and 4, because some models split the batch."""

_RECURRENT = ("LSTM", "GRU", "RNN")
# Of the input of a convolution of images: batch, channels, height and width.
_IMAGE_RANK = 4
# Operators that a note names.
_MAXIMUM_LISTED = 6
# Operators of ONNX and ONNX Runtime on numbers of 8 bits or fewer.
_QUANTIZED = re.compile(r"^(Dynamic)?(Quantize|Dequantize)|^Q(Linear|Gemm|Attention|MoE)|Integer|NBits$|Bnb4$")
# Of a quantized file's weights; with more floats, a share sized for int8 would be too small.
_MAXIMUM_FLOAT_PART = 0.1
# Its weights are packed, and no attribute has their number.
_UNCOUNTED = "QMoE"
# Operators with packed weights whose attributes have their number.
_PACKED = re.compile(r"NBits$|Bnb4$")
# Weights of at most so many bits count as int4.
_INT4_BITS = 4

# The attributes that change a node's cost.
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "FusedConv"),
        ("auto_pad", "dilations", "group", "kernel_shape", "output_padding", "pads", "strides"),
    ),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), ("auto_pad", "ceil_mode", "kernel_shape", "pads", "strides")),
    **dict.fromkeys(("Gemm", "FusedMatMul"), ("transA", "transB")),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), ("direction", "hidden_size", "layout")),
    **dict.fromkeys(
        ("Attention", "MultiHeadAttention", "GroupQueryAttention"),
        ("is_causal", "kv_num_heads", "num_heads", "q_num_heads", "unidirectional"),
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax", "LayerNormalization", "Concat", "Gather", "Split"), ("axis",)),
    "Transpose": ("perm",),
    "Resize": ("mode",),
    "Einsum": ("equation",),
}

_FREE = frozenset({"Identity", "StopGradient"})
# Operators that cost the same as another one; most are ONNX Runtime's.
_SAME_WORK: Mapping[str, str] = {
    **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "GemmFastGelu"), "MatMul"),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4"), "MatMul"),
    **dict.fromkeys(("FusedGemm", "QGemm"), "Gemm"),
    **{f"QLinear{name}": name for name in ("Add", "Mul", "Sigmoid", "LeakyRelu", "Softmax", "Concat", "AveragePool")},
    **dict.fromkeys(("BlockedConv", "FusedConv"), "Conv"),
    **dict.fromkeys(("ReorderInput", "ReorderOutput"), "Identity"),
    **dict.fromkeys(("BiasAdd", "TensorScatter"), "Add"),
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "DynamicQuantizeLSTM": "LSTM",
    "BiasSoftmax": "Softmax",
    "GroupNorm": "GroupNormalization",
    "RotaryEmbedding": "Mul",
    "CumProd": "CumSum",
    "Erfc": "Erf",
}
_ATTENTIONS = ("Attention", "MultiHeadAttention", "GroupQueryAttention")


def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of an ONNX file; *shape* gives its free dimensions beside the batch.

    Raises:
        GraphError: The file cannot be read, or its shapes do not fit each other.
    """
    with open_regular_file(source) as descriptor:
        model = read_file(source, descriptor)
        # Fused nodes first: a fused convolution may have a folded normalization.
        graph, folded_count = restore_batch_normalizations(split_fused_nodes(model.graph))
        model = replace(model, graph=graph)
        binding = bind_inputs(model.graph.inputs, shape, source)
        trace, merged, fixed = _run_at_batches(model, binding, source)

    # The graph lists quantized operators with the unknown ones; a note of its own explains them.
    quantized = Counter(step.op_type for step in trace.steps if _QUANTIZED.search(step.op_type))
    graph_of_run = to_graph(
        replace(merged.run, unknown=merged.run.unknown | quantized),
        name=printable(PurePath(source).stem),
        source=printable(source),
        parameter_count=sum(trace.weight_counts.values()) - _tied_count(trace, model.graph.initializers),
        fixed_batch_size=fixed,
        notes=_notes(merged, fixed, binding, folded_count),
    )
    return _with_weight_precision(graph_of_run, quantized, trace) if quantized else graph_of_run


def _tied_count(trace: Trace, initializers: Mapping[str, OnnxTensor]) -> int:
    """Return the number of elements in weights that are the transpose of another weight."""
    # An output layer may share the embedding's weights; exporters then write the transpose as a weight of its own.
    seen: set[tuple[Shape, bytes]] = set()
    tied = 0
    for name, count in trace.weight_counts.items():
        weight = initializers.get(name)
        middle = len(weight.corners) // 2 if weight else 0
        # Equal corners, as in a matrix of ones, or corners of a byte each do not tell one weight from another.
        if weight is None or middle <= 1 or weight.corners[:middle] == weight.corners[middle:]:
            continue
        if (weight.shape[::-1], weight.corners) in seen:
            tied += count
        seen.add((weight.shape, weight.corners))

    return tied


def _run_at_batches(model: OnnxModel, binding: InputBinding, source: str) -> tuple[Trace, MergedRun, int | None]:
    """Return a run, its nodes, and the batch size if the file works at a single one."""
    cause: InferenceError | None = None
    try:
        first, second = (infer(model, binding.shapes(batch), binding.symbols(batch)) for batch in BATCHES)
    except InferenceError as error:
        cause = error
    else:
        merged = merge_traces(first, second)
        if merged is not None:
            merged = replace(merged, run=without_dead_nodes(fuse_patterns(merged.run)))
            if binding.fixed_batch_size is None or _follows_batch(merged):
                return first, merged, None

    # The batch size that the file was exported for. A file with a free batch that works at neither size runs at 1.
    batch = binding.fixed_batch_size or 1
    try:
        trace = infer(model, binding.shapes(batch), binding.symbols(batch))
    except InferenceError as error:
        message = (
            f"Model {quoted(source)} must have shapes that fit each other; {cause or error}. "
            "Check --shape, or export the model again."
        )
        raise GraphError(message) from error
    run = without_dead_nodes(fuse_patterns(_nodes(trace, [_is_free(step, step) for step in trace.steps])))

    if binding.fixed_batch_size is not None:
        recurrent = next((node for node in run.nodes if node.op_type in _RECURRENT and node.inputs), None)
        if recurrent is not None:
            # The inputs' first size may count time steps.
            batch = recurrent.inputs[0][_batch_axis(recurrent)]
        elif _first_image_shape(run.nodes)[:1] == (1,):
            # The inputs' first size may be an image's channels or height.
            batch = 1
        elif (scaled := scale_one_batch(run, batch)) is not None:
            return trace, MergedRun(run=scaled, uneven=Counter(), squared=Counter()), None
    return trace, MergedRun(run=run, uneven=Counter(), squared=Counter()), batch


def _follows_batch(merged: MergedRun) -> bool:
    """Return whether a file without a free batch dimension works at other batch sizes all the same.

    A constant batch size in the graph either breaks the run, or leaves an output that does not grow with the batch, or
    a tensor that grows with its square, or a recurrent layer whose time steps grow, or a convolution of one image.
    """
    nodes = merged.run.nodes
    outputs = (shape for index in merged.run.results for shape in nodes[index].outputs)
    recurrent = (node for node in nodes if node.op_type in _RECURRENT and node.inputs)
    return (
        not merged.uneven
        and not merged.squared
        and all(min(shape, default=0) < 0 for shape in outputs)
        and all(node.inputs[0][_batch_axis(node)] < 0 for node in recurrent)
        and min(_first_image_shape(nodes)[:1], default=-1) < 0
    )


def _first_image_shape(nodes: Sequence[Node]) -> Shape:
    """Return the input shape of the first convolution of images, or ``()``."""
    shapes = (node.inputs[0] for node in nodes if node.op_type == "Conv" and node.inputs)
    return next((shape for shape in shapes if len(shape) == _IMAGE_RANK), ())


def _batch_axis(recurrent: Node) -> int:
    """Return the axis of the batch in a recurrent layer's first input."""
    return 0 if dict(recurrent.attributes).get("layout") else 1


def _notes(merged: MergedRun, fixed: int | None, binding: InputBinding, folded_count: int) -> list[str]:
    """Return the notes on the reading of the file, a sentence each."""
    notes = []
    if fixed is not None and binding.edges:
        notes.append(edges_note(printable(binding.edges)))
    elif fixed is not None:
        notes.append(f"The file works only at batch size {fixed}. {DYNAMIC_BATCH} to use another.")
    elif binding.fixed_batch_size is not None:
        notes.append(scaled_note(binding.fixed_batch_size))

    if folded_count:
        notes.append(
            f"The exporter folded {folded_count} batch normalizations into convolutions; "
            "they are counted as in training."
        )

    if merged.run.unknown:
        unknown = _join_counts(merged.run.unknown)
        notes.append(f"Counted by their shapes alone, because no rule describes them: {unknown}.")
    if merged.uneven:
        notes.append(f"Sizes that are no multiple of the batch were rounded up: {_join_counts(merged.uneven)}.")
    return notes


def _with_weight_precision(graph: ModelGraph, quantized: Counter[str], trace: Trace) -> ModelGraph:
    """Return *graph*, which has *quantized* operators, with the precision of its weights, and a note."""
    # Without the last layer, which quantizers often leave in floats.
    floats = [*trace.float_products.values()][:-1]
    float_part = sum(floats) / max(sum(trace.weight_counts.values()), 1)
    operators = _join_counts(quantized)
    if _UNCOUNTED in quantized:
        note = (
            f"The file is quantised ({operators}), several weights to a byte, and each counts as a "
            "weight at the workload's precision."
        )
        return replace(graph, notes=(*graph.notes, note))
    if float_part > _MAXIMUM_FLOAT_PART:
        note = f"A part of the file is quantised ({operators}); all of its weights count as floats."
        return replace(graph, notes=(*graph.notes, note))

    # The widest packed weight counts: a share must have room for all.
    widths = (step.attributes.get("bits", _INT4_BITS) for step in trace.steps if _PACKED.search(step.op_type))
    bits = max((width for width in widths if isinstance(width, int)), default=0)
    precision: Precision = "int4" if bits and bits <= _INT4_BITS else "int8"
    return replace(graph, precision=precision, notes=(*graph.notes, quantized_weights_note(operators, precision)))


def _join_counts(counts: Counter[str]) -> str:
    words = [f"{count} {printable(name)}" for name, count in counts.most_common(_MAXIMUM_LISTED)]
    return ", ".join(words) + (", ..." if len(counts) > _MAXIMUM_LISTED else "")


def merge_traces(first: Trace, second: Trace) -> MergedRun | None:
    """Return the nodes of the runs at `BATCHES` for any batch size; ``None`` if the runs have different operators."""
    if len(first.steps) != len(second.steps):
        return None

    # A step is free in both runs or in neither, so that the nodes of both match.
    free = []
    for one, other in zip(first.steps, second.steps, strict=True):
        if one.op_type != other.op_type or len(one.outputs) != len(other.outputs):
            return None
        free.append(_is_free(one, other))
    return merge_runs(_nodes(first, free), _nodes(second, free), BATCHES)


def _is_free(one: Step, other: Step) -> bool:
    """Return whether a step costs nothing, with outputs that are constants of the file or numbers for shapes.

    Args:
        one: The step at one batch size.
        other: The same step at the other batch size.
    """
    are_numbers = are_constants = True
    for value, twin in zip(one.outputs, other.outputs, strict=True):
        are_numbers = are_numbers and value.elements is not None and twin.elements is not None
        are_constants = are_constants and value.constant and value.shape == twin.shape
    return are_numbers or are_constants


def _nodes(trace: Trace, free: Sequence[bool]) -> ModelRun:
    """Return the steps of a run as nodes, without the *free* ones."""
    node_of_step: list[int | None] = []
    nodes: list[Node] = []
    producers: list[tuple[int, ...]] = []
    unknown: Counter[str] = Counter()

    def producer_of(value: Value) -> int | None:
        """Return the node or input of *value*; ``None`` for a constant or arithmetic on shapes."""
        # Inputs have negative numbers, and stay as they are.
        return value.producer if value.producer is None or value.producer < 0 else node_of_step[value.producer]

    for step, is_free in zip(trace.steps, free, strict=True):
        if is_free:
            node_of_step.append(None)
            continue
        # A step that costs nothing is not a node: its readers read its input.
        forwarded = _forwarded_value(trace, step)
        if forwarded is not None:
            node_of_step.append(producer_of(forwarded))
            continue

        read = [
            (value.shape, producer)
            for value in step.inputs
            if value is not None and value.shape is not None and (producer := producer_of(value)) is not None
        ]
        if step.op_type in _ATTENTIONS and read:
            read = _attention_inputs(step, read)
        node_of_step.append(len(nodes))
        nodes.append(_node(step, tuple(shape for shape, _ in read)))
        producers.append(tuple(producer for _, producer in read))
        if not step.known:
            unknown[step.op_type] += 1

    results = [producer_of(value) for value in trace.outputs]
    return ModelRun(
        nodes=tuple(nodes),
        producers=tuple(producers),
        inputs=trace.inputs,
        results=tuple(producer for producer in results if producer is not None and producer >= 0),
        unknown=unknown,
    )


def _forwarded_value(trace: Trace, step: Step) -> Value | None:
    """Return the input that *step* returns at no cost; ``None`` for a step that works."""
    first = step.inputs[0] if step.inputs else None
    if step.op_type in _FREE and first is not None:
        return first

    # torch.onnx exports a safe softmax as ``Where(IsNaN(softmax), 0, softmax)``. In training that is one fused
    # kernel: the test and the choice are free.
    if step.op_type == "Where" and first is not None and first.producer is not None and first.producer >= 0:
        test = trace.steps[first.producer]
        last = step.inputs[2]
        tested = test.inputs[0] if test.op_type == "IsNaN" else None
        if tested is not None and last is not None and tested.producer == last.producer:
            return last
    return None


def _attention_inputs(step: Step, read: Sequence[tuple[Shape, int]]) -> list[tuple[Shape, int]]:
    """Return an attention's inputs with query, keys and values apart, also if the file packs them in fewer tensors."""
    (query, producer), *others = read
    packed = len(step.inputs) < 2 or step.inputs[1] is None  # query and key
    together = not packed and (len(step.inputs) < 3 or step.inputs[2] is None)  # key and value
    if packed:
        query = step.outputs[0].shape or query
        others = [(query, producer), (query, producer), *others]
    elif together:
        others = [*others[:1], *others]

    # Keys and values are as long as the caches that the node writes, with the keys and values of earlier steps.
    caches = [value.shape for value in step.outputs[1:] if value.shape is not None]
    caches = [caches[0][1:]] * 2 if packed and len(caches) == 1 else caches
    past = sum(value is not None for value in step.inputs[3:])
    if len(caches) == 2 and past and len(others) > 1:  # keys and values
        others = [(cache, one) for cache, (_, one) in zip(caches, others, strict=False)]
    return [(query, producer), *others]


def _node(step: Step, inputs: tuple[Shape, ...]) -> Node:
    """Return *step* as a node with the weights and the attributes of its cost."""
    op_type = _SAME_WORK.get(step.op_type, step.op_type)
    packed = packed_weight(step.op_type, step.attributes)
    parameters = [
        value.shape
        for value in step.inputs
        if value is not None and value.constant and value.is_weight and value.shape is not None
    ]
    if packed:
        parameters = [packed]
    # The matrix of a quantized product comes before its scales.
    if step.op_type.startswith("Q"):
        parameters.sort(key=len, reverse=True)

    attributes: list[tuple[str, Attribute]] = []
    for name in _ATTRIBUTES.get(op_type, ()):
        setting = step.attributes.get(name)
        if isinstance(setting, tuple):
            attributes.append((name, tuple(map(int, setting))))
        # NOTSET is the default of auto_pad: explicit pads count.
        elif isinstance(setting, (int, float)) or (isinstance(setting, str) and setting not in {"", "NOTSET"}):
            attributes.append((name, setting))
    return Node(
        op_type=op_type,
        inputs=inputs,
        outputs=tuple(value.shape for value in step.outputs if value.shape is not None),
        parameters=tuple(parameters),
        attributes=tuple(attributes),
        element_type=step.outputs[0].element_type if step.outputs else "float",
    )
