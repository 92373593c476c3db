"""A model's computation: operations, and the graph of them."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Literal

from gpusage_hooks.types.workloads import Precision

Dim = int
"""One size of a tensor: ``n >= 0`` is fixed, ``-k`` stands for k times the batch size."""
Shape = tuple[Dim, ...]
Attribute = int | float | str | tuple[int, ...]
ElementType = Literal["float", "int64", "int32", "int8", "bool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation of a model, named as in the ONNX operator set.

    Nodes carry no edges, so that equal operations are equal values and can be shared.

    Attributes:
        op_type: ONNX operator, for example ``Conv``, ``MatMul``, ``Gemm``, ``Softmax``.
        inputs: Shapes of the activations that it reads, in order, weights left out.
        outputs: Shapes of what it writes.
        parameters: Shapes of the weights that it reads; never depends on the batch.
        attributes: What changes its cost, sorted by name (``group``, ``strides``, ``transB``, ``hidden_size`` ...).
        element_type: Of its first output; ``float`` means that the workload's precision decides.
    """

    op_type: str
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    parameters: tuple[Shape, ...] = ()
    attributes: tuple[tuple[str, Attribute], ...] = ()
    element_type: ElementType = "float"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelGraph:
    """A model's forward computation for any batch size, without its weights.

    Attributes:
        name: For people, for example ``resnet50``.
        source: Where it was read from: a path or a name such as ``timm:resnet50``.
        nodes: In an order in which they can run.
        producers: For each node, for each of its ``inputs``, the index of the node that made it;
            ``-1 - i`` stands for the model's input i.
        inputs: Name and shape of each model input.
        parameter_count: Elements of all weights, those used twice counted once.
        fixed_batch_size: The only batch size that the file was exported for; ``None`` where sizes follow the batch.
        unknown_op_types: Operators that no rule describes, with how often each occurs.
        notes: What a reader should know, one sentence each.
        trainable: The share of the parameters that the model itself marks as trained, above 0 and at most 1.
        precision: ``int8`` or ``int4`` where the published weights are quantised; ``None`` where they are floats.
        derived: What plugins worked out from this graph, each under its own name: no part of the graph's value, and
            kept as long as the graph. Nothing in it should refer to the graph.
    """

    name: str
    source: str
    nodes: tuple[Node, ...]
    producers: tuple[tuple[int, ...], ...]
    inputs: tuple[tuple[str, Shape], ...]
    parameter_count: int
    fixed_batch_size: int | None = None
    unknown_op_types: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    trainable: float = 1.0
    precision: Precision | None = None
    derived: MutableMapping[str, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name}{list(shape)}" for name, shape in self.inputs)
        sizes = f"{len(self.nodes)} nodes, {self.parameter_count} parameters"
        return f"<ModelGraph {self.name!r} from {self.source!r}: {sizes}, inputs {inputs or 'none'}>"
