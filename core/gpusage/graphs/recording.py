"""What a model did while it ran once on shapes alone, and two such runs put together into a `ModelGraph`.

A reader plays a model at two batch sizes and records each operation; a size that is the same in both is fixed, one that
grows with the batch is a multiple of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpusage.graphs.guard import MAXIMUM_NODES, check_shape, shown
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Attribute, ElementType, ModelGraph, Node, Shape

BATCHES = (2, 3)
"""The batch sizes at which a model is played; at 1 some models take another way."""
MAXIMUM_ATTRIBUTE = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor that an operation reads or writes.

    Attributes:
        key: What tells it from others: a name, or a number.
    """

    key: Hashable
    shape: Shape
    element_type: ElementType = "float"


@dataclass(slots=True, kw_only=True)
class Recording:
    """Collects nodes; the only value here that changes.

    Attributes:
        made_by: For each activation, the node that made it, ``-1 - i`` for the model's input i. A tensor that is not
            here is a weight.
        kept: Nodes that must stay although nothing reads their outputs: they write in place.
    """

    nodes: list[Node] = field(default_factory=list)
    producers: list[tuple[int, ...]] = field(default_factory=list)
    made_by: dict[Hashable, int] = field(default_factory=dict)
    inputs: list[tuple[str, Shape]] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    kept: set[int] = field(default_factory=set)

    def add_input(self, name: str, tensor: Tensor) -> None:
        """Record an input of the model."""
        self.made_by[tensor.key] = -1 - len(self.inputs)
        self.inputs.append((name, check_shape(tensor.shape, f"Input {shown(name)}")))

    def add(
        self,
        op_type: str,
        tensors: Iterable[Tensor],
        outputs: Sequence[Tensor],
        attributes: Mapping[str, Attribute] | None = None,
    ) -> None:
        """Record that an operation of *op_type* read *tensors* and wrote *outputs*."""
        read = tuple(tensors)
        activations = [tensor for tensor in read if tensor.key in self.made_by]
        _check_figures(op_type, outputs, attributes or {})
        node = Node(
            op_type=op_type,
            inputs=tuple(tensor.shape for tensor in activations),
            outputs=tuple(tensor.shape for tensor in outputs),
            parameters=tuple(tensor.shape for tensor in read if tensor.key not in self.made_by),
            attributes=tuple(sorted((attributes or {}).items())),
            element_type=outputs[0].element_type,
        )
        if len(self.nodes) == MAXIMUM_NODES:
            message = f"Model must have at most {MAXIMUM_NODES} operations; got more. Choose a smaller part of it."
            raise GraphError(message)
        self.producers.append(tuple(self.made_by[tensor.key] for tensor in activations))
        self.nodes.append(node)
        for tensor in outputs:
            self.made_by[tensor.key] = len(self.nodes) - 1

    def alias(self, source: Tensor, output: Tensor) -> None:
        """Record that *output* is *source* by another name, at no cost."""
        if source.key in self.made_by:
            self.made_by[output.key] = self.made_by[source.key]
        else:
            self.made_by.pop(output.key, None)

    def keep_last(self) -> None:
        """Keep the last node even where nothing reads its outputs."""
        if self.nodes:
            self.kept.add(len(self.nodes) - 1)

    def without_dead_nodes(self, outputs: Iterable[Tensor]) -> Recording:
        """Return the recording with only what *outputs* need; all of it where none of them is known."""
        waiting = [self.made_by[tensor.key] for tensor in outputs if tensor.key in self.made_by]
        if not any(index >= 0 for index in waiting):
            return self
        waiting += self.kept
        live: set[int] = set()
        while waiting:
            index = waiting.pop()
            if index >= 0 and index not in live:
                live.add(index)
                waiting += self.producers[index]
        numbers = {old: new for new, old in enumerate(sorted(live))}
        return Recording(
            nodes=[self.nodes[old] for old in numbers],
            producers=[tuple(numbers.get(made, made) for made in self.producers[old]) for old in numbers],
            inputs=self.inputs,
            unknown=Counter(self.nodes[old].op_type for old in numbers if self.nodes[old].op_type in self.unknown),
        )


def merged(first: Recording, second: Recording) -> Recording | None:
    """Return one recording for any batch size from two at `BATCHES`; None where they do not match."""
    alike = (
        len(first.nodes) == len(second.nodes)
        and first.producers == second.producers
        and all(one.op_type == other.op_type for one, other in zip(first.nodes, second.nodes, strict=True))
    )
    if not alike:
        return None
    try:
        nodes = [_merged_node(one, other) for one, other in zip(first.nodes, second.nodes, strict=True)]
        inputs = [
            (name, _merged_shape(one, other))
            for (name, one), (_, other) in zip(first.inputs, second.inputs, strict=True)
        ]
    except _UnevenError:
        return None
    shared: dict[Node, Node] = {}
    return Recording(
        nodes=[shared.setdefault(node, node) for node in nodes],
        producers=first.producers,
        inputs=inputs,
        unknown=first.unknown,
    )


def graph_of(
    recording: Recording,
    *,
    name: str,
    source: str,
    parameter_count: int,
    fixed_batch_size: int | None = None,
    notes: Iterable[str] = (),
) -> ModelGraph:
    """Return *recording* as a graph.

    Raises:
        GraphError: Nothing was recorded.
    """
    if not recording.nodes:
        message = f"Model {shown(name)} must have at least one operation; got none. Check that it is the right one."
        raise GraphError(message)
    fixed = () if fixed_batch_size is None else (f"The batch size is fixed at {fixed_batch_size}.",)
    return ModelGraph(
        name=name,
        source=source,
        nodes=tuple(recording.nodes),
        producers=tuple(recording.producers),
        inputs=tuple(recording.inputs),
        parameter_count=parameter_count,
        fixed_batch_size=fixed_batch_size,
        unknown_op_types=tuple(sorted(recording.unknown.items())),
        notes=(*fixed, *notes),
    )


def _check_figures(op_type: str, outputs: Iterable[Tensor], attributes: Mapping[str, Attribute]) -> None:
    for tensor in outputs:
        check_shape(tensor.shape, f"An output of operation {op_type}")
    for name, value in attributes.items():
        subject = f"Attribute {name} of operation {op_type}"
        if isinstance(value, tuple):
            check_shape(value, subject)
        elif isinstance(value, int) and abs(value) > MAXIMUM_ATTRIBUTE:
            message = f"{subject} must be at most 2^31; got a larger figure. Check the model."
            raise GraphError(message)


class _UnevenError(Exception):
    """Say that a size is neither fixed nor a multiple of the batch."""


def _merged_node(one: Node, other: Node) -> Node:
    if one == other:
        return one
    if len(one.inputs) != len(other.inputs) or len(one.outputs) != len(other.outputs):
        raise _UnevenError
    return replace(
        one,
        inputs=tuple(map(_merged_shape, one.inputs, other.inputs)),
        outputs=tuple(map(_merged_shape, one.outputs, other.outputs)),
        attributes=tuple(pair for pair in one.attributes if pair in other.attributes),
    )


def _merged_shape(one: Shape, other: Shape) -> Shape:
    if len(one) != len(other):
        raise _UnevenError
    return tuple(map(_merged_size, one, other))


def _merged_size(one: int, other: int) -> int:
    """Return the size that is *one* and *other* at the two batch sizes."""
    if one == other:
        return one
    times, rest = divmod(one, BATCHES[0])
    if rest or times * BATCHES[1] != other:
        raise _UnevenError
    return -times
