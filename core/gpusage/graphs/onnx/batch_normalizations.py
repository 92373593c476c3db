"""Puts back batch normalizations that an exporter folded into the convolution before them.

In evaluation a batch normalization is a factor and a summand per channel, which exporters multiply into the
convolution's weights. The job that trains the model runs them, and keeps what they need, so a prediction has to count
them. They are told by what PyTorch's exporters leave behind: weights that lost their names (``onnx::Conv_497``, with a
bias), or a convolution whose result is named as that of a batch normalization (``getitem_3``); and by the name that
tf2onnx gives such weights (``stem/merged_input:0``).
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpusage.graphs.onnx.file import OnnxGraph, OnnxNode
from gpusage.graphs.onnx.tensors import OnnxTensor

_NAMELESS = re.compile(r"(?:onnx::Conv_)?\d+")
_MERGED = re.compile(r".*/merged_input(?::\d+)?")
_NORMALIZED = re.compile(r"(?:getitem|batch_norm|_native_batch_norm\w*)(?:_\d+)?")
_WEIGHT, _BIAS = 1, 2
_FIGURES = ("scale", "shift", "mean", "variance")


def unfold(graph: OnnxGraph) -> tuple[OnnxGraph, int]:
    """Return *graph* with its folded batch normalizations as nodes again, and how many they are."""
    nodes: list[OnnxNode] = []
    figures: dict[str, OnnxTensor] = {}
    for node in graph.nodes:
        if not _is_folded(node, graph):
            nodes.append(node)
            continue
        before = f"{node.outputs[0]}/before_normalization"
        names = [f"{node.outputs[0]}/{figure}" for figure in _FIGURES]
        channels = graph.initializers[node.inputs[_WEIGHT]].shape[:1]
        figures.update((name, OnnxTensor(name, channels, "float")) for name in names)
        nodes.append(replace(node, inputs=node.inputs[:_BIAS], outputs=(before,)))
        nodes.append(OnnxNode(node.name, "BatchNormalization", "", (before, *names), node.outputs, {}))
    restored = replace(graph, nodes=tuple(nodes), initializers={**graph.initializers, **figures})
    return restored, len(figures) // len(_FIGURES)


def _is_folded(node: OnnxNode, graph: OnnxGraph) -> bool:
    if node.op_type != "Conv" or node.domain or len(node.outputs) != 1:
        return False
    weight = graph.initializers.get(node.inputs[_WEIGHT]) if len(node.inputs) > _WEIGHT else None
    if weight is None or not weight.shape:
        return False
    if _MERGED.fullmatch(weight.name):
        return True
    nameless = len(node.inputs) > _BIAS and all(_NAMELESS.fullmatch(name) for name in node.inputs[_WEIGHT:])
    return nameless or _NORMALIZED.fullmatch(node.outputs[0]) is not None
