"""Turns the steps of an ONNX model's run into nodes: only steps that cost a GPU time, with what the cost depends on.

Constants and arithmetic on shapes cost nothing and are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpusage.graphs.onnx.file import Attribute as FileAttribute
from gpusage.graphs.onnx.shape_inference import Step, Trace, packed_weight
from gpusage.graphs.onnx.shapes import Value
from gpusage.graphs.two_runs import Merged, ModelRun, merge
from gpusage_hooks.types import Attribute, Node, Shape

BATCHES = (8, 12)
"""The batch sizes at which a model runs: both have many divisors, for models that fold the batch in two or four."""

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
"""What of a node's attributes changes its cost."""

_FREE = frozenset({"Identity", "StopGradient"})
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
"""Operators whose work is that of another one; most are ONNX Runtime's."""
_ATTENTIONS = ("Attention", "MultiHeadAttention", "GroupQueryAttention")


def nodes_at_any_batch(first: Trace, second: Trace) -> Merged | None:
    """Return what ran in both of the runs at `BATCHES`, `None` where they took different ways."""
    if _way(first) != _way(second):
        return None
    free = [_is_free(one, other) for one, other in zip(first.steps, second.steps, strict=True)]
    return merge(_Nodes(first, free).run(), _Nodes(second, free).run(), BATCHES)


def _way(trace: Trace) -> list[tuple[str, int]]:
    """Return the way that a run took: which operators, each with its number of outputs."""
    return [(step.op_type, len(step.outputs)) for step in trace.steps]


def nodes_of(trace: Trace) -> ModelRun:
    """Return what ran at the one batch size of *trace*."""
    return _Nodes(trace, [_is_free(step, step) for step in trace.steps]).run()


class _Nodes:
    """Goes through the steps of a run; remembers which node made the outputs of which step."""

    def __init__(self, trace: Trace, free: Sequence[bool]) -> None:
        self._trace = trace
        self._free = free
        self._makers: list[int | None] = []
        self._nodes: list[Node] = []
        self._producers: list[tuple[int, ...]] = []
        self._unknown: Counter[str] = Counter()

    def run(self) -> ModelRun:
        for step, free in zip(self._trace.steps, self._free, strict=True):
            self._makers.append(None if free else self._node(step))
        makers = [self._maker(value) for value in self._trace.outputs]
        return ModelRun(
            nodes=tuple(self._nodes),
            producers=tuple(self._producers),
            inputs=self._trace.inputs,
            results=tuple(maker for maker in makers if maker is not None and maker >= 0),
            unknown=self._unknown,
        )

    def _node(self, step: Step) -> int | None:
        """Return the node or input that gives the outputs of *step*: a new one, unless the step only hands on."""
        source = self._handed_on(step)
        if source is not None:
            return self._maker(source)
        read = [
            (value.shape, maker)
            for value in step.inputs
            if value is not None and value.shape is not None and (maker := self._maker(value)) is not None
        ]
        if step.op_type in _ATTENTIONS and read:
            read = _attended(step, read)
        op_type = _SAME_WORK.get(step.op_type, step.op_type)
        self._nodes.append(
            Node(
                op_type=op_type,
                inputs=tuple(shape for shape, _ in read),
                outputs=tuple(value.shape for value in step.outputs if value.shape is not None),
                parameters=tuple(_parameters(step)),
                attributes=tuple(_attributes(op_type, step.attributes)),
                element_type=step.outputs[0].element_type if step.outputs else "float",
            )
        )
        self._producers.append(tuple(maker for _, maker in read))
        if not step.known:
            self._unknown[step.op_type] += 1
        return len(self._nodes) - 1

    def _maker(self, value: Value) -> int | None:
        """Return the node or input that gives *value*, ``None`` where it is a constant or known beforehand."""
        if value.origin is None or value.origin < 0:
            return value.origin
        return self._makers[value.origin]

    def _handed_on(self, step: Step) -> Value | None:
        """Return the value that *step* only hands on.

        PyTorch's exporter writes a safe softmax as a choice between the softmax and 0 where it is not a number; what
        runs in training is the one fused operation.
        """
        first = step.inputs[0] if step.inputs else None
        if step.op_type in _FREE and first is not None:
            return first
        if step.op_type == "Where" and first is not None and first.origin is not None and first.origin >= 0:
            test = self._trace.steps[first.origin]
            last = step.inputs[2]
            tested = test.inputs[0] if test.op_type == "IsNaN" else None
            if tested is not None and last is not None and tested.origin == last.origin:
                return last
        return None


def _is_free(one: Step, other: Step) -> bool:
    """Tell whether a step costs nothing: its results are the file's constants, or numbers that shapes are made of."""
    pairs = list(zip(one.outputs, other.outputs, strict=True))
    if all(value.numbers is not None and twin.numbers is not None for value, twin in pairs):
        return True
    return all(value.constant and value.shape == twin.shape for value, twin in pairs)


def _attended(step: Step, read: Sequence[tuple[Shape, int]]) -> list[tuple[Shape, int]]:
    """Return what an attention reads as query, keys and values, which may come packed, or after those of earlier steps.

    The length of keys and values is that of the caches that it writes, where it does.
    """
    (query, maker), *others = read
    packed = len(step.inputs) < 2 or step.inputs[1] is None  # noqa: PLR2004 - query and key
    together = not packed and (len(step.inputs) < 3 or step.inputs[2] is None)  # noqa: PLR2004 - key and value
    if packed:
        query = step.outputs[0].shape or query
        others = [(query, maker), (query, maker), *others]
    elif together:
        others = [*others[:1], *others]
    caches = [value.shape for value in step.outputs[1:] if value.shape is not None]
    caches = [caches[0][1:]] * 2 if packed and len(caches) == 1 else caches
    past = sum(value is not None for value in step.inputs[3:])
    if len(caches) == 2 and past and len(others) > 1:  # noqa: PLR2004 - keys and values
        others = [(cache, one) for cache, (_, one) in zip(caches, others, strict=False)]
    return [(query, maker), *others]


def _parameters(step: Step) -> Iterator[Shape]:
    """Yield the weights that *step* reads: of a product on quantised numbers the weight first, its scales after it."""
    packed = packed_weight(step.op_type, step.attributes)
    if packed:
        yield packed
        return
    shapes = [
        value.shape
        for value in step.inputs
        if value is not None and value.constant and value.weighty and value.shape is not None
    ]
    yield from sorted(shapes, key=len, reverse=True) if step.op_type.startswith("Q") else shapes


def _attributes(op_type: str, attributes: Mapping[str, FileAttribute]) -> Iterator[tuple[str, Attribute]]:
    for name in _ATTRIBUTES.get(op_type, ()):
        value = attributes.get(name)
        if isinstance(value, tuple):
            yield name, tuple(int(number) for number in value)
        elif isinstance(value, (int, float)) or (isinstance(value, str) and value not in {"", "NOTSET"}):
            yield name, value
