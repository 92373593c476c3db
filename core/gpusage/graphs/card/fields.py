"""From a card's JSON to a `ModelGraph`, believing nothing: every type, figure and length is checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, get_args

from gpusage.graphs.guard import MAXIMUM_NODES, MAXIMUM_RANK, check_shape, printable
from gpusage_hooks.comment import QUANTISED
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Attribute, ElementType, ModelGraph, Node, Precision, Shape

VERSION = 1
MAXIMUM_COUNT = 2**48
MAXIMUM_LIST = 4096
MAXIMUM_ATTRIBUTES = 64

_LONGEST_WORD, _LONGEST_ATTRIBUTE = 80, 160
_WORD = re.compile(rf"[A-Za-z0-9_.:/-]{{1,{_LONGEST_WORD}}}")
_ATTRIBUTE = re.compile(rf"[A-Za-z0-9_.:/>, -]{{1,{_LONGEST_ATTRIBUTE}}}")
"""A word, or an equation of Einsum: ``nhw,ixh->nixw``."""
_ELEMENT_TYPES: tuple[ElementType, ...] = get_args(ElementType)


class _FieldError(Exception):
    """Say which rule a field breaks."""


def check_document(document: object, subject: str, most_kinds: int = MAXIMUM_NODES) -> ModelGraph:
    """Return the graph that *document* describes.

    Args:
        document: What JSON says.
        subject: What errors are about.
        most_kinds: How many kinds of nodes it may list; to predict for one takes longer than to read it.

    Raises:
        GraphError: It does not describe one.
    """
    try:
        return _graph(_mapping(document, "the document"), subject, most_kinds)
    except _FieldError as error:
        message = f"{subject} must be as 'gpusage card' writes it; {error}. Make it anew."
        raise GraphError(message) from error


def _graph(document: dict[str, Any], subject: str, most_kinds: int) -> ModelGraph:
    version = document.get("gpusage_card")
    _require(version == VERSION, f"'gpusage_card' is not {VERSION}")
    shapes = _Shapes(subject)
    rows = [_mapping(kind, "kinds") for kind in _list(document.get("kinds"), "kinds", most_kinds)]
    kinds = [_node_fields(kind, shapes) for kind in rows]
    sequence = _integers(document.get("nodes"), "nodes", 0, len(kinds) - 1, MAXIMUM_NODES)
    inputs = tuple(
        (_text(name, "inputs"), shapes.checked(shape, "inputs"))
        for name, shape in _pairs(document.get("inputs"), "inputs")
    )
    producers = _producers(document.get("producers"), len(sequence), len(inputs))
    fixed = document.get("fixed_batch_size")
    return ModelGraph(
        name=_text(document.get("name"), "name"),
        source=_text(document.get("source"), "source"),
        nodes=_nodes(kinds, sequence, producers),
        producers=producers,
        inputs=inputs,
        parameter_count=_integer(document.get("parameter_count"), "parameter_count", 0, MAXIMUM_COUNT),
        fixed_batch_size=None if fixed is None else _integer(fixed, "fixed_batch_size", 1, MAXIMUM_COUNT),
        unknown_op_types=tuple(
            (_text(name, "unknown_op_types"), _integer(count, "unknown_op_types", 1, MAXIMUM_NODES))
            for name, count in _pairs(document.get("unknown_op_types"), "unknown_op_types")
        ),
        trainable=_share(document.get("trainable", 1.0)),
        precision=_precision(document.get("precision")),
        notes=tuple(_text(note, "notes") for note in _list(document.get("notes"), "notes", MAXIMUM_LIST)),
    )


class _Shapes:
    """The shapes of one card; one that was checked is known again by its sizes, as most of a card's are."""

    def __init__(self, subject: str) -> None:
        self._subject = f"{subject}: a tensor"
        self._known: dict[tuple[Any, ...], Shape] = {}

    def read(self, value: object, name: str) -> tuple[Shape, ...]:
        """Return the shapes of a list of them."""
        rows, known = _list(value, name, MAXIMUM_LIST), self._known
        try:
            return tuple([known[tuple(row)] for row in rows])
        except (KeyError, TypeError):  # a new one, or none at all
            return tuple([self.checked(row, name) for row in rows])

    def checked(self, value: object, name: str) -> Shape:
        """Return the shape that *value* lists."""
        sizes = _integers(value, name, -MAXIMUM_COUNT, MAXIMUM_COUNT, MAXIMUM_RANK)
        shape = check_shape(sizes, self._subject)
        return self._known.setdefault(shape, shape)


def _node_fields(kind: dict[str, Any], shapes: _Shapes) -> dict[str, Any]:
    """Return the fields of the node that a kind describes, without inputs where these are not said."""
    parameters = shapes.read(kind["par"], "par") if "par" in kind else ()
    _require(min(chain.from_iterable(parameters), default=0) >= 0, "'par' follows the batch")
    attributes = _mapping(kind["attr"], "attr") if "attr" in kind else {}
    _require(len(attributes) <= MAXIMUM_ATTRIBUTES, f"'attr' is not an object of at most {MAXIMUM_ATTRIBUTES}")
    fields = {
        "op_type": _word(kind.get("op"), "op"),
        "outputs": shapes.read(kind.get("out"), "out"),
        "parameters": parameters,
        "attributes": tuple(sorted([(_word(key, "attr"), _attribute(value)) for key, value in attributes.items()])),
        "element_type": _element_type(kind["type"]) if "type" in kind else "float",
    }
    return {**fields, "inputs": shapes.read(kind["in"], "in")} if "in" in kind else fields


def _nodes(
    kinds: Sequence[Mapping[str, Any]], sequence: Sequence[int], producers: Sequence[tuple[int, ...]]
) -> tuple[Node, ...]:
    """Return the nodes with their inputs; where a kind does not say them, what their producers write first."""
    shared: dict[tuple[int, tuple[Shape, ...]], Node] = {}
    nodes: list[Node] = []
    written: list[tuple[Shape, ...]] = []
    for number, row in zip(sequence, producers, strict=True):
        fields = kinds[number]
        inputs = fields.get("inputs")
        if inputs is None:
            shapes = [written[producer] if producer >= 0 else () for producer in row]
            _require(() not in shapes, "a kind without 'in' reads what nothing writes")
            inputs = tuple([shape[0] for shape in shapes])
        _require(len(row) == len(inputs), "'producers' do not match the nodes' inputs")
        node = shared.get((number, inputs))
        if node is None:
            node = shared[number, inputs] = Node(**{**fields, "inputs": inputs})
        nodes.append(node)
        written.append(node.outputs)
    return tuple(nodes)


def _producers(rows: object, node_count: int, input_count: int) -> tuple[tuple[int, ...], ...]:
    table = _list(rows, "producers", MAXIMUM_NODES)
    _require(len(table) == node_count, "'producers' and 'nodes' differ in length")
    result = []
    for index, row in enumerate(table):
        back = _integers(row, "producers", -input_count, index, MAXIMUM_LIST)
        _require(0 not in back, "'producers' has a node that feeds itself")
        result.append(tuple([index - step if step > 0 else step for step in back]))
    return tuple(result)


def _element_type(value: object) -> ElementType:
    for element_type in _ELEMENT_TYPES:
        if value == element_type:
            return element_type
    message = "'type' is not an element type"
    raise _FieldError(message)


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        message = "'trainable' is not above 0 and at most 1"
        raise _FieldError(message)
    return float(value)


def _precision(value: object) -> Precision | None:
    for precision in QUANTISED:
        if value == precision:
            return precision
    _require(value is None, f"'precision' is not one of {', '.join(QUANTISED)}")
    return None


def _attribute(value: object) -> Attribute:
    if isinstance(value, str):
        _require(_is_attribute(value[: _LONGEST_ATTRIBUTE + 1]), "'attr' holds an unlikely word")
        return value
    if isinstance(value, list):
        return tuple(_integers(value, "attr", -MAXIMUM_COUNT, MAXIMUM_COUNT, 64))
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


def _integers(value: object, name: str, low: int, high: int, limit: int) -> list[int]:
    """Return *value* where it is a list of integers from *low* to *high*; a truth value is none."""
    integers = _list(value, name, limit)
    if integers and not (_INTEGER.issuperset(map(type, integers)) and low <= min(integers) and max(integers) <= high):
        message = f"'{name}' holds a figure out of range"
        raise _FieldError(message)
    return integers


_INTEGER = frozenset({int})


def _word(value: object, name: str) -> str:
    if not isinstance(value, str) or not _is_word(value[: _LONGEST_WORD + 1]):
        message = f"'{name}' holds an unlikely word"
        raise _FieldError(message)
    return value


@lru_cache(maxsize=1024)
def _is_word(text: str) -> bool:
    return _WORD.fullmatch(text) is not None


@lru_cache(maxsize=1024)
def _is_attribute(text: str) -> bool:
    return _ATTRIBUTE.fullmatch(text) is not None


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        message = f"'{name}' is not a text"
        raise _FieldError(message)
    return printable(value)


def _require(holds: object, rule: str) -> None:
    if not holds:
        raise _FieldError(rule)
