"""A section of gpusage.toml: a table of a TOML document -> a frozen dataclass, every key checked.

Core's own sections and those of workload managers are read alike, so that a mistake in either gets the same sentence.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Range

_Section = TypeVar("_Section")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a table stands.

    Attributes:
        origin: The file, for people.
        prefix: Of its keys, for example ``daemon.``; ``""`` for the document itself.
    """

    origin: str
    prefix: str = ""

    def below(self, name: str) -> Source:
        """Return where the table *name* of this one stands."""
        return Source(origin=self.origin, prefix=f"{self.prefix}{name}.")

    def refuse(self, name: str, expected: str, value: object, cure: str = "Change it.") -> NoReturn:
        """Say that the key *name* must be what is *expected*."""
        key = f"Key {self.prefix + name!r} of configuration {self.origin!r}"
        message = f"{key} must be {expected}; got {value!r}. {cure}"
        raise RequestError(message)


def read_section(kind: type[_Section], table: Mapping[str, Any], source: Source) -> _Section:
    """Return a value of the dataclass *kind* with the keys of *table* checked and set.

    Raises:
        RequestError: A key is unknown, or its value is of another type or out of its range.
    """
    hints = get_type_hints(kind, include_extras=True)
    require_known(table, hints, source)
    return kind(**{name: _checked(name, value, hints[name], source) for name, value in table.items()})


def require_known(table: Mapping[str, Any], names: Iterable[str], source: Source) -> None:
    """Refuse a key of *table* that is not among *names*, with the nearest one."""
    known = list(names)
    for name, value in table.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            cure = f"Did you mean {source.prefix + near[0]!r}?" if near else f"Known are {', '.join(known)}."
            source.refuse(name, "a known one", value, cure)


def require_table(name: str, value: Any, source: Source) -> Mapping[str, Any]:  # noqa: ANN401 - a TOML value
    """Return *value*, or refuse it where it is no section."""
    if not isinstance(value, dict):
        source.refuse(name, "a section", value)
    return value


def flattened(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield each setting of the dataclass *value* by its key, with *prefix* before it."""
    if dataclasses.is_dataclass(value):
        yield from ((prefix + item.name, getattr(value, item.name)) for item in dataclasses.fields(value))


def _checked(name: str, value: Any, hint: Any, source: Source) -> Any:  # noqa: ANN401 - TOML value in, `hint` out
    """Return *value* as a *hint*, or say what is wrong with it."""
    plain, limits = _limits(hint)
    expected, right = _judged(value, plain)
    if right and limits is not None:
        what = "whole numbers, each" if isinstance(value, list) else "a number"
        within = (limits.low <= number <= limits.high for number in (value if isinstance(value, list) else (value,)))
        expected, right = f"{what} from {limits.low:g} to {limits.high:g}", all(within)
    if not right:
        source.refuse(name, expected, value)
    return tuple(value) if isinstance(value, list) else float(value) if plain is float else value


def _limits(hint: Any) -> tuple[Any, Range | None]:  # noqa: ANN401 - any annotation
    """Return an annotation without its metadata, and the range that this has."""
    if get_origin(hint) is not Annotated:
        return hint, None
    plain, *metadata = get_args(hint)
    return plain, next((item for item in metadata if isinstance(item, Range)), None)


def _judged(value: Any, hint: Any) -> tuple[str, bool]:  # noqa: ANN401 - a TOML value, and any annotation
    """Return what a *hint* is, in words, and whether *value* is one."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}", value in get_args(hint)
    if hint == tuple[str, ...]:
        return "a list of texts", isinstance(value, list) and all(isinstance(item, str) for item in value)
    if hint == tuple[int, ...]:
        return "a list of whole numbers", isinstance(value, list) and all(type(item) is int for item in value)
    if hint is float:
        return "a number of at least 0", _is_number(value) and 0 <= value < float("inf")
    if hint is int:
        return "a whole number of at least 0", type(value) is int and value >= 0
    return {str: "a text", bool: "true or false"}[hint], isinstance(value, hint)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
