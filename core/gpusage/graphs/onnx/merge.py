"""Two runs of an ONNX model at two batch sizes, put together into nodes whose sizes follow the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpusage.graphs.onnx.file import Attribute as FileAttribute
from gpusage.graphs.onnx.shape_inference import Step, Trace
from gpusage.graphs.onnx.shapes import Value
from gpusage_hooks.types import Attribute, Node, Shape

BATCHES = (8, 12)
"""Both have many divisors, so that models which fold the batch in two or four still run."""

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
    "MatMulNBits": ("K", "N", "bits", "block_size"),
    "Transpose": ("perm",),
    "Resize": ("mode",),
    "Einsum": ("equation",),
}
"""What of a node's attributes changes its cost."""

_FREE = frozenset({"Identity", "StopGradient"})


class UnevenError(Exception):
    """Say that the two runs differ in more than their sizes."""


@dataclass(slots=True)
class Merged:
    """The nodes of both runs, and how well they follow the batch.

    Attributes:
        uneven: Operators with a size that is neither fixed nor a multiple of the batch; it was rounded up.
        squared: Operators with a tensor that grows with the square of the batch.
    """

    nodes: list[Node] = field(default_factory=list)
    producers: list[tuple[int, ...]] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    uneven: Counter[str] = field(default_factory=Counter)
    squared: Counter[str] = field(default_factory=Counter)
    outputs: list[int] = field(default_factory=list)


def merge(first: Trace, second: Trace) -> Merged:
    """Return the nodes of the runs *first* and *second* at `BATCHES`; twice the same run gives fixed sizes.

    What the file computes for itself costs a GPU nothing and is left out: constants, and arithmetic on shapes.

    Raises:
        UnevenError: The runs took different ways.
    """
    alike = len(first.steps) == len(second.steps) and all(
        one.op_type == other.op_type for one, other in zip(first.steps, second.steps, strict=True)
    )
    if not alike:
        raise UnevenError
    return _Merger(first, second).merged()


class _Merger:
    """Goes through both runs at once; remembers which node made the outputs of which step."""

    def __init__(self, first: Trace, second: Trace) -> None:
        self._steps = list(zip(first.steps, second.steps, strict=True))
        self._outputs = first.outputs
        self._made: dict[int, int | None] = {}
        self._result = Merged()
        self._nodes: dict[Node, Node] = {}

    def merged(self) -> Merged:
        for index, (one, other) in enumerate(self._steps):
            if _is_folded(one, other):
                self._made[index] = None
                continue
            source = self._same_as(index, one)
            self._made[index] = self._maker(source) if source is not None else self._emit(one, other)
        makers = [self._maker(value) for value in self._outputs]
        self._result.outputs = [maker for maker in makers if maker is not None and maker >= 0]
        return self._result

    def _emit(self, one: Step, other: Step) -> int:
        read = [
            (value, twin, maker)
            for value, twin in zip(one.inputs, other.inputs, strict=True)
            if value is not None and twin is not None and (maker := self._maker(value)) is not None
        ]
        node = Node(
            op_type=one.op_type,
            inputs=tuple(self._shape(one, value, twin) for value, twin, _ in read),
            outputs=tuple(
                self._shape(one, value, twin) for value, twin in zip(one.outputs, other.outputs, strict=True)
            ),
            parameters=tuple(_parameters(one)),
            attributes=tuple(_attributes(one.op_type, one.attributes)),
            element_type=one.outputs[0].element_type if one.outputs else "float",
        )
        if not one.known:
            self._result.unknown[one.op_type] += 1
        self._result.nodes.append(self._nodes.setdefault(node, node))
        self._result.producers.append(tuple(maker for _, _, maker in read))
        return len(self._result.nodes) - 1

    def _maker(self, value: Value) -> int | None:
        """Return the node or input that gives *value*, ``None`` where it is a constant or known beforehand."""
        if value.origin is None or value.origin < 0:
            return value.origin
        return self._made[value.origin]

    def _same_as(self, index: int, step: Step) -> Value | None:
        """Return the value that *step* only hands on.

        PyTorch's exporter writes a safe softmax as a choice between the softmax and 0 where it is not a number; what
        runs in training is the one fused operation.
        """
        first = step.inputs[0] if step.inputs else None
        if step.op_type in _FREE and first is not None:
            return first
        if step.op_type == "Where" and first is not None and first.origin is not None and first.origin >= 0:
            test = self._steps[first.origin][0]
            last = step.inputs[2]
            tested = test.inputs[0] if test.op_type == "IsNaN" else None
            if tested is not None and last is not None and tested.origin == last.origin and index > first.origin:
                return last
        return None

    def _shape(self, step: Step, one: Value, other: Value) -> Shape:
        """Return the shape that is *one*'s and *other*'s at the two batch sizes."""
        if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
            raise UnevenError
        if one.shape == other.shape:
            return one.shape
        sizes = []
        for size, twin in zip(one.shape, other.shape, strict=True):
            times, rest = divmod(size, BATCHES[0])
            if size == twin:
                sizes.append(size)
                continue
            if rest or times * BATCHES[1] != twin:
                self._result.uneven[step.op_type] += 1
                times = -(-max(size * BATCHES[1], twin * BATCHES[0]) // (BATCHES[0] * BATCHES[1]))
            sizes.append(-times)
        if sum(size < 0 for size in sizes) > 1:
            self._result.squared[step.op_type] += 1
        return tuple(sizes)


def live(merged: Merged) -> Merged:
    """Return only the nodes that the model's outputs need; all of them where it has none."""
    waiting = list(merged.outputs)
    if not waiting:
        return merged
    needed: set[int] = set()
    while waiting:
        index = waiting.pop()
        if index >= 0 and index not in needed:
            needed.add(index)
            waiting += merged.producers[index]
    numbers = {old: new for new, old in enumerate(sorted(needed))}
    return Merged(
        nodes=[merged.nodes[old] for old in numbers],
        producers=[tuple(numbers.get(made, made) for made in merged.producers[old]) for old in numbers],
        unknown=merged.unknown,
        uneven=merged.uneven,
        squared=merged.squared,
        outputs=[numbers[old] for old in merged.outputs],
    )


def _is_folded(one: Step, other: Step) -> bool:
    """Tell whether a step costs nothing: its results are the file's constants, or numbers that shapes are made of."""
    pairs = list(zip(one.outputs, other.outputs, strict=True))
    if all(value.numbers is not None and twin.numbers is not None for value, twin in pairs):
        return True
    return all(value.constant and value.shape == twin.shape for value, twin in pairs)


def _parameters(step: Step) -> Iterator[Shape]:
    for value in step.inputs:
        if value is not None and value.constant and value.weighty and value.shape is not None:
            yield value.shape


def _attributes(op_type: str, attributes: Mapping[str, FileAttribute]) -> Iterator[tuple[str, Attribute]]:
    for name in _ATTRIBUTES.get(op_type, ()):
        value = attributes.get(name)
        if isinstance(value, tuple):
            yield name, tuple(int(number) for number in value)
        elif isinstance(value, (int, float)) or (isinstance(value, str) and value not in {"", "NOTSET"}):
            yield name, value


def follows(shapes: Sequence[Shape]) -> bool:
    """Tell whether each of *shapes* grows with the batch."""
    return all(any(size < 0 for size in shape) for shape in shapes)
