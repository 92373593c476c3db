"""Reads ONNX files: the graph alone, never the weights, for any batch size.

The model runs twice on shapes alone, at two batch sizes; a size that grows with the batch is a multiple of it. A file
that was exported for one batch size is tried at two others, and believed only where everything follows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from gpusage.graphs.edges import edges_note
from gpusage.graphs.guard import printable, regular_file, shown
from gpusage.graphs.onnx.batch_normalizations import unfold
from gpusage.graphs.onnx.file import OnnxModel, read_file
from gpusage.graphs.onnx.fusing import fuse
from gpusage.graphs.onnx.inputs import Binding, bind
from gpusage.graphs.onnx.nodes import BATCHES, nodes_at_any_batch, nodes_of
from gpusage.graphs.onnx.shape_inference import InferenceError, Trace, infer
from gpusage.graphs.onnx.unfused import unfused
from gpusage.graphs.quantisation import quantised_note
from gpusage.graphs.two_runs import Merged, graph_of, live
from gpusage_hooks import hookimpl
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node, Precision, Shape

SUFFIX = ".onnx"

_RECURRENT = ("LSTM", "GRU", "RNN")
_PICTURE_RANK = 4
"""Of what a convolution of pictures reads: batch, channels, height and width."""
_LISTED = 6
"""Operators that a note names."""
_QUANTISED = re.compile(r"^(Dynamic)?(Quantize|Dequantize)|^Q(Linear|Gemm|Attention|MoE)|Integer|NBits$|Bnb4$")
"""Operators of ONNX and ONNX Runtime on numbers of 8 bits or fewer."""
_MOST_FLOATS = 0.1
"""Of a quantised file's weights; with more, a share would be too small for it."""
_UNTOLD = "QMoE"
"""Its weights are packed, and nothing says how many they are."""
_PACKED = re.compile(r"NBits$|Bnb4$")
"""Those whose weights are packed, and say how many they are."""
_NARROW_BITS = 4
"""Weights of so many bits and fewer count as int4."""


@hookimpl(trylast=True)
def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Read the graph of an ONNX file; *shape* gives its free dimensions beside the batch."""
    if not source.lower().endswith(SUFFIX):
        return None
    with regular_file(source) as descriptor:
        model = read_file(source, descriptor)
        graph, folded = unfold(unfused(model.graph))
        model = replace(model, graph=graph)
        binding = bind(model.graph.inputs, shape, source)
        trace, merged, fixed = _played(model, binding, source)
    followed = binding.fixed_batch_size if fixed is None else None
    quantised = Counter(step.op_type for step in trace.steps if _QUANTISED.search(step.op_type))
    read = graph_of(
        replace(merged.run, unknown=merged.run.unknown | quantised),
        name=printable(PurePath(source).stem),
        source=printable(source),
        parameter_count=sum(trace.weight_counts.values()),
        fixed_batch_size=fixed,
        notes=_notes(merged, fixed, followed, folded, binding.edges),
    )
    return _with_quantised_weights(read, quantised, _float_share(trace), _packed_bits(trace))


def _float_share(trace: Trace) -> float:
    """Return which part of the weights is read by products as floats; the last one, a model's output, may be one."""
    floats = [*trace.float_products.values()][:-1]
    return sum(floats) / max(sum(trace.weight_counts.values()), 1)


def _played(model: OnnxModel, binding: Binding, source: str) -> tuple[Trace, Merged, int | None]:
    """Return a run, its nodes, and the batch size where the file works for one alone."""
    try:
        first, second = (infer(model, binding.shapes(batch), binding.symbols(batch)) for batch in BATCHES)
    except InferenceError as error:
        return _played_once(model, binding, source, error)
    merged = nodes_at_any_batch(first, second)
    if merged is not None:
        merged = replace(merged, run=live(fuse(merged.run)))
        if binding.fixed_batch_size is None or _all_follow(merged):
            return first, merged, None
    return _played_once(model, binding, source, None)


def _played_once(model: OnnxModel, binding: Binding, source: str, cause: Exception | None) -> tuple[Trace, Merged, int]:
    """Return the run at the one batch size that the file was made for; 1 where it claims to work for any."""
    batch = binding.fixed_batch_size or 1
    try:
        trace = infer(model, binding.shapes(batch), binding.symbols(batch))
    except InferenceError as error:
        message = (
            f"Model {shown(source)} must have shapes that fit each other; {error if cause is None else cause}. "
            "Check --shape, or export the model again."
        )
        raise GraphError(message) from error
    run = live(fuse(nodes_of(trace)))
    recurrent = next((node for node in run.nodes if node.op_type in _RECURRENT and node.inputs), None)
    if recurrent is not None and binding.fixed_batch_size is not None:
        batch = recurrent.inputs[0][_batch_place(recurrent)]  # the inputs' first size may be the time steps
    elif _first_picture(run.nodes)[:1] == (1,) and binding.fixed_batch_size is not None:
        batch = 1  # the inputs' first size may be a picture's channels or height
    return trace, Merged(run=run, uneven=Counter(), squared=Counter()), batch


def _all_follow(merged: Merged) -> bool:
    """Tell whether a file without a free batch dimension works at other batch sizes all the same.

    A size that was written down at export either breaks the run, or leaves a tensor that does not grow with the batch,
    or one that grows with its square, or a recurrent layer that takes the time steps for the batch, or a convolution
    that reads one picture whatever the batch.
    """
    nodes = merged.run.nodes
    outputs = (shape for index in merged.run.results for shape in nodes[index].outputs)
    recurrent = (node for node in nodes if node.op_type in _RECURRENT and node.inputs)
    return (
        not merged.uneven
        and not merged.squared
        and all(min(shape, default=0) < 0 for shape in outputs)
        and all(node.inputs[0][_batch_place(node)] < 0 for node in recurrent)
        and min(_first_picture(nodes)[:1], default=-1) < 0
    )


def _first_picture(nodes: Sequence[Node]) -> Shape:
    """Return the shape of the pictures that the first convolution reads."""
    read = (node.inputs[0] for node in nodes if node.op_type == "Conv" and node.inputs)
    return next((shape for shape in read if len(shape) == _PICTURE_RANK), ())


def _batch_place(recurrent: Node) -> int:
    """Return which dimension of a recurrent layer's first input is the batch."""
    return 0 if dict(recurrent.attributes).get("layout") else 1


def _notes(merged: Merged, fixed: int | None, followed: int | None, folded: int, edges: str) -> Iterator[str]:
    if fixed is not None and edges:
        yield edges_note(printable(edges))
    elif fixed is not None:
        yield f"The file works at batch size {fixed} alone; export it with a dynamic batch axis to use another."
    if followed is not None:
        yield f"The file was exported for batch size {followed}; every size in it follows the batch all the same."
    if folded:
        yield f"The exporter folded {folded} batch normalizations into convolutions; they are counted as in training."
    if merged.run.unknown:
        yield f"Not described by a rule, and counted by their shapes alone: {_listed(merged.run.unknown)}."
    if merged.uneven:
        yield f"Sizes that are no multiple of the batch were rounded up: {_listed(merged.uneven)}."


def _with_quantised_weights(
    graph: ModelGraph, quantised: Counter[str], float_share: float, packed_bits: int
) -> ModelGraph:
    """Return *graph* with the precision of its weights, and a note, where it has operators on quantised numbers."""
    if not quantised:
        return graph
    if _UNTOLD in quantised:
        note = (
            f"The file is quantised ({_listed(quantised)}), several weights to a byte, and each counts as a weight "
            "at the workload's precision."
        )
        return replace(graph, notes=(*graph.notes, note))
    if float_share > _MOST_FLOATS:
        note = f"A part of the file is quantised ({_listed(quantised)}); all of its weights count as floats."
        return replace(graph, notes=(*graph.notes, note))
    precision: Precision = "int4" if packed_bits and packed_bits <= _NARROW_BITS else "int8"
    return replace(graph, precision=precision, notes=(*graph.notes, quantised_note(_listed(quantised), precision)))


def _packed_bits(trace: Trace) -> int:
    """Return how many bits the widest weight has that shares its bytes with others; 0 where none does."""
    packed = (step.attributes.get("bits", _NARROW_BITS) for step in trace.steps if _PACKED.search(step.op_type))
    return max((bits for bits in packed if isinstance(bits, int)), default=0)


def _listed(counts: Counter[str]) -> str:
    words = [f"{count} {printable(name)}" for name, count in counts.most_common(_LISTED)]
    return ", ".join(words) + (", ..." if len(counts) > _LISTED else "")
