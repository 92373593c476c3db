"""Hadoop's configuration files as a client reads them: names and values, variables filled in, included files read."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gpusage_hooks.errors import RequestError

SITE = "yarn-site.xml"
_VARIABLE = re.compile(r"\$\{([^}$\s]+)\}")
_OF_ENVIRONMENT = re.compile(r"env\.(\w+)(?::?-(.*))?")
_DEEPEST = 20  # Hadoop's own limit
_USUAL = Path("/etc/hadoop/conf")


def conf_folder(named: str | Path | None = None) -> Path:
    """Return the folder of Hadoop's configuration: *named*, else what the environment names, else the usual one."""
    chosen = named or os.environ.get("YARN_CONF_DIR") or os.environ.get("HADOOP_CONF_DIR")
    return Path(chosen) if chosen else _USUAL


def read_settings(path: Path, read: Callable[[Path], str | bytes | None] = Path.read_bytes) -> dict[str, str]:
    """Return the settings in one file, none where there is no file; the last value of a name is in force.

    Args:
        path: The file.
        read: Reads it, and each file that it includes; ``None`` stands for no file.

    Raises:
        RequestError: The file, or one that it includes, cannot be read, or is not XML.
    """
    try:
        entries = tuple(_entries(path, read))
    except FileNotFoundError:
        return {}
    settings: dict[str, str] = {}
    final: set[str] = set()
    for name, value, is_final in entries:
        if value is not None and name not in final:
            settings[name] = value
        if is_final:
            final.add(name)
    return {name: expanded(value, settings) for name, value in settings.items()}


def final_names(path: Path) -> frozenset[str]:
    """Return the settings that the file at *path*, or one that it includes, declares final.

    Raises:
        RequestError: It cannot be read, or is not XML.
    """
    try:
        return frozenset(name for name, _, is_final in _entries(path, Path.read_bytes) if is_final)
    except FileNotFoundError:
        return frozenset()


def _entries(
    path: Path, read: Callable[[Path], str | bytes | None], above: tuple[Path, ...] = ()
) -> Iterator[tuple[str, str | None, bool]]:
    """Yield name, value and whether it is final of each property, in the order in which Hadoop meets them."""
    try:
        text = read(path)
        root = None if text is None else ET.fromstring(text)  # noqa: S314 - the admin's own file, and expat fetches nothing
    except FileNotFoundError:
        raise
    except (OSError, ET.ParseError, ValueError, LookupError) as error:
        message = f"File {str(path)!r} must be readable XML; got: {error}. Mend it, or name another folder."
        raise RequestError(message) from error
    if root is None:
        raise FileNotFoundError(path)
    if path in above:
        message = f"File {str(path)!r} must not include itself; it does. Mend it."
        raise RequestError(message)
    yield from _below(root, path, read, above)


def _below(
    element: ET.Element, path: Path, read: Callable[[Path], str | bytes | None], above: tuple[Path, ...]
) -> Iterator[tuple[str, str | None, bool]]:
    for child in element:
        kind = str(child.tag).rpartition("}")[2]
        if kind == "property":
            yield from _property(child)
        elif kind == "include":
            yield from _included(child, path, read, above)
        else:
            yield from _below(child, path, read, above)


def _property(element: ET.Element) -> Iterator[tuple[str, str | None, bool]]:
    """Yield one property; Hadoop 3 takes attributes for what else stands in elements."""
    name, value, final = (
        text if (text := element.findtext(part)) is not None else element.get(part)
        for part in ("name", "value", "final")
    )
    if name and name.strip():
        yield name.strip(), value, (final or "").strip() == "true"


def _included(
    element: ET.Element, path: Path, read: Callable[[Path], str | bytes | None], above: tuple[Path, ...]
) -> Iterator[tuple[str, str | None, bool]]:
    """Yield what an ``xi:include`` names, beside *path* where it is no whole path; else its ``xi:fallback``."""
    place = path.parent / element.get("href", "").removeprefix("file://")
    try:
        yield from _entries(place, read, (*above, path))
    except FileNotFoundError as error:
        fallback = [child for child in element if str(child.tag).endswith("fallback")]
        if not fallback:
            message = f"File {str(path)!r} must include files that are there; {str(place)!r} is not. Mend it."
            raise RequestError(message) from error
        yield from _below(fallback[0], path, read, above)


def expanded(value: str, settings: Mapping[str, str]) -> str:
    """Return *value* with each ``${name}`` replaced by that setting or ``${env.NAME}``; unknown ones stay."""
    for _ in range(_DEEPEST):
        filled = _VARIABLE.sub(lambda match: _value_of(match, settings), value)
        if filled == value:
            break
        value = filled
    return value


def _value_of(match: re.Match[str], settings: Mapping[str, str]) -> str:
    of_environment = _OF_ENVIRONMENT.fullmatch(match[1])
    if of_environment is None:
        return settings.get(match[1], match[0])
    return os.environ.get(of_environment[1]) or (match[0] if of_environment[2] is None else of_environment[2])
