"""Reads ONNX files: the graph alone, never the weights, for any batch size.

The model runs twice on shapes alone, at two batch sizes; a size that grows with the batch is a multiple of it. A file
that was exported for one batch size is tried at two others, which counts only if all sizes follow.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from gpusage.graphs.batch_sizes import (
    MergedRun,
    edges_note,
    scale_one_batch,
    scaled_note,
    to_graph,
    without_dead_nodes,
)
from gpusage.graphs.model_files import DYNAMIC_BATCH, open_regular_file, printable, quoted
from gpusage.graphs.onnx.file import OnnxModel, OnnxTensor, read_file
from gpusage.graphs.onnx.inputs import InputBinding, bind_inputs
from gpusage.graphs.onnx.nodes import BATCHES, merge_traces, nodes_at_one_batch
from gpusage.graphs.onnx.rewrites import fuse_patterns, restore_batch_normalizations, split_fused_nodes
from gpusage.graphs.onnx.shape_inference import InferenceError, Trace, infer
from gpusage.graphs.quantization import quantized_weights_note
from gpusage_hooks import hookimpl
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node, Precision, Shape

SUFFIX = ".onnx"

_RECURRENT = ("LSTM", "GRU", "RNN")
_IMAGE_RANK = 4
"""Of the input of a convolution of images: batch, channels, height and width."""
_MAXIMUM_LISTED = 6
"""Operators that a note names."""
_QUANTIZED = re.compile(r"^(Dynamic)?(Quantize|Dequantize)|^Q(Linear|Gemm|Attention|MoE)|Integer|NBits$|Bnb4$")
"""Operators of ONNX and ONNX Runtime on numbers of 8 bits or fewer."""
_MAXIMUM_FLOAT_PART = 0.1
"""Of a quantized file's weights; with more floats, a share sized for int8 would be too small."""
_UNCOUNTED = "QMoE"
"""Its weights are packed, and no attribute has their number."""
_PACKED = re.compile(r"NBits$|Bnb4$")
"""Operators with packed weights whose attributes have their number."""
_INT4_BITS = 4
"""Weights of at most so many bits count as int4."""


@hookimpl(trylast=True)
def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Read the graph of an ONNX file; *shape* gives its free dimensions beside the batch."""
    if not source.lower().endswith(SUFFIX):
        return None
    with open_regular_file(source) as descriptor:
        model = read_file(source, descriptor)
        graph, folded = restore_batch_normalizations(split_fused_nodes(model.graph))
        model = replace(model, graph=graph)
        binding = bind_inputs(model.graph.inputs, shape, source)
        trace, merged, fixed = _run_at_batches(model, binding, source)
    example_batch = binding.fixed_batch_size if fixed is None else None
    quantized = Counter(step.op_type for step in trace.steps if _QUANTIZED.search(step.op_type))
    read = to_graph(
        replace(merged.run, unknown=merged.run.unknown | quantized),
        name=printable(PurePath(source).stem),
        source=printable(source),
        parameter_count=sum(trace.weight_counts.values()) - _tied_count(trace, model.graph.initializers),
        fixed_batch_size=fixed,
        notes=_notes(merged, fixed, example_batch, folded, binding.edges),
    )
    return _with_weight_precision(read, quantized, _float_share(trace), _packed_bits(trace))


def _tied_count(trace: Trace, initializers: Mapping[str, OnnxTensor]) -> int:
    """Return the elements of the weights that are the transpose of another: exporters fold tied weights so."""
    seen: set[tuple[Shape, bytes]] = set()
    tied = 0
    for name, count in trace.weight_counts.items():
        weight = initializers.get(name)
        if weight is None or not _is_telling(weight.corners):
            continue
        if (weight.shape[::-1], weight.corners) in seen:
            tied += count
        seen.add((weight.shape, weight.corners))
    return tied


def _is_telling(corners: bytes) -> bool:
    """Return whether a matrix is known by its *corners*: not if both are alike, as in ones, or of 1 byte each."""
    middle = len(corners) // 2
    return middle > 1 and corners[:middle] != corners[middle:]


def _float_share(trace: Trace) -> float:
    """Return the part of the weights that products read as floats, 0 to 1."""
    floats = [*trace.float_products.values()][:-1]  # quantizers often leave the last layer in floats
    return sum(floats) / max(sum(trace.weight_counts.values()), 1)


def _run_at_batches(model: OnnxModel, binding: InputBinding, source: str) -> tuple[Trace, MergedRun, int | None]:
    """Return a run, its nodes, and the batch size if the file works at one alone."""
    try:
        first, second = (infer(model, binding.shapes(batch), binding.symbols(batch)) for batch in BATCHES)
    except InferenceError as error:
        return _run_at_one_batch(model, binding, source, error)
    merged = merge_traces(first, second)
    if merged is not None:
        merged = replace(merged, run=without_dead_nodes(fuse_patterns(merged.run)))
        if binding.fixed_batch_size is None or _follows_batch(merged):
            return first, merged, None
    return _run_at_one_batch(model, binding, source, None)


def _run_at_one_batch(
    model: OnnxModel, binding: InputBinding, source: str, cause: Exception | None
) -> tuple[Trace, MergedRun, int | None]:
    """Return the run at the batch size that the file was exported for, scaled where its sizes allow it.

    A file that declares a free batch, and does not work at any, runs at 1.
    """
    batch = binding.fixed_batch_size or 1
    try:
        trace = infer(model, binding.shapes(batch), binding.symbols(batch))
    except InferenceError as error:
        message = (
            f"Model {quoted(source)} must have shapes that fit each other; {error if cause is None else cause}. "
            "Check --shape, or export the model again."
        )
        raise GraphError(message) from error
    run = without_dead_nodes(fuse_patterns(nodes_at_one_batch(trace)))
    recurrent = next((node for node in run.nodes if node.op_type in _RECURRENT and node.inputs), None)
    if recurrent is not None and binding.fixed_batch_size is not None:
        batch = recurrent.inputs[0][_batch_axis(recurrent)]  # the inputs' first size may count time steps
    elif _first_image_shape(run.nodes)[:1] == (1,) and binding.fixed_batch_size is not None:
        batch = 1  # the inputs' first size may be an image's channels or height
    elif binding.fixed_batch_size is not None and (scaled := scale_one_batch(run, batch)) is not None:
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
    """Return the input shape of the first convolution of images, ``()`` if there is none."""
    shapes = (node.inputs[0] for node in nodes if node.op_type == "Conv" and node.inputs)
    return next((shape for shape in shapes if len(shape) == _IMAGE_RANK), ())


def _batch_axis(recurrent: Node) -> int:
    """Return the axis of the batch in a recurrent layer's first input."""
    return 0 if dict(recurrent.attributes).get("layout") else 1


def _notes(merged: MergedRun, fixed: int | None, example_batch: int | None, folded: int, edges: str) -> Iterator[str]:
    if fixed is not None and edges:
        yield edges_note(printable(edges))
    elif fixed is not None:
        yield f"The file works only at batch size {fixed}. {DYNAMIC_BATCH} to use another."
    if example_batch is not None:
        yield scaled_note(example_batch)
    if folded:
        yield f"The exporter folded {folded} batch normalizations into convolutions; they are counted as in training."
    if merged.run.unknown:
        yield f"Counted by their shapes alone, because no rule describes them: {_join_counts(merged.run.unknown)}."
    if merged.uneven:
        yield f"Sizes that are no multiple of the batch were rounded up: {_join_counts(merged.uneven)}."


def _with_weight_precision(
    graph: ModelGraph, quantized: Counter[str], float_share: float, packed_bits: int
) -> ModelGraph:
    """Return *graph* with the precision of its weights, and a note, if it has quantized operators."""
    if not quantized:
        return graph
    if _UNCOUNTED in quantized:
        note = (
            f"The file is quantised ({_join_counts(quantized)}), several weights to a byte, and each counts as a "
            "weight at the workload's precision."
        )
        return replace(graph, notes=(*graph.notes, note))
    if float_share > _MAXIMUM_FLOAT_PART:
        note = f"A part of the file is quantised ({_join_counts(quantized)}); all of its weights count as floats."
        return replace(graph, notes=(*graph.notes, note))
    precision: Precision = "int4" if packed_bits and packed_bits <= _INT4_BITS else "int8"
    return replace(
        graph, precision=precision, notes=(*graph.notes, quantized_weights_note(_join_counts(quantized), precision))
    )


def _packed_bits(trace: Trace) -> int:
    """Return the bits of the widest packed weight, 0 if there is none."""
    packed = (step.attributes.get("bits", _INT4_BITS) for step in trace.steps if _PACKED.search(step.op_type))
    return max((bits for bits in packed if isinstance(bits, int)), default=0)


def _join_counts(counts: Counter[str]) -> str:
    words = [f"{count} {printable(name)}" for name, count in counts.most_common(_MAXIMUM_LISTED)]
    return ", ".join(words) + (", ..." if len(counts) > _MAXIMUM_LISTED else "")
