"""Documents from outside -> typed values, checked by msgspec, with a sentence for each refusal.

Invariants:

1. A field's description is its rule in words: ``Annotated[int, Meta(ge=0, description="a count of GPUs")]``.
2. A sentence is about the last name on the path to the wrong value: about ``sizes``, not about its third entry.
3. msgspec takes 40 ms to import, so modules of `gpusage predict` do not import this one.
"""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")
Step = str | int
"""A step into a value: the name of a key, or the index of an entry; ``...`` is any key of a mapping."""

_ONE_THREAD = threading.Lock()
_PATH = re.compile(r" - at `(?:key` in `)?\$([^`]*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(?:(\d+)|(\.\.\.))\]")
_FIELD = re.compile(r"(unknown|missing required) field `(.*?)`(?: - at `\$[^`]*`)?$", re.DOTALL)
_WORDS: Mapping[type[inspect.Type], str] = {
    inspect.StrType: "a text",
    inspect.BoolType: "true or false",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.VarTupleType: "a list",
}
"""Types in words; all others are tables."""


class MismatchError(ValueError):
    """A document does not have the expected type at some place.

    Attributes:
        above: Path to the table that has the key.
        key: The wrong key; ``""`` is the document itself.
        rule: The expected value, in words.
        value: The document's value, or ``None``.
        hint: Sentence with the nearest known key, or with all known keys; ``""`` for a known key.
    """

    def __init__(self, way: Sequence[Step], rule: str, value: object, hint: str = "") -> None:
        super().__init__(f"{''.join(map(str, way))} must be {rule}")
        self.above: tuple[Step, ...] = tuple(way[:-1])
        self.key = str(way[-1]) if way else ""
        self.rule = rule
        self.value = value
        self.hint = hint


def read_as(kind: type[T], document: object, prefix: str = "") -> T:
    """Convert *document*, read from JSON or TOML, to a *kind*.

    Args:
        kind: A `msgspec.Struct` or a dataclass.
        document: Mappings with texts as keys, lists, texts, numbers, truth values and ``None``.
        prefix: Prefix of a key in its full name, for example ``daemon.``.

    Raises:
        MismatchError: The document does not have this type.
    """
    try:
        # msgspec (0.22) crashes the process where two threads meet a type for the first time.
        with _ONE_THREAD:
            return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _mismatch(kind, document, str(error), prefix) from error
    except UnicodeEncodeError as error:  # half a surrogate pair in a key, which JSON can hold
        raise MismatchError((error.object,), "Unicode", error.object) from error


def nearest_key(key: str, known: Sequence[str], prefix: str = "") -> str:
    """Return a sentence with the *known* key that is most like *key*, or with all known keys."""
    near = difflib.get_close_matches(key, known, n=1)
    return f"Did you mean {prefix + near[0]!r}?" if near else f"Known are {', '.join(known)}."


def _mismatch(kind: type, document: object, complaint: str, prefix: str) -> MismatchError:
    """Return msgspec's *complaint* about a *document* in our words."""
    # msgspec (0.22) reports the place in its message alone, so the message is parsed.
    way, unknown = _path_steps(complaint)
    value = reduce(_value, way, document)

    if unknown:
        known = [field.encode_name for field in _fields(reduce(_type, way[:-1], inspect.type_info(kind)))]
        return MismatchError(way, "a known one", value, nearest_key(str(way[-1]), known, prefix))
    return MismatchError(way, _words(reduce(_type, way, inspect.type_info(kind))), value)


def _path_steps(complaint: str) -> tuple[tuple[Step, ...], bool]:
    """Return the steps to the last name in a *complaint*, and whether this name is unknown."""
    place, field = _PATH.search(complaint), _FIELD.search(complaint)
    steps: list[Step] = [
        name or (int(index) if index else dots) for name, index, dots in _STEP.findall(place[1] if place else "")
    ]
    if field:
        return (*steps, field[2]), field[1] == "unknown"

    # Up to the last name: people look for `sizes`, not for its third entry.
    while steps and (isinstance(steps[-1], int) or steps[-1] == "..."):
        steps.pop()
    return tuple(steps), False


def _value(value: object, step: Step) -> object:
    """Return the value one *step* below *value*; ``None`` if there is none, or *step* is any key."""
    if isinstance(value, Mapping):
        return value.get(step)
    return value[step] if isinstance(value, (list, tuple)) and isinstance(step, int) else None


def _type(kind: inspect.Type, step: Step) -> inspect.Type:
    """Return the type one *step* below a *kind*."""
    kind = _bare(kind)
    if isinstance(kind, inspect.DictType):
        return kind.value_type
    if isinstance(kind, (inspect.VarTupleType, inspect.ListType)):
        return kind.item_type
    return next((field.type for field in _fields(kind) if field.encode_name == step), inspect.AnyType())


def _fields(kind: inspect.Type) -> tuple[inspect.Field, ...]:
    kind = _bare(kind)
    return kind.fields if isinstance(kind, (inspect.StructType, inspect.DataclassType)) else ()


def _bare(kind: inspect.Type) -> inspect.Type:
    """Return *kind* without its description, and without ``None``."""
    # msgspec puts None last in a union, and no document of ours has another union.
    if isinstance(kind, inspect.Metadata):
        return _bare(kind.type)
    return _bare(kind.types[0]) if isinstance(kind, inspect.UnionType) else kind


def _words(kind: inspect.Type) -> str:
    """Return a *kind* in words: its own description, or `_WORDS`."""
    if isinstance(kind, inspect.UnionType):
        return _words(kind.types[0])
    if isinstance(kind, inspect.Metadata):
        return str((kind.extra_json_schema or {}).get("description") or _words(kind.type))
    return _WORDS.get(type(kind), "a table")
