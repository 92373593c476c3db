"""Records what PyTorch's operators do to shapes while a model runs once, whoever plays it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpusage.graphs.guard import MAXIMUM_NODES, check_shape, shown
from gpusage.graphs.two_runs import ModelRun, live, play_twice
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Attribute, ElementType, Node, Shape

BATCHES = (2, 3)
"""The batch sizes at which a model is played: small ones, so that the values of small tensors stay known."""
MAXIMUM_ATTRIBUTE = 2**31
SEQUENCES_FIRST = (
    "Its layers take sequences first (batch_first=False): the second size of its inputs counts as the batch."
)


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

    def run(self, outputs: Iterable[Tensor]) -> ModelRun:
        """Return what *outputs* need, and what was kept; all of it where none of them is known."""
        results = [self.made_by[tensor.key] for tensor in outputs if self.made_by.get(tensor.key, -1) >= 0]
        run = live(
            ModelRun(
                nodes=tuple(self.nodes),
                producers=tuple(self.producers),
                inputs=tuple(self.inputs),
                results=(*results, *sorted(self.kept)) if results else (),
            )
        )
        return replace(run, unknown=Counter(node.op_type for node in run.nodes if node.op_type in self.unknown))


def at_any_batch(play: Callable[[int], ModelRun]) -> ModelRun | None:
    """Return the run that *play* gives, for any batch size; `None` where its sizes do not follow the batch."""
    merged = play_twice(play, BATCHES)
    return None if merged is None or merged.uneven else merged.run


def is_one_sample(run: ModelRun) -> bool:
    """Tell whether a convolution reads an input of *run*, or what has its sizes, as a picture without a batch."""
    sizes = {shape for _, shape in run.inputs}
    return any(
        node.inputs[0] in sizes and len(node.inputs[0]) == len(dict(node.attributes)["kernel_shape"]) + 1  # type: ignore[arg-type]  # a tuple
        for node in run.nodes
        if node.op_type in {"Conv", "ConvTranspose"} and node.inputs
    )


def fixed_notes(batch_size: int | None) -> tuple[str, ...]:
    """Return the note on a graph for one *batch_size* alone, none on a graph for any."""
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
