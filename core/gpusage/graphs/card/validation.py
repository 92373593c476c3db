"""A card's JSON -> `ModelGraph`, with a check of every type, number and length."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, get_args

from gpusage.graphs.model_files import MAXIMUM_NODES, MAXIMUM_RANK, check_shape, printable
from gpusage_hooks.errors import GraphError
from gpusage_hooks.job_keys import QUANTISED
from gpusage_hooks.types import Attribute, ElementType, ModelGraph, Node, Shape

# Of the JSON; a card of another version is made again.
VERSION = 1
# Beyond any tensor, and far from overflowing 64 bits when a predictor multiplies two of them by bytes.
MAXIMUM_COUNT = 2**48
MAXIMUM_LIST = 4096
MAXIMUM_ATTRIBUTES = 64

_LONGEST_WORD, _LONGEST_ATTRIBUTE = 80, 160
_WORD = re.compile(rf"[A-Za-z0-9_.:/-]{{1,{_LONGEST_WORD}}}")
# A word, or an equation of Einsum: ``nhw,ixh->nixw``.
_ATTRIBUTE = re.compile(rf"[A-Za-z0-9_.:/>, -]{{1,{_LONGEST_ATTRIBUTE}}}")
# The words of the contract, so that a new type is one line there.
_ELEMENT_TYPES: tuple[ElementType, ...] = get_args(ElementType)


class _FieldError(Exception):
    """A field breaks a rule; the text names both."""


def graph_from_document(document: object, subject: str, maximum_kinds: int = MAXIMUM_NODES) -> ModelGraph:
    """Return the graph of *document*.

    Args:
        document: A parsed JSON value.
        subject: The subject of error messages.
        maximum_kinds: Limit of the kinds of nodes, with which a prediction's time grows.

    Raises:
        GraphError: *document* breaks a rule.
    """
    try:
        return _graph(_mapping(document, "the document"), subject, maximum_kinds)
    except _FieldError as error:
        message = f"{subject} must be as 'gpusage card' writes it; {error}. Make it again."
        raise GraphError(message) from error


def _graph(document: dict[str, Any], subject: str, maximum_kinds: int) -> ModelGraph:
    _require(document.get("gpusage_card") == VERSION, f"'gpusage_card' is not {VERSION}")

    # Kinds first: their number limits the sequence, and the sequence's length the producers.
    shapes = _Shapes(subject)
    rows = _list(document.get("kinds"), "kinds", maximum_kinds)
    kinds = [_node_fields(_mapping(row, "kinds"), shapes) for row in rows]
    sequence = _integers(document.get("nodes"), "nodes", 0, len(kinds) - 1, MAXIMUM_NODES)
    inputs = []
    for name, shape in _pairs(document.get("inputs"), "inputs"):
        inputs.append((_text(name, "inputs"), shapes.validated(shape, "inputs")))
    unknown = []
    for name, count in _pairs(document.get("unknown_op_types"), "unknown_op_types"):
        unknown.append((_text(name, "unknown_op_types"), _integer(count, "unknown_op_types", 1, MAXIMUM_NODES)))

    fixed, trainable, precision = (document.get(key) for key in ("fixed_batch_size", "trainable", "precision"))
    is_share = isinstance(trainable, (int, float)) and not isinstance(trainable, bool) and 0 < trainable <= 1
    _require(trainable is None or is_share, "'trainable' is not above 0 and at most 1")
    _require(precision is None or precision in QUANTISED, f"'precision' is not one of {', '.join(QUANTISED)}")

    producers = _producers(document.get("producers"), len(sequence), len(inputs))
    return ModelGraph(
        name=_text(document.get("name"), "name"),
        source=_text(document.get("source"), "source"),
        nodes=_nodes(kinds, sequence, producers),
        producers=producers,
        inputs=tuple(inputs),
        parameter_count=_integer(document.get("parameter_count"), "parameter_count", 0, MAXIMUM_COUNT),
        fixed_batch_size=None if fixed is None else _integer(fixed, "fixed_batch_size", 1, MAXIMUM_COUNT),
        unknown_op_types=tuple(unknown),
        trainable=1.0 if trainable is None else float(trainable),
        precision=precision,
        notes=tuple([_text(note, "notes") for note in _list(document.get("notes"), "notes", MAXIMUM_LIST)]),
    )


class _Shapes:
    """The shapes of a card. A shape is validated once: most shapes of a card are repeated."""

    def __init__(self, subject: str) -> None:
        self._subject = f"{subject}: a tensor"
        self._valid: dict[tuple[Any, ...], Shape] = {}

    def validated_list(self, value: object, name: str) -> tuple[Shape, ...]:
        """Return the shapes in the list *value*."""
        # The fast way: a card repeats its shapes, and a known one needs no second check.
        rows, valid = _list(value, name, MAXIMUM_LIST), self._valid
        try:
            return tuple([valid[tuple(row)] for row in rows])
        except (KeyError, TypeError):  # a new shape, or no shape at all
            return tuple([self.validated(row, name) for row in rows])

    def validated(self, value: object, name: str) -> Shape:
        """Return the shape with the sizes in the list *value*."""
        sizes = _integers(value, name, -MAXIMUM_COUNT, MAXIMUM_COUNT, MAXIMUM_RANK)
        shape = check_shape(sizes, self._subject)
        return self._valid.setdefault(shape, shape)


def _node_fields(kind: dict[str, Any], shapes: _Shapes) -> dict[str, Any]:
    """Return the fields of a kind's node, without inputs if the kind has no ``in``."""
    # A size below 0 is a multiple of the batch, which no weight's is.
    parameters = shapes.validated_list(kind["par"], "par") if "par" in kind else ()
    _require(min(chain.from_iterable(parameters), default=0) >= 0, "'par' follows the batch")
    element_type = kind.get("type", "float")
    _require(element_type in _ELEMENT_TYPES, "'type' is not an element type")
    attributes = _mapping(kind["attr"], "attr") if "attr" in kind else {}
    _require(len(attributes) <= MAXIMUM_ATTRIBUTES, f"'attr' is not an object of at most {MAXIMUM_ATTRIBUTES}")

    fields = {
        "op_type": _word(kind.get("op"), "op"),
        "outputs": shapes.validated_list(kind.get("out"), "out"),
        "parameters": parameters,
        "attributes": tuple(sorted([(_word(key, "attr"), _attribute(value)) for key, value in attributes.items()])),
        "element_type": element_type,
    }
    if "in" in kind:
        fields["inputs"] = shapes.validated_list(kind["in"], "in")
    return fields


def _nodes(
    kinds: Sequence[Mapping[str, Any]], sequence: Sequence[int], producers: Sequence[tuple[int, ...]]
) -> tuple[Node, ...]:
    """Return the nodes with their inputs; without ``in``, these are the first outputs of the producers."""
    # Equal nodes are one object, so that a card's memory and a prediction's time grow with its kinds.
    unique: dict[tuple[int, tuple[Shape, ...]], Node] = {}
    nodes: list[Node] = []
    outputs_by_node: list[tuple[Shape, ...]] = []
    for kind, row in zip(sequence, producers, strict=True):
        fields = kinds[kind]
        inputs = fields.get("inputs")
        if inputs is None:
            # Producers come earlier in the list, so their outputs are known.
            shapes = [outputs_by_node[producer] if producer >= 0 else () for producer in row]
            _require(() not in shapes, "a kind without 'in' reads what nothing writes")
            inputs = tuple([shape[0] for shape in shapes])

        _require(len(row) == len(inputs), "'producers' do not match the nodes' inputs")
        node = unique.get((kind, inputs))
        if node is None:
            node = unique[kind, inputs] = Node(**{**fields, "inputs": inputs})
        nodes.append(node)
        outputs_by_node.append(node.outputs)

    return tuple(nodes)


def _producers(rows: object, node_count: int, input_count: int) -> tuple[tuple[int, ...], ...]:
    table = _list(rows, "producers", MAXIMUM_NODES)
    _require(len(table) == node_count, "'producers' and 'nodes' differ in length")
    producers = []
    for index, row in enumerate(table):
        # Above 0 a distance back, at most to the first node; below 0 an input of the model.
        steps = _integers(row, "producers", -input_count, index, MAXIMUM_LIST)
        _require(0 not in steps, "'producers' has a node that feeds itself")
        producers.append(tuple([index - step if step > 0 else step for step in steps]))

    return tuple(producers)


def _attribute(value: object) -> Attribute:
    if isinstance(value, str):
        # Cut, so that a long text is neither matched nor kept in the cache.
        _require(_matches(_ATTRIBUTE, value[: _LONGEST_ATTRIBUTE + 1]), "'attr' holds an unlikely word")
        return value
    if isinstance(value, list):
        return tuple(_integers(value, "attr", -MAXIMUM_COUNT, MAXIMUM_COUNT, 64))
    # JSON of Python may hold NaN and Infinity, which no cost can be computed from.
    if isinstance(value, float):
        _require(math.isfinite(value), "'attr' is not a finite number")
        return value

    return _integer(value, "attr", -MAXIMUM_COUNT, MAXIMUM_COUNT)


def _pairs(value: object, name: str) -> list[list[Any]]:
    rows = _list(value, name, MAXIMUM_LIST)
    for row in rows:
        _require(len(_list(row, name, 2)) == 2, f"'{name}' is not a list of pairs")
    return rows


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
    """Return *value* if it is a list of integers, not booleans, from *low* to *high*."""
    integers = _list(value, name, limit)
    # The bulk of a card is such lists: this runs in C.
    if integers and not (_INTEGER.issuperset(map(type, integers)) and low <= min(integers) and max(integers) <= high):
        message = f"'{name}' holds a figure out of range"
        raise _FieldError(message)
    return integers


_INTEGER = frozenset({int})


def _word(value: object, name: str) -> str:
    if not isinstance(value, str) or not _matches(_WORD, value[: _LONGEST_WORD + 1]):
        message = f"'{name}' holds an unlikely word"
        raise _FieldError(message)
    return value


@lru_cache(maxsize=2048)
def _matches(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.fullmatch(text) is not None


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        message = f"'{name}' is not a text"
        raise _FieldError(message)
    return printable(value)


def _require(condition: object, rule: str) -> None:
    if not condition:
        raise _FieldError(rule)
