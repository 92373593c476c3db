"""A model's inputs at a given batch size: which dimension is the batch, and the sizes of the others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpusage.graphs.batch_sizes import edge_list_inputs
from gpusage.graphs.model_files import MAXIMUM_ELEMENTS, check_shape, quoted
from gpusage.graphs.onnx.file import Size, ValueInfo
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Shape

_MAXIMUM_LENGTH = 200
"""Characters of a dimension's expression; a longer one counts as one name."""
_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_.][\w.]*)|(//|[-+*/]))")


def evaluate_dimension(size: Size, symbols: Mapping[str, int]) -> int | None:
    """Return *size* as a number, ``None`` if it has a name that is not in *symbols*.

    *size* as a whole is looked up first: ``batch*seq`` may be a name. Else sums, differences, products and integer
    quotients are computed.
    """
    if size is None or isinstance(size, int):
        return size
    if size in symbols:
        return symbols[size]
    tokens = _tokens(size)
    if tokens is None or len(tokens) % 2 == 0:
        return None
    return _sum(tokens, symbols)


def dimension_names(size: Size) -> tuple[str, ...]:
    """Return the names in *size*."""
    if not isinstance(size, str):
        return ()
    tokens = _tokens(size)
    if tokens is None:
        return (size,)
    return tuple(token for token in tokens if token[0].isalpha() or token[0] in "_.")


def _tokens(text: str) -> list[str] | None:
    tokens = []
    position = 0
    while position < len(text) <= _MAXIMUM_LENGTH:
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        tokens.append(match.group().strip())
        position = match.end()
    return tokens or None


def _sum(tokens: list[str], symbols: Mapping[str, int]) -> int | None:
    """Return the value of *tokens*: operands and operators in turn, products before sums."""
    total, sign = 0, 1
    product = _number(tokens[0], symbols)
    for operator, token in zip(tokens[1::2], tokens[2::2], strict=True):
        number = _number(token, symbols)
        if product is None or number is None:
            return None
        if operator == "*":
            product *= number
        elif operator in {"/", "//"}:
            if not number:
                return None
            product //= number
        elif operator in {"+", "-"}:
            total += sign * product
            sign, product = (1 if operator == "+" else -1), number
        else:
            return None
    return None if product is None else total + sign * product


def _number(token: str, symbols: Mapping[str, int]) -> int | None:
    return int(token) if token.isdigit() else symbols.get(token)


_BATCH_NAME = re.compile(r"(?i)(.*batch.*|bs|b|n)")
_GENERATED_NAME = re.compile(r"unk__\d+")
"""tf2onnx gives each free dimension of each input a name of its own."""
_UNNAMED = "{}.{}"
"""Our name of a free dimension without one: its input's name and its index."""


@dataclass(frozen=True, slots=True)
class InputBinding:
    """How the inputs' sizes follow from the batch size.

    Attributes:
        inputs: Each input with a number, a name or an expression for every dimension.
        batch_names: The names that mean the batch.
        values: The value of every other name.
        fixed_batch_size: The first dimension of the inputs if no dimension means the batch; 1 for a graph network.
        edges: The names of the inputs that list the edges of a graph, ``""`` if none does.
    """

    inputs: tuple[ValueInfo, ...]
    batch_names: frozenset[str]
    values: Mapping[str, int]
    fixed_batch_size: int | None
    edges: str = ""

    def symbols(self, batch: int) -> dict[str, int]:
        """Return the value of each name at a *batch* size."""
        return {**self.values, **dict.fromkeys(self.batch_names, batch)}

    def shapes(self, batch: int) -> dict[str, Shape]:
        """Return the inputs' shapes at a *batch* size; a fixed batch size is replaced where a first size equals it.

        Raises:
            GraphError: A shape exceeds a limit.
        """
        symbols = self.symbols(batch)
        shapes = {}
        for one in self.inputs:
            sizes = [evaluate_dimension(size, symbols) or 0 for size in one.sizes or ()]
            if self.fixed_batch_size is not None and sizes and sizes[0] == self.fixed_batch_size:
                sizes[0] = batch
            if min(sizes, default=0) < 0:
                message = f"Input {quoted(one.name)} must have sizes of at least 0; got {min(sizes)}. Check --shape."
                raise GraphError(message)
            shapes[one.name] = check_shape(sizes, f"Input {quoted(one.name)}")
        return shapes


def bind_inputs(inputs: Sequence[ValueInfo], shape: Mapping[str, Sequence[int]], model: str) -> InputBinding:
    """Return how the sizes of *inputs* follow from the batch size and the user's *shape*.

    Args:
        inputs: As the file declares them.
        shape: ``{"input": (3, 224, 224)}`` for a whole input without its batch, ``{"seq": (128,)}`` for a name.
        model: For messages.

    Raises:
        GraphError: A free dimension has no value, or *shape* does not fit the file.
    """
    named = [_with_dimension_names(one, shape, model) for one in inputs]
    edges = edge_list_inputs((one.name, one.sizes or (), one.element_type in ("int64", "int32")) for one in named)
    batch_names = _batch_names(named, shape) if not edges else _batches_of_graphs(named)
    values: dict[str, int] = {}
    _check_shape_names(named, shape, model)
    for one in named:
        if one.name in shape:
            values.update(_dimension_values(one, list(shape[one.name]), batch_names))
    input_names = {one.name for one in named}
    values.update({name: _check_size(sizes[0], name) for name, sizes in shape.items() if name not in input_names})
    _check_free(named, {*batch_names, *values}, model)
    fixed = None if batch_names else 1 if edges else _first_size(named)
    return InputBinding(tuple(named), frozenset(batch_names), values, fixed, edges)


def _with_dimension_names(one: ValueInfo, shape: Mapping[str, Sequence[int]], model: str) -> ValueInfo:
    """Return *one* with a name for each free dimension; an input without a shape gets the user's."""
    if one.sizes is None:
        if one.name not in shape:
            message = (
                f"Input {quoted(one.name)} of model {quoted(model)} must have a shape; the file gives none. "
                f"Add --shape {one.name}=3x224x224."
            )
            raise GraphError(message)
        return ValueInfo(one.name, (_UNNAMED.format(one.name, 0), *shape[one.name]), one.element_type)
    sizes = tuple(_UNNAMED.format(one.name, place) if size is None else size for place, size in enumerate(one.sizes))
    return ValueInfo(one.name, sizes, one.element_type)


def _batch_names(inputs: Sequence[ValueInfo], shape: Mapping[str, Sequence[int]]) -> set[str]:
    """Return the names that mean the batch: those that contain the word, else the free first dimensions."""
    symbols = [name for one in inputs for size in one.sizes or () for name in dimension_names(size)]
    explicit = {name for name in symbols if _BATCH_NAME.fullmatch(name) and name not in shape}
    first = {one.sizes[0] for one in inputs if one.sizes and isinstance(one.sizes[0], str)}
    plain = {name for name in first if dimension_names(name) == (name,) and name not in shape}
    unnamed = {_UNNAMED.format(one.name, 0) for one in inputs}
    anonymous = {name for name in plain if name in unnamed or _GENERATED_NAME.fullmatch(name)}
    return explicit | anonymous if explicit else plain


def _batches_of_graphs(inputs: Sequence[ValueInfo]) -> set[str]:
    """Return the names that mean the batch of a graph network: its free first dimensions count nodes and edges."""
    symbols = {name for one in inputs for size in one.sizes or () for name in dimension_names(size)}
    return {name for name in symbols if "batch" in name.lower()}


def _check_shape_names(inputs: Sequence[ValueInfo], shape: Mapping[str, Sequence[int]], model: str) -> None:
    input_names = {one.name for one in inputs}
    symbols = {name for one in inputs for size in one.sizes or () for name in dimension_names(size)}
    known = sorted(input_names | symbols)
    for key, sizes in shape.items():
        if key not in known:
            batch = _batch_names(inputs, shape)
            free = ", ".join([quoted(name) for name in known if name not in batch][:8])
            message = (
                f"Shape {quoted(key)} must name an input or a free dimension beside the batch of model "
                f"{quoted(model)}; it has {free or 'none'}. Correct the shape."
            )
            raise GraphError(message)
        if key in symbols and key not in input_names and len(sizes) != 1:
            message = f"Dimension {quoted(key)} must get one size; got {len(sizes)}. Write --shape {key}=128."
            raise GraphError(message)


def _dimension_values(one: ValueInfo, wanted: list[int], batch_names: set[str]) -> dict[str, int]:
    """Return the values of the names in the shape of input *one*, of which the user wants *wanted*, batch left out."""
    sizes = one.sizes or ()
    rest = [size for size in sizes if not (isinstance(size, str) and size in batch_names)]
    if len(rest) == len(sizes) and len(wanted) == len(sizes) - 1:
        rest = rest[1:]  # a fixed batch size, which the user left out as well
    is_match = len(wanted) == len(rest) and all(
        isinstance(size, str) or size == value for size, value in zip(rest, wanted, strict=False)
    )
    if not is_match:
        message = (
            f"Shape of input {quoted(one.name)}, batch left out, must fit the file's "
            f"{'x'.join(str(size) for size in rest) or 'nothing'}; "
            f"got {'x'.join(map(str, wanted)) or 'nothing'}. Correct the shape, or export the model for it."
        )
        raise GraphError(message)
    return {size: _check_size(value, size) for size, value in zip(rest, wanted, strict=True) if isinstance(size, str)}


def _check_free(inputs: Sequence[ValueInfo], known: set[str], model: str) -> None:
    terms = [size for one in inputs for size in one.sizes or () if isinstance(size, str)]
    free = {
        name
        for term in terms
        if term not in known and evaluate_dimension(term, dict.fromkeys(known, 1)) is None
        for name in dimension_names(term) or (term,)
        if name not in known
    }
    if free:
        listed = sorted(free)
        shapes = " ".join(f"--shape {name}=128" for name in listed[:4])
        message = (
            f"Model {quoted(model)} must have a size for each free dimension beside the batch; "
            f"got none for {', '.join(map(quoted, listed[:8]))}. Add, for example, {shapes}."
        )
        raise GraphError(message)


def _check_size(size: int, name: str) -> int:
    if not 1 <= size <= MAXIMUM_ELEMENTS:
        message = f"Dimension {quoted(name)} must be from 1 to 2^48; got {size}. Correct the shape."
        raise GraphError(message)
    return size


def _first_size(inputs: Sequence[ValueInfo]) -> int | None:
    """Return the first size of the first input that has a fixed one: a fixed batch size."""
    for one in inputs:
        if one.sizes and isinstance(one.sizes[0], int) and one.sizes[0] > 0:
            return one.sizes[0]
    return None
