"""From the steps of an ONNX model's run to nodes: the steps that cost a GPU time, with what their cost depends on.

Constants and arithmetic on shapes cost nothing and are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpusage.graphs.batch_sizes import MergedRun, ModelRun, merge_runs
from gpusage.graphs.onnx.file import Attribute as FileAttribute
from gpusage.graphs.onnx.shape_inference import Step, Trace, packed_weight
from gpusage.graphs.onnx.shapes import Value
from gpusage_hooks.types import Attribute, Node, Shape

BATCHES = (8, 12)
"""The batch sizes at which a model runs. Both divide by 2 and 4: some models split the batch."""

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
"""The attributes that change a node's cost."""

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
"""Operators that cost the same as another one; most are ONNX Runtime's."""
_ATTENTIONS = ("Attention", "MultiHeadAttention", "GroupQueryAttention")


def merge_traces(first: Trace, second: Trace) -> MergedRun | None:
    """Return the nodes of the runs at `BATCHES` for any batch size, ``None`` if the runs have different operators."""
    if _operators(first) != _operators(second):
        return None
    free = [_is_free(one, other) for one, other in zip(first.steps, second.steps, strict=True)]
    return merge_runs(_NodeBuilder(first, free).run(), _NodeBuilder(second, free).run(), BATCHES)


def _operators(trace: Trace) -> list[tuple[str, int]]:
    """Return the operators of a run, each with its number of outputs."""
    return [(step.op_type, len(step.outputs)) for step in trace.steps]


def nodes_at_one_batch(trace: Trace) -> ModelRun:
    """Return the nodes of the run at the one batch size of *trace*."""
    return _NodeBuilder(trace, [_is_free(step, step) for step in trace.steps]).run()


class _NodeBuilder:
    """Makes nodes of the steps of a run; remembers which node has the outputs of which step."""

    def __init__(self, trace: Trace, free: Sequence[bool]) -> None:
        self._trace = trace
        self._free = free
        self._node_of_step: list[int | None] = []
        self._nodes: list[Node] = []
        self._producers: list[tuple[int, ...]] = []
        self._unknown: Counter[str] = Counter()

    def run(self) -> ModelRun:
        for step, free in zip(self._trace.steps, self._free, strict=True):
            self._node_of_step.append(None if free else self._node(step))
        producers = [self._producer(value) for value in self._trace.outputs]
        return ModelRun(
            nodes=tuple(self._nodes),
            producers=tuple(self._producers),
            inputs=self._trace.inputs,
            results=tuple(producer for producer in producers if producer is not None and producer >= 0),
            unknown=self._unknown,
        )

    def _node(self, step: Step) -> int | None:
        """Return the node or input that has the outputs of *step*: a new node, unless the step forwards a value."""
        source = self._forwarded_value(step)
        if source is not None:
            return self._producer(source)
        read = [
            (value.shape, producer)
            for value in step.inputs
            if value is not None and value.shape is not None and (producer := self._producer(value)) is not None
        ]
        if step.op_type in _ATTENTIONS and read:
            read = _attention_inputs(step, read)
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
        self._producers.append(tuple(producer for _, producer in read))
        if not step.known:
            self._unknown[step.op_type] += 1
        return len(self._nodes) - 1

    def _producer(self, value: Value) -> int | None:
        """Return the node or input that has *value*, ``None`` if it is a constant or arithmetic on shapes."""
        if value.producer is None or value.producer < 0:
            return value.producer
        return self._node_of_step[value.producer]

    def _forwarded_value(self, step: Step) -> Value | None:
        """Return the input that *step* returns at no cost, ``None`` if it does work.

        torch.onnx exports a safe softmax as ``Where(IsNaN(softmax), 0, softmax)``. In training that is one
        fused kernel: the test and the choice are free.
        """
        first = step.inputs[0] if step.inputs else None
        if step.op_type in _FREE and first is not None:
            return first
        if step.op_type == "Where" and first is not None and first.producer is not None and first.producer >= 0:
            test = self._trace.steps[first.producer]
            last = step.inputs[2]
            tested = test.inputs[0] if test.op_type == "IsNaN" else None
            if tested is not None and last is not None and tested.producer == last.producer:
                return last
        return None


def _is_free(one: Step, other: Step) -> bool:
    """Return whether a step costs nothing: its outputs are constants of the file, or numbers that shapes depend on."""
    pairs = list(zip(one.outputs, other.outputs, strict=True))
    if all(value.elements is not None and twin.elements is not None for value, twin in pairs):
        return True
    return all(value.constant and value.shape == twin.shape for value, twin in pairs)


def _attention_inputs(step: Step, read: Sequence[tuple[Shape, int]]) -> list[tuple[Shape, int]]:
    """Return an attention's inputs with query, keys and values apart, which may be packed in one or two tensors.

    Keys and values are as long as the caches that it writes, if it does: they include those of earlier steps.
    """
    (query, producer), *others = read
    packed = len(step.inputs) < 2 or step.inputs[1] is None  # query and key
    together = not packed and (len(step.inputs) < 3 or step.inputs[2] is None)  # key and value
    if packed:
        query = step.outputs[0].shape or query
        others = [(query, producer), (query, producer), *others]
    elif together:
        others = [*others[:1], *others]
    caches = [value.shape for value in step.outputs[1:] if value.shape is not None]
    caches = [caches[0][1:]] * 2 if packed and len(caches) == 1 else caches
    past = sum(value is not None for value in step.inputs[3:])
    if len(caches) == 2 and past and len(others) > 1:  # keys and values
        others = [(cache, one) for cache, (_, one) in zip(caches, others, strict=False)]
    return [(query, producer), *others]


def _parameters(step: Step) -> Iterator[Shape]:
    """Yield the weights that *step* reads; of a quantized product the matrix first, then its scales."""
    packed = packed_weight(step.op_type, step.attributes)
    if packed:
        yield packed
        return
    shapes = [
        value.shape
        for value in step.inputs
        if value is not None and value.constant and value.is_weight and value.shape is not None
    ]
    yield from sorted(shapes, key=len, reverse=True) if step.op_type.startswith("Q") else shapes


def _attributes(op_type: str, attributes: Mapping[str, FileAttribute]) -> Iterator[tuple[str, Attribute]]:
    for name in _ATTRIBUTES.get(op_type, ()):
        value = attributes.get(name)
        if isinstance(value, tuple):
            yield name, tuple(int(number) for number in value)
        elif isinstance(value, (int, float)) or (isinstance(value, str) and value not in {"", "NOTSET"}):
            yield name, value
