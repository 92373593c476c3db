"""Records the operators of one run of a PyTorch model on shapes; both readers, of modules and of programs, use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpusage.graphs.batch_sizes import ModelRun, merge_runs, without_dead_nodes
from gpusage.graphs.model_files import MAXIMUM_NODES, check_shape, quoted
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Attribute, ElementType, Node, Shape

BATCHES = (2, 3)
"""The batch sizes at which a model runs: small, so that the values of small tensors can be kept."""
MAXIMUM_ATTRIBUTE = 2**31
SEQUENCES_FIRST_NOTE = (
    "Its layers take sequences first (batch_first=False): the second size of its inputs counts as the batch."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor that an operation reads or writes.

    Attributes:
        key: Its identity: a name, or a number.
    """

    key: Hashable
    shape: Shape
    element_type: ElementType = "float"


@dataclass(slots=True, kw_only=True)
class Recording:
    """Collects the nodes of a run.

    Attributes:
        producers_by_key: The producer of each activation: a node, or ``-1 - i`` for the model's input i. A tensor
            without one is a weight.
        in_place: Nodes that write in place, and so are needed although no node reads their outputs.
    """

    nodes: list[Node] = field(default_factory=list)
    producers: list[tuple[int, ...]] = field(default_factory=list)
    producers_by_key: dict[Hashable, int] = field(default_factory=dict)
    inputs: list[tuple[str, Shape]] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    in_place: set[int] = field(default_factory=set)

    def add_input(self, name: str, tensor: Tensor) -> None:
        """Record an input of the model."""
        self.producers_by_key[tensor.key] = -1 - len(self.inputs)
        self.inputs.append((name, check_shape(tensor.shape, f"Input {quoted(name)}")))

    def add(
        self,
        op_type: str,
        tensors: Iterable[Tensor],
        outputs: Sequence[Tensor],
        attributes: Mapping[str, Attribute] | None = None,
    ) -> None:
        """Record that an operation of *op_type* read *tensors* and wrote *outputs*."""
        read = tuple(tensors)
        # A tensor that no step wrote is a weight.
        activations = [tensor for tensor in read if tensor.key in self.producers_by_key]
        _check_figures(op_type, outputs, attributes or {})
        node = Node(
            op_type=op_type,
            inputs=tuple(tensor.shape for tensor in activations),
            outputs=tuple(tensor.shape for tensor in outputs),
            parameters=tuple(tensor.shape for tensor in read if tensor.key not in self.producers_by_key),
            attributes=tuple(sorted((attributes or {}).items())),
            element_type=outputs[0].element_type,
        )

        if len(self.nodes) == MAXIMUM_NODES:
            message = f"Model must have at most {MAXIMUM_NODES} operations; got more. Choose a smaller part of it."
            raise GraphError(message)

        self.producers.append(tuple(self.producers_by_key[tensor.key] for tensor in activations))
        self.nodes.append(node)
        for tensor in outputs:
            self.producers_by_key[tensor.key] = len(self.nodes) - 1

    def alias(self, source: Tensor, output: Tensor) -> None:
        """Record that *output* is *source*, at no cost."""
        if source.key in self.producers_by_key:
            self.producers_by_key[output.key] = self.producers_by_key[source.key]
        else:
            self.producers_by_key.pop(output.key, None)

    def mark_in_place(self) -> None:
        """Record that the last node writes in place."""
        if self.nodes:
            self.in_place.add(len(self.nodes) - 1)

    def run(self, outputs: Iterable[Tensor]) -> ModelRun:
        """Return the nodes that *outputs* or a write in place needs; all nodes if no output is known."""
        # An output that is a weight or an input needs no node.
        results = [
            self.producers_by_key[tensor.key] for tensor in outputs if self.producers_by_key.get(tensor.key, -1) >= 0
        ]
        run = without_dead_nodes(
            ModelRun(
                nodes=tuple(self.nodes),
                producers=tuple(self.producers),
                inputs=tuple(self.inputs),
                results=(*results, *sorted(self.in_place)) if results else (),
            )
        )
        return replace(run, unknown=Counter(node.op_type for node in run.nodes if node.op_type in self.unknown))


def at_any_batch(run: Callable[[int], ModelRun]) -> ModelRun | None:
    """Return *run* for any batch size, ``None`` if its sizes do not follow the batch."""
    merged = merge_runs(run(BATCHES[0]), run(BATCHES[1]), BATCHES)
    return None if merged is None or merged.uneven else merged.run


def is_one_sample(run: ModelRun) -> bool:
    """Return whether a convolution reads an input of *run*, or a tensor of its shape, as one image without a batch."""
    sizes = {shape for _, shape in run.inputs}
    return any(
        node.inputs[0] in sizes and len(node.inputs[0]) == len(dict(node.attributes)["kernel_shape"]) + 1  # type: ignore[arg-type]  # a tuple
        for node in run.nodes
        if node.op_type in {"Conv", "ConvTranspose"} and node.inputs
    )


def fixed_notes(batch_size: int | None) -> tuple[str, ...]:
    """Return the note on a graph for one *batch_size*, none on a graph for any."""
    return () if batch_size is None else (f"The batch size is fixed at {batch_size}.",)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AtenCall:
    """One call of an aten operator, as both PyTorch readers see it.

    Attributes:
        name: Without overload, for example ``conv2d`` or ``add_``.
        arguments: By the schema's names; tensors are `Tensor` values, alone or in lists.
        outputs: The tensors that it returned.
    """

    name: str
    arguments: Mapping[str, Any]
    outputs: tuple[Tensor, ...]

    def tensor(self, name: str) -> Tensor | None:
        """Return the tensor argument *name*, ``None`` if it is absent."""
        value = self.arguments.get(name)
        return value if isinstance(value, Tensor) else None

    def tensors(self) -> tuple[Tensor, ...]:
        """Return every tensor that the call reads, in order."""
        return tuple(iter_tensors(tuple(self.arguments.values())))

    def sizes(self, name: str, count: int, default: int) -> tuple[int, ...]:
        """Return the argument *name* as *count* integers; one integer counts for all."""
        value = self.arguments.get(name)
        numbers = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        numbers = tuple(default if number is None else int(number) for number in numbers)
        return numbers * count if len(numbers) == 1 else numbers or (default,) * count


Rule = Callable[[Recording, AtenCall], None]


def iter_tensors(value: Any) -> Iterator[Tensor]:  # an argument may be anything
    """Yield the tensors in *value*, which may be a tensor or nested lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from iter_tensors(item)


def functional_name(name: str) -> str:
    """Return the name of the functional variant of an in-place operator: ``add`` of ``add_``."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") and len(name) > 1 else name
