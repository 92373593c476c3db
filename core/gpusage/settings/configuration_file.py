"""The site's file of settings: `/etc/gpusage/gpusage.toml`, or the file that GPUSAGE_CONFIG names.

Core's sections and the workload managers' are read alike, so that a mistake in either gets the same sentence.

Invariants:

1. An unknown key is an error with the nearest known key.
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

# Python has tomllib from 3.11 on.
if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PATH = Path("/etc/gpusage/gpusage.toml")

_PLAIN = ("mode", "enforce_in", "kill_switch")
"""Keys outside all sections."""

Managers = Mapping[str, Manager]
_Section = TypeVar("_Section")
Hint = Any
"""An annotation."""


def configuration_path() -> Path:
    """Return the file that GPUSAGE_CONFIG names, or the default file."""
    named = os.environ.get("GPUSAGE_CONFIG")
    return Path(named) if named else DEFAULT_PATH


def load_configuration(path: Path | None = None, managers: Managers | None = None) -> Configuration:
    """Return the settings of a file.

    Args:
        path: The file; ``None`` is the usual file, whose absence means all defaults.
        managers: Workload managers that may have a section; ``None`` is the installed plugins'.

    Raises:
        RequestError: The file cannot be read, is not TOML, or holds an unknown key or a wrong value.
    """
    chosen = path or configuration_path()
    try:
        text = chosen.read_text(encoding="utf-8")
    except FileNotFoundError:
        # A file that somebody has named must exist: defaults in its place would change what the site does.
        if path is None and "GPUSAGE_CONFIG" not in os.environ:
            return default_configuration(managers)
        message = f"Configuration {str(chosen)!r} must exist; got no such file. Create it, or unset GPUSAGE_CONFIG."
        raise RequestError(message) from None
    except (OSError, UnicodeDecodeError) as error:
        message = f"Configuration {str(chosen)!r} must be a readable text file; got: {error}. Check the path."
        raise RequestError(message) from error
    return parse_configuration(text, origin=str(chosen), managers=managers)


def read_configuration() -> tuple[Configuration, str]:
    """Return the site's configuration, or the defaults and an error message where the file cannot be used."""
    # Commands that report trouble must run with a broken file, too.
    try:
        return load_configuration(), ""
    except RequestError as error:
        return default_configuration(), str(error)


def default_configuration(managers: Managers | None = None) -> Configuration:
    """Return the settings of a site without a file."""
    return parse_configuration("", origin="default", managers=managers)


def parse_configuration(text: str, *, origin: str, managers: Managers | None = None) -> Configuration:
    """Return the settings in *text*, which came from *origin*."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = f"Configuration {origin!r} must be TOML; got: {error}. Fix that line."
        raise RequestError(message) from error

    source, managers = Source(origin=origin), installed_managers() if managers is None else managers
    kinds = {**SECTIONS, **{name: manager.settings for name, manager in managers.items()}}
    known = (*_PLAIN, *kinds)
    # Sections of plugins that cannot be loaded are no error here: `doctor` reports the plugin itself.
    strange = {name for name, value in document.items() if isinstance(value, dict)} - {*known}
    aside = strange & load_hooks().troubles().keys() if strange else strange
    document = {name: value for name, value in document.items() if name not in aside}
    _require_installed(document, known, source)
    require_known(document, known, source)

    tables = {name: require_table(name, value, source) for name, value in document.items() if name in kinds}
    sections = {name: read_section(kind, tables.get(name, {}), source.below(name)) for name, kind in kinds.items()}
    # The default depends on the installed managers: each daemon asks under a user of its own.
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


def _require_installed(document: Mapping[str, object], known: tuple[str, ...], source: Source) -> None:
    """Refuse the section of a workload manager without a plugin."""
    # A name like a known one is a slip: `require_known` has the better sentence for it.
    for name, value in document.items():
        if isinstance(value, dict) and name not in known and not difflib.get_close_matches(name, known, n=1):
            sections = ", ".join(each for each in known if each not in _PLAIN)
            message = (
                f"Section [{name}] of configuration {source.origin!r} must be gpusage's own or that of an installed "
                f"workload manager; got one that no plugin describes. Known are {sections}. Install the manager's "
                "plugin, or remove the section."
            )
            raise RequestError(message)


def _keys(table: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    # Full names, as `Configuration.effective` has them.
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Place of a table in the file.

    Attributes:
        origin: Name of the file, for people.
        prefix: Prefix of the table's keys, for example ``daemon.``; ``""`` for the document itself.
    """

    origin: str
    prefix: str = ""

    def below(self, name: str) -> Source:
        """Return the place of the table *name* inside this table."""
        return Source(origin=self.origin, prefix=f"{self.prefix}{name}.")

    def refuse(self, name: str, expected: str, value: object, cure: str = "Change it.") -> NoReturn:
        """Raise an error: the key *name* has *value* instead of the *expected* value."""
        key = f"Key {self.prefix + name!r} of configuration {self.origin!r}"
        message = f"{key} must be {expected}; got {value!r}. {cure}"
        raise RequestError(message)


def read_section(kind: type[_Section], table: Mapping[str, object], source: Source) -> _Section:
    """Return a *kind*, a dataclass, with the checked values of *table*.

    Raises:
        RequestError: A key is unknown, or its value is of another type or out of its range.
    """
    # Most sections are empty, and msgspec would build a type for each.
    if not table:
        return kind()
    try:
        read = read_as(_struct(kind), table, source.prefix)
    except MismatchError as error:
        source.refuse(error.key, error.rule, error.value, error.hint or "Change it.")
    # Only the table's keys: the dataclass has the defaults of all others.
    return kind(**{name: getattr(read, name) for name in table})


def require_known(table: Mapping[str, object], names: Sequence[str], source: Source) -> None:
    """Refuse a key of *table* that is not among *names*, with the nearest known key."""
    for name, value in table.items():
        if name not in names:
            source.refuse(name, "a known one", value, nearest_key(name, names, source.prefix))


def require_table(name: str, value: object, source: Source) -> Mapping[str, object]:
    """Return *value* if it is a section, else refuse it."""
    if not isinstance(value, dict):
        source.refuse(name, "a section", value)
    return value


def _struct(kind: type) -> type[Struct]:
    """Return the type by which msgspec checks a section of the dataclass *kind*."""
    # Settings are plain dataclasses with `Range`, so that hooks and plugins need no msgspec.
    hints = get_type_hints(kind, include_extras=True)
    fields = [(name, _checked(hint), None) for name, hint in hints.items()]
    return msgspec.defstruct(kind.__name__, fields, kw_only=True, forbid_unknown_fields=True)


def _checked(hint: Hint) -> Hint:
    """Return the annotation of a setting with its limits and its description for msgspec."""
    plain, limits = hint, None
    origin: Hint = get_origin(hint)  # typeshed's own type of it leaves out the special forms
    if origin is Annotated:
        plain, *metadata = get_args(hint)
        limits = next((item for item in metadata if isinstance(item, Range)), None)
        origin = get_origin(plain)

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
    """Return the annotation of a number, which is at least 0 without other limits."""
    noun = "a whole number" if kind is int else "a number"
    if limits is None:
        # TOML has `inf`, which no limit of time or size may be.
        most = None if kind is int else sys.float_info.max
        return Annotated[kind, Meta(ge=0, le=most, description=f"{noun} of at least 0")]
    within = f"a number from {limits.low:g} to {limits.high:g}"
    return Annotated[kind, Meta(ge=kind(limits.low), le=kind(limits.high), description=within)]
