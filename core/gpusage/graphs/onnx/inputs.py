"""A model's inputs at a batch size: the dimension of the batch, and the sizes of the other dimensions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpusage.graphs.batch_sizes import edge_list_inputs
from gpusage.graphs.model_files import MAXIMUM_ELEMENTS, check_shape, quoted
from gpusage.graphs.onnx.file import Size, ValueInfo
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Shape

# Characters of a dimension's expression; a longer one counts as one name.
_MAXIMUM_LENGTH = 200
_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_.][\w.]*)|(//|[-+*/]))")
_BATCH_NAME = re.compile(r"(?i)(.*batch.*|bs|b|n)")
# tf2onnx gives each free dimension of each input a name of its own.
_GENERATED_NAME = re.compile(r"unk__\d+")
# Our name of a free dimension without one: its input's name and its index.
_UNNAMED = "{}.{}"


def evaluate_dimension(size: Size, symbols: Mapping[str, int]) -> int | None:
    """Return *size*, a number, a name or an expression, as a number; ``None`` if a name has no value."""
    if size is None or isinstance(size, int):
        return size
    # The whole first, for ``batch*seq`` may be a name.
    if size in symbols:
        return symbols[size]
    tokens = _tokens(size)
    if tokens is None or len(tokens) % 2 == 0:
        return None

    # Operands and operators in turn, products before sums; exporters write no brackets.
    total, sign, product = 0, 1, 1
    for operator, token in zip(["*", *tokens[1::2]], tokens[::2], strict=True):
        number = int(token) if token.isdigit() else symbols.get(token)
        if number is None or (operator in {"/", "//"} and not number):
            return None
        if operator == "*":
            product *= number
        elif operator in {"/", "//"}:
            product //= number  # sizes are whole numbers
        elif operator in {"+", "-"}:
            total += sign * product
            sign, product = (1 if operator == "+" else -1), number
        else:
            return None
    return total + sign * product


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


@dataclass(frozen=True, slots=True)
class InputBinding:
    """The inputs' sizes as functions of the batch size.

    Attributes:
        inputs: Inputs with a number, a name or an expression for every dimension.
        batch_names: Names of the batch.
        values: Values of all other names.
        fixed_batch_size: First dimension of the inputs if no dimension is the batch; 1 for a graph network.
        edges: Names of the inputs that list the edges of a graph; ``""`` without any.
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
    """Bind the free dimensions of *inputs* to the batch size or to the user's *shape*.

    Args:
        inputs: The file's declarations.
        shape: ``{"input": (3, 224, 224)}`` for a whole input without its batch, ``{"seq": (128,)}`` for a name.
        model: Name in messages.

    Raises:
        GraphError: A free dimension has no value, or *shape* does not fit the file.
    """
    named = [_with_dimension_names(one, shape, model) for one in inputs]
    symbols = [name for one in named for size in one.sizes or () for name in dimension_names(size)]
    edges = edge_list_inputs([(one.name, one.sizes or (), one.element_type in ("int64", "int32")) for one in named])
    # The free first dimensions of a graph network count nodes and edges.
    if edges:
        batch_names = {name for name in symbols if "batch" in name.lower()}
    else:
        batch_names = _batch_names(named, symbols, shape)
    values = _shape_values(named, {*symbols}, batch_names, shape, model) if shape else {}
    _check_free(named, {*batch_names, *values}, model)

    # Without a free batch the first fixed size is the likeliest batch; the reader tries others in its place.
    fixed = None
    if not batch_names:
        first_sizes = [one.sizes[0] for one in named if one.sizes]
        fixed = 1 if edges else next((size for size in first_sizes if isinstance(size, int) and size > 0), None)
    return InputBinding(tuple(named), frozenset(batch_names), values, fixed, edges)


def _with_dimension_names(one: ValueInfo, shape: Mapping[str, Sequence[int]], model: str) -> ValueInfo:
    """Return *one* with a name for each free dimension."""
    # Without a declared shape the user's counts, behind a batch.
    if one.sizes is None:
        if one.name not in shape:
            message = (
                f"Input {quoted(one.name)} of model {quoted(model)} must have a shape; the file gives none. "
                f"Add --shape {one.name}=3x224x224."
            )
            raise GraphError(message)
        return ValueInfo(one.name, (_UNNAMED.format(one.name, 0), *shape[one.name]), one.element_type)

    # Paddle writes "?" for each, which names nothing.
    unnamed = [isinstance(size, str) and not re.search(r"\w", size) for size in one.sizes]
    sizes = [
        _UNNAMED.format(one.name, place) if size is None or unnamed[place] else size
        for place, size in enumerate(one.sizes)
    ]
    return ValueInfo(one.name, tuple(sizes), one.element_type)


def _batch_names(inputs: Sequence[ValueInfo], symbols: Sequence[str], shape: Mapping[str, Sequence[int]]) -> set[str]:
    """Return the names of the batch: names with this word, else the free first dimensions."""
    # A name in the user's shape is no batch, whatever it is called.
    explicit, plain, anonymous = set[str](), set[str](), set[str]()
    for name in symbols:
        if _BATCH_NAME.fullmatch(name) and name not in shape:
            explicit.add(name)

    # A generated name says nothing, so beside an explicit name it may be the batch, too.
    for one in inputs:
        first = one.sizes[0] if one.sizes else None
        # An expression such as batch*heads is no batch size of its own.
        if isinstance(first, str) and dimension_names(first) == (first,) and first not in shape:
            plain.add(first)
            if first == _UNNAMED.format(one.name, 0) or _GENERATED_NAME.fullmatch(first):
                anonymous.add(first)
    return explicit | anonymous if explicit else plain


def _shape_values(
    inputs: Sequence[ValueInfo],
    symbols: set[str],
    batch_names: set[str],
    shape: Mapping[str, Sequence[int]],
    model: str,
) -> dict[str, int]:
    """Return the values of names in the user's *shape*.

    Raises:
        GraphError: *shape* does not fit the file.
    """
    by_name = {one.name: one for one in inputs}
    known = sorted(by_name.keys() | symbols)
    for key in shape:
        if key not in known:
            batch = _batch_names(inputs, [*symbols], shape)
            free = ", ".join([quoted(name) for name in known if name not in batch][:8])
            message = (
                f"Shape {quoted(key)} must name an input or a free dimension beside the batch of model "
                f"{quoted(model)}; it has {free or 'none'}. Correct the shape."
            )
            raise GraphError(message)

    values: dict[str, int] = {}
    for key in dict.fromkeys((*(name for name in by_name if name in shape), *shape)):
        sizes = shape[key]
        if key not in by_name:
            if len(sizes) != 1:
                message = f"Dimension {quoted(key)} must get one size; got {len(sizes)}. Write --shape {key}=128."
                raise GraphError(message)
            rest: list[Size] = [key]
        else:
            # The user leaves the batch out, whichever axis it is.
            declared = by_name[key].sizes or ()
            rest = [size for size in declared if not (isinstance(size, str) and size in batch_names)]
            if len(rest) == len(declared) and len(sizes) == len(declared) - 1:
                rest = rest[1:]  # a fixed batch size, which the user left out as well
        is_match = len(sizes) == len(rest) and all(
            isinstance(size, str) or size == value for size, value in zip(rest, sizes, strict=False)
        )
        if not is_match:
            message = (
                f"Shape of input {quoted(key)}, batch left out, must fit the file's "
                f"{'x'.join(map(str, rest)) or 'nothing'}; "
                f"got {'x'.join(map(str, sizes)) or 'nothing'}. Correct the shape, or export the model for it."
            )
            raise GraphError(message)
        for size, value in zip(rest, sizes, strict=True):
            if not isinstance(size, str):
                continue
            if values.setdefault(size, _check_size(value, size)) != value:
                message = (
                    f"Dimension {quoted(size)} of model {quoted(model)} must have one size wherever it stands; "
                    f"got {values[size]} and {value}. Correct the shape, or export the model with a name for each."
                )
                raise GraphError(message)
    return values


def _check_free(inputs: Sequence[ValueInfo], known: set[str], model: str) -> None:
    """Refuse a model that has a free dimension without a value."""
    # Any value shows whether all names of an expression are known; with 1 no quotient is by 0.
    free: set[str] = set()
    for one in inputs:
        for term in one.sizes or ():
            if not isinstance(term, str) or term in known:
                continue
            if evaluate_dimension(term, dict.fromkeys(known, 1)) is None:
                free.update(name for name in dimension_names(term) or (term,) if name not in known)

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
