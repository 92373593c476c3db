"""A model's inputs at a given batch size: which dimension is the batch, and the sizes of the others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpusage.graphs.edges import edge_inputs
from gpusage.graphs.guard import MAXIMUM_ELEMENTS, check_shape, shown
from gpusage.graphs.onnx.dimensions import evaluate, names
from gpusage.graphs.onnx.tensors import Declared
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Shape

_BATCH_NAME = re.compile(r"(?i)(.*batch.*|bs|b|n)")
_NUMBERED = re.compile(r"unk__\d+")
"""How tf2onnx names each free dimension of each input."""
_FREE = "{}.{}"
"""The name that a free dimension without one goes by: its input's, and its place."""


@dataclass(frozen=True, slots=True)
class Binding:
    """How the inputs' sizes follow from the batch size.

    Attributes:
        inputs: Each input with a number, a name or a term for every dimension.
        batch_names: The names that stand for the batch.
        values: What every other name stands for.
        fixed_batch_size: The first dimension of the inputs, where none of them is free; 1 beside an edge list.
        edges: The inputs that list the edges of a graph, by name; ``""`` where there is none.
    """

    inputs: tuple[Declared, ...]
    batch_names: frozenset[str]
    values: Mapping[str, int]
    fixed_batch_size: int | None
    edges: str = ""

    def symbols(self, batch: int) -> dict[str, int]:
        """Return what each name stands for at a *batch* size."""
        return {**self.values, **dict.fromkeys(self.batch_names, batch)}

    def shapes(self, batch: int) -> dict[str, Shape]:
        """Return the inputs' shapes at a *batch* size; a fixed one is replaced where a first size equals it.

        Raises:
            GraphError: A shape is beyond the limits.
        """
        symbols = self.symbols(batch)
        shapes = {}
        for one in self.inputs:
            sizes = [evaluate(size, symbols) or 0 for size in one.sizes or ()]
            if self.fixed_batch_size is not None and sizes and sizes[0] == self.fixed_batch_size:
                sizes[0] = batch
            if min(sizes, default=0) < 0:
                message = f"Input {shown(one.name)} must have sizes of at least 0; got {min(sizes)}. Check --shape."
                raise GraphError(message)
            shapes[one.name] = check_shape(sizes, f"Input {shown(one.name)}")
        return shapes


def bind(inputs: Sequence[Declared], shape: Mapping[str, Sequence[int]], model: str) -> Binding:
    """Return how the sizes of *inputs* follow from the batch size and the user's *shape*.

    Args:
        inputs: As the file declares them.
        shape: ``{"input": (3, 224, 224)}`` for a whole input without its batch, ``{"seq": (128,)}`` for a name.
        model: For messages.

    Raises:
        GraphError: A free dimension has no value, or *shape* names or contradicts something that the file has not.
    """
    named = [_named(one, shape, model) for one in inputs]
    edges = edge_inputs((one.name, one.sizes or (), one.element_type in ("int64", "int32")) for one in named)
    batch_names = _batch_names(named, shape) if not edges else _batches_of_graphs(named)
    values: dict[str, int] = {}
    _check_words(named, shape, model)
    for one in named:
        if one.name in shape:
            _match(one, list(shape[one.name]), batch_names, values)
    values.update({name: _checked(sizes[0], name) for name, sizes in shape.items() if name not in _names_of(named)})
    _check_free(named, {*batch_names, *values}, model)
    fixed = None if batch_names else 1 if edges else _first_size(named)
    return Binding(tuple(named), frozenset(batch_names), values, fixed, edges)


def _named(one: Declared, shape: Mapping[str, Sequence[int]], model: str) -> Declared:
    """Return *one* with a name for each free dimension; an input without any shape takes the user's."""
    if one.sizes is None:
        if one.name not in shape:
            message = (
                f"Input {shown(one.name)} of model {shown(model)} must have a shape; the file gives none. "
                f"Say it: --shape {one.name}=3x224x224."
            )
            raise GraphError(message)
        return Declared(one.name, (_FREE.format(one.name, 0), *shape[one.name]), one.element_type)
    sizes = tuple(_FREE.format(one.name, place) if size is None else size for place, size in enumerate(one.sizes))
    return Declared(one.name, sizes, one.element_type)


def _batch_names(inputs: Sequence[Declared], shape: Mapping[str, Sequence[int]]) -> set[str]:
    """Return the names that stand for the batch: those that say so, else the free first dimensions."""
    symbols = [name for one in inputs for size in one.sizes or () for name in names(size)]
    spoken = {name for name in symbols if _BATCH_NAME.fullmatch(name) and name not in shape}
    first = {one.sizes[0] for one in inputs if one.sizes and isinstance(one.sizes[0], str)}
    alone = {name for name in first if names(name) == (name,) and name not in shape}
    unnamed = {_FREE.format(one.name, 0) for one in inputs}
    anonymous = {name for name in alone if name in unnamed or _NUMBERED.fullmatch(name)}
    return spoken | anonymous if spoken else alone


def _batches_of_graphs(inputs: Sequence[Declared]) -> set[str]:
    """Return the names that stand for a batch beside an edge list: a free first dimension is nodes, which are none."""
    symbols = {name for one in inputs for size in one.sizes or () for name in names(size)}
    return {name for name in symbols if "batch" in name.lower()}


def _check_words(inputs: Sequence[Declared], shape: Mapping[str, Sequence[int]], model: str) -> None:
    symbols = {name for one in inputs for size in one.sizes or () for name in names(size)}
    known = sorted({*_names_of(inputs), *symbols})
    for word, sizes in shape.items():
        if word not in known:
            batch = _batch_names(inputs, shape)
            free = [name for name in known if name not in batch]
            message = (
                f"Shape {shown(word)} must name an input or a free dimension beside the batch of model {shown(model)}; "
                f"it has {', '.join(map(shown, free[:8])) or 'none'}. Correct the shape."
            )
            raise GraphError(message)
        if word in symbols and word not in _names_of(inputs) and len(sizes) != 1:
            message = f"Dimension {shown(word)} must get one size; got {len(sizes)}. Write --shape {word}=128."
            raise GraphError(message)


def _match(one: Declared, given: list[int], batch_names: set[str], values: dict[str, int]) -> None:
    """Take the sizes that the user *given* for the whole input *one*, its batch left out."""
    sizes = one.sizes or ()
    rest = [size for size in sizes if not (isinstance(size, str) and size in batch_names)]
    if len(rest) == len(sizes) and len(given) == len(sizes) - 1:
        rest = rest[1:]  # a fixed batch size, which the user left out as well
    declared = "x".join(str(size) for size in rest) or "nothing"
    fits = len(given) == len(rest) and all(
        isinstance(size, str) or size == wish for size, wish in zip(rest, given, strict=False)
    )
    if not fits:
        message = (
            f"Shape of input {shown(one.name)}, batch left out, must fit the file's {declared}; "
            f"got {'x'.join(map(str, given)) or 'nothing'}. Correct the shape, or export the model for it."
        )
        raise GraphError(message)
    for size, wish in zip(rest, given, strict=True):
        if isinstance(size, str):
            values[size] = _checked(wish, size)


def _check_free(inputs: Sequence[Declared], known: set[str], model: str) -> None:
    terms = [size for one in inputs for size in one.sizes or () if isinstance(size, str)]
    free = {
        name
        for term in terms
        if term not in known and evaluate(term, dict.fromkeys(known, 1)) is None
        for name in names(term) or (term,)
        if name not in known
    }
    if free:
        listed = sorted(free)
        shapes = " ".join(f"--shape {name}=128" for name in listed[:4])
        message = (
            f"Model {shown(model)} must have a size for each free dimension beside the batch; "
            f"got none for {', '.join(map(shown, listed[:8]))}. Say it, for example {shapes}."
        )
        raise GraphError(message)


def _checked(size: int, name: str) -> int:
    if not 1 <= size <= MAXIMUM_ELEMENTS:
        message = f"Dimension {shown(name)} must be from 1 to 2^48; got {size}. Correct the shape."
        raise GraphError(message)
    return size


def _first_size(inputs: Sequence[Declared]) -> int | None:
    """Return the first input's first size, which is what a fixed batch size is."""
    for one in inputs:
        if one.sizes and isinstance(one.sizes[0], int) and one.sizes[0] > 0:
            return one.sizes[0]
    return None


def _names_of(inputs: Sequence[Declared]) -> set[str]:
    return {one.name for one in inputs}
