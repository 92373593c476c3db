"""The site's file of settings: `/etc/gpusage/gpusage.toml`, or the file that GPUSAGE_CONFIG names.

Core's own sections and those of workload managers are read alike, so that a mistake in either gets the same sentence.

Invariants:

1. An unknown key is an error that names the nearest known one.
2. No file means all defaults.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from gpusage.boundary.typed_documents import MismatchError, nearest_key, read_as
from gpusage.plugins.loading import installed_managers, load_hooks
from gpusage.settings.configuration import SECTIONS, Configuration
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import Manager
from gpusage_hooks.types import Range

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PATH = Path("/etc/gpusage/gpusage.toml")

_PLAIN = ("mode", "enforce_in", "kill_switch")
"""The keys that stand in no section."""

Managers = Mapping[str, Manager]
_Section = TypeVar("_Section")
Hint = Any
"""An annotation."""


def configuration_path() -> Path:
    """Return the file that GPUSAGE_CONFIG names, or the default one."""
    named = os.environ.get("GPUSAGE_CONFIG")
    return Path(named) if named else DEFAULT_PATH


def load_configuration(path: Path | None = None, managers: Managers | None = None) -> Configuration:
    """Return the settings of a file.

    Args:
        path: The file; where none is given the usual one, whose absence means all defaults.
        managers: Whose sections may be there; where none are given, those of the installed plugins.

    Raises:
        RequestError: The file cannot be read, is not TOML, or holds an unknown key or a wrong value.
    """
    chosen = path or configuration_path()
    try:
        text = chosen.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path is None and "GPUSAGE_CONFIG" not in os.environ:
            return default_configuration(managers)
        message = f"Configuration {str(chosen)!r} must exist; got no such file. Create it, or unset GPUSAGE_CONFIG."
        raise RequestError(message) from None
    except (OSError, UnicodeDecodeError) as error:
        message = f"Configuration {str(chosen)!r} must be a readable text file; got: {error}. Check the path."
        raise RequestError(message) from error
    return parse_configuration(text, origin=str(chosen), managers=managers)


def read_configuration() -> tuple[Configuration, str]:
    """Return our configuration, or the built-in one and why the file cannot be used."""
    try:
        return load_configuration(), ""
    except RequestError as error:
        return default_configuration(), str(error)


def default_configuration(managers: Managers | None = None) -> Configuration:
    """Return the settings of a site that has set nothing."""
    return parse_configuration("", origin="default", managers=managers)


def parse_configuration(text: str, *, origin: str, managers: Managers | None = None) -> Configuration:
    """Return the settings written in *text*, which came from *origin*."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = f"Configuration {origin!r} must be TOML; got: {error}. Fix that line."
        raise RequestError(message) from error
    return _configuration(document, Source(origin=origin), installed_managers() if managers is None else managers)


def _configuration(document: Mapping[str, object], source: Source, managers: Managers) -> Configuration:
    kinds = {**SECTIONS, **{name: manager.settings for name, manager in managers.items()}}
    known = (*_PLAIN, *kinds)

    # The sections of plugins that cannot be used are set aside; `doctor` reports the plugins.
    strange = {name for name, value in document.items() if isinstance(value, dict)} - {*known}
    aside = strange & load_hooks().troubles().keys() if strange else strange
    document = {name: value for name, value in document.items() if name not in aside}

    # No plugin describes the manager of a section; a name like a known one is a slip instead.
    for name, value in document.items():
        if isinstance(value, dict) and name not in known and not difflib.get_close_matches(name, known, n=1):
            listed = ", ".join(each for each in known if each not in _PLAIN)
            message = (
                f"Section [{name}] of configuration {source.origin!r} must be gpusage's own or that of an installed "
                f"workload manager; got one that no plugin describes. Known are {listed}. Install the manager's "
                "plugin, or remove the section."
            )
            raise RequestError(message)
    require_known(document, known, source)

    tables = {name: require_table(name, value, source) for name, value in document.items() if name in kinds}
    sections = {name: read_section(kind, tables.get(name, {}), source.below(name)) for name, kind in kinds.items()}

    # Root may ask, and so may the daemons of the installed managers.
    if "allowed_users" not in tables.get("daemon", {}):
        users = dict.fromkeys(user for manager in managers.values() for user in manager.users)
        sections["daemon"] = replace(sections["daemon"], allowed_users=("root", *users))

    plain = {name: value for name, value in document.items() if name not in kinds}
    return replace(
        read_section(Configuration, plain, source),
        **{name: sections[name] for name in SECTIONS},
        managers={name: sections[name] for name in managers},
        origins=dict.fromkeys(_keys(document), source.origin),
    )


def _keys(table: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name


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
    plain, limits = hint, None
    annotated: Hint = get_origin(hint)  # typeshed's own type of it leaves out the special forms
    if annotated is Annotated:
        plain, *metadata = get_args(hint)
        limits = next((item for item in metadata if isinstance(item, Range)), None)

    origin: Hint = get_origin(plain)
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
        # TOML has inf, which no setting means.
        most = None if kind is int else sys.float_info.max
        return Annotated[kind, Meta(ge=0, le=most, description=f"{what} of at least 0")]
    within = f"a number from {limits.low:g} to {limits.high:g}"
    return Annotated[kind, Meta(ge=kind(limits.low), le=kind(limits.high), description=within)]
