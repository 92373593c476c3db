"""A section of gpusage.toml: a table of a TOML document -> a frozen dataclass, every key checked.

Core's own sections and those of workload managers are read alike, so that a mistake in either gets the same sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from gpusage.boundary.typed_documents import MismatchError, nearest_key, read_as
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Range

_Section = TypeVar("_Section")
Hint = Any
"""An annotation."""


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
        """Raise the error that the key *name* must be what is *expected*."""
        key = f"Key {self.prefix + name!r} of configuration {self.origin!r}"
        message = f"{key} must be {expected}; got {value!r}. {cure}"
        raise RequestError(message)


def read_section(kind: type[_Section], table: Mapping[str, object], source: Source) -> _Section:
    """Return a value of the dataclass *kind* with the keys of *table* checked and set.

    Raises:
        RequestError: A key is unknown, or its value is of another type or out of its range.
    """
    if not table:
        return kind()  # as most are
    try:
        read = read_as(_struct(kind), table, source.prefix)
    except MismatchError as error:
        source.refuse(error.key, error.rule, error.value, error.hint or "Change it.")
    return kind(**{name: getattr(read, name) for name in table})


def require_known(table: Mapping[str, object], names: Sequence[str], source: Source) -> None:
    """Refuse a key of *table* that is not among *names*, with the nearest one."""
    for name, value in table.items():
        if name not in names:
            source.refuse(name, "a known one", value, nearest_key(name, names, source.prefix))


def require_table(name: str, value: object, source: Source) -> Mapping[str, object]:
    """Return *value*, or refuse it where it is no section."""
    if not isinstance(value, dict):
        source.refuse(name, "a section", value)
    return value


def _struct(kind: type) -> type[Struct]:
    """Return what msgspec checks a section of the dataclass *kind* by."""
    hints = get_type_hints(kind, include_extras=True)
    fields = [(name, _checked(hint), None) for name, hint in hints.items()]
    return msgspec.defstruct(kind.__name__, fields, kw_only=True, forbid_unknown_fields=True)


def _checked(hint: Hint) -> Hint:
    """Return the annotation of a setting with its limits and its words as msgspec has them."""
    plain, limits = _limits(hint)
    origin: Hint = get_origin(plain)  # typeshed's own type of it leaves out the special forms
    if origin is Literal:
        return Annotated[plain, Meta(description=f"one of {', '.join(get_args(plain))}")]
    if plain == tuple[str, ...]:
        return Annotated[plain, Meta(description="a list of texts")]
    if plain == tuple[int, ...]:
        each = f", each from {limits.low:g} to {limits.high:g}" if limits else ""
        plain = GenericAlias(tuple, (_number(int, limits), ...))
        return Annotated[plain, Meta(description=f"a list of whole numbers{each}")]
    return _number(plain, limits) if plain in (int, float) else plain


def _number(kind: type[float], limits: Range | None) -> Hint:
    """Return the annotation of a number, which is at least 0 if no other limit is given."""
    what = "a whole number" if kind is int else "a number"
    if limits is None:
        most = None if kind is int else sys.float_info.max  # `inf` is TOML
        return Annotated[kind, Meta(ge=0, le=most, description=f"{what} of at least 0")]
    within = f"a number from {limits.low:g} to {limits.high:g}"
    return Annotated[kind, Meta(ge=kind(limits.low), le=kind(limits.high), description=within)]


def _limits(hint: Hint) -> tuple[Hint, Range | None]:
    """Return an annotation without its metadata, and the range that this has."""
    origin: Hint = get_origin(hint)
    if origin is not Annotated:
        return hint, None
    plain, *metadata = get_args(hint)
    return plain, next((item for item in metadata if isinstance(item, Range)), None)
