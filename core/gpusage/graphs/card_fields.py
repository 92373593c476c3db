"""From a card's JSON to a `ModelGraph`, believing nothing: every type, figure and length is checked."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any, get_args

from gpusage.graphs.guard import MAXIMUM_NODES, MAXIMUM_RANK, check_shape, printable
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Attribute, ElementType, ModelGraph, Node, Shape

VERSION = 1
MAXIMUM_COUNT = 2**48
MAXIMUM_LIST = 4096

_WORD = re.compile(r"[A-Za-z0-9_.:/-]{1,80}")
_ATTRIBUTE = re.compile(r"[A-Za-z0-9_.:/>, -]{1,160}")
"""A word, or an equation of Einsum: ``nhw,ixh->nixw``."""
_ELEMENT_TYPES: tuple[ElementType, ...] = get_args(ElementType)


class _FieldError(Exception):
    """Say which rule a field breaks."""


def check_document(document: object, subject: str) -> ModelGraph:
    """Return the graph that *document* describes.

    Raises:
        GraphError: It does not describe one.
    """
    try:
        return _graph(_mapping(document, "the document"), subject)
    except _FieldError as error:
        message = f"{subject} must be as 'gpusage card' writes it; {error}. Make it anew."
        raise GraphError(message) from error


def _graph(document: dict[str, Any], subject: str) -> ModelGraph:
    version = document.get("gpusage_card")
    _require(version == VERSION, f"'gpusage_card' is not {VERSION}")
    kinds = [_node(kind, subject) for kind in _list(document.get("kinds"), "kinds", MAXIMUM_NODES)]
    sequence = [
        kinds[_integer(number, "nodes", 0, len(kinds) - 1)]
        for number in _list(document.get("nodes"), "nodes", MAXIMUM_NODES)
    ]
    inputs = tuple(
        (_text(name, "inputs"), _shape(shape, "inputs", subject))
        for name, shape in _pairs(document.get("inputs"), "inputs")
    )
    producers = _producers(document.get("producers"), len(sequence), len(inputs))
    fixed = document.get("fixed_batch_size")
    return ModelGraph(
        name=_text(document.get("name"), "name"),
        source=_text(document.get("source"), "source"),
        nodes=_nodes(sequence, producers),
        producers=producers,
        inputs=inputs,
        parameter_count=_integer(document.get("parameter_count"), "parameter_count", 0, MAXIMUM_COUNT),
        fixed_batch_size=None if fixed is None else _integer(fixed, "fixed_batch_size", 1, MAXIMUM_COUNT),
        unknown_op_types=tuple(
            (_text(name, "unknown_op_types"), _integer(count, "unknown_op_types", 1, MAXIMUM_NODES))
            for name, count in _pairs(document.get("unknown_op_types"), "unknown_op_types")
        ),
        notes=tuple(_text(note, "notes") for note in _list(document.get("notes"), "notes", MAXIMUM_LIST)),
    )


def _node(kind: object, subject: str) -> tuple[Node, bool]:
    """Return the node that a kind describes, and whether its inputs are said."""
    fields = _mapping(kind, "kinds")
    attributes = _mapping(fields.get("attr", {}), "attr")
    node = Node(
        op_type=_word(fields.get("op"), "op"),
        inputs=_shapes(fields.get("in", []), "in", subject),
        outputs=_shapes(fields.get("out"), "out", subject),
        parameters=_shapes(fields.get("par", []), "par", subject, fixed=True),
        attributes=tuple(sorted((_word(key, "attr"), _attribute(value)) for key, value in attributes.items())),
        element_type=_element_type(fields.get("type", "float")),
    )
    return node, "in" in fields


def _nodes(sequence: list[tuple[Node, bool]], producers: tuple[tuple[int, ...], ...]) -> tuple[Node, ...]:
    """Return the nodes with their inputs; where a kind does not say them, what their producers write first."""
    shared: dict[tuple[int, tuple[Shape, ...]], Node] = {}
    nodes: list[Node] = []
    for (kind, said), row in zip(sequence, producers, strict=True):
        if said:
            _require(len(row) == len(kind.inputs), "'producers' do not match the nodes' inputs")
            nodes.append(kind)
            continue
        _require(
            all(made >= 0 and nodes[made].outputs for made in row), "a kind without 'in' reads what nothing writes"
        )
        inputs = tuple(nodes[made].outputs[0] for made in row)
        key = (id(kind), inputs)
        if key not in shared:
            shared[key] = replace(kind, inputs=inputs)
        nodes.append(shared[key])
    return tuple(nodes)


def _producers(rows: object, node_count: int, input_count: int) -> tuple[tuple[int, ...], ...]:
    table = _list(rows, "producers", MAXIMUM_NODES)
    _require(len(table) == node_count, "'producers' and 'nodes' differ in length")
    result = []
    for index, row in enumerate(table):
        back = [_integer(step, "producers", -input_count, index) for step in _list(row, "producers", MAXIMUM_LIST)]
        _require(0 not in back, "'producers' has a node that feeds itself")
        result.append(tuple(index - step if step > 0 else step for step in back))
    return tuple(result)


def _shapes(value: object, name: str, subject: str, *, fixed: bool = False) -> tuple[Shape, ...]:
    shapes = tuple(_shape(shape, name, subject) for shape in _list(value, name, MAXIMUM_LIST))
    _require(not fixed or all(size >= 0 for shape in shapes for size in shape), f"'{name}' follows the batch")
    return shapes


def _shape(value: object, name: str, subject: str) -> Shape:
    sizes = [_integer(size, name, -MAXIMUM_COUNT, MAXIMUM_COUNT) for size in _list(value, name, MAXIMUM_RANK)]
    return check_shape(sizes, f"{subject}: a tensor")


def _element_type(value: object) -> ElementType:
    for element_type in _ELEMENT_TYPES:
        if value == element_type:
            return element_type
    message = "'type' is not an element type"
    raise _FieldError(message)


def _attribute(value: object) -> Attribute:
    if isinstance(value, str):
        _require(_ATTRIBUTE.fullmatch(value) is not None, "'attr' holds an unlikely word")
        return value
    if isinstance(value, list):
        return tuple(_integer(item, "attr", -MAXIMUM_COUNT, MAXIMUM_COUNT) for item in _list(value, "attr", 64))
    if isinstance(value, float):
        _require(math.isfinite(value), "'attr' is not a finite number")
        return value
    return _integer(value, "attr", -MAXIMUM_COUNT, MAXIMUM_COUNT)


def _pairs(value: object, name: str) -> list[tuple[Any, Any]]:
    rows = [_list(row, name, 2) for row in _list(value, name, MAXIMUM_LIST)]
    _require(all(len(row) == 2 for row in rows), f"'{name}' is not a list of pairs")  # noqa: PLR2004 - a pair
    return [(row[0], row[1]) for row in rows]


def _mapping(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > MAXIMUM_LIST:
        message = f"'{name}' is not an object"
        raise _FieldError(message)
    return value


def _list(value: object, name: str, limit: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > limit:
        message = f"'{name}' is not a list of at most {limit}"
        raise _FieldError(message)
    return value


def _integer(value: object, name: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        message = f"'{name}' holds a figure out of range"
        raise _FieldError(message)
    return value


def _word(value: object, name: str) -> str:
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        message = f"'{name}' holds an unlikely word"
        raise _FieldError(message)
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        message = f"'{name}' is not a text"
        raise _FieldError(message)
    return printable(value)


def _require(holds: object, rule: str) -> None:
    if not holds:
        raise _FieldError(rule)
