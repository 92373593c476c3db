"""Hadoop's configuration files as a client reads them: names and values, variables filled in, included files read."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpusage.settings.configuration import Configuration, DaemonSettings
from gpusage_hooks.errors import RequestError
from gpusage_yarn.settings import YarnSettings

SITE = "yarn-site.xml"
PACKAGE = "org.gpusage.yarn"
RULES = "yarn.scheduler.queue-placement-rules"
PROCESSORS = "yarn.resourcemanager.application-master-service.processors"
LISTENERS = "yarn.nodemanager.container-state-transition-listener.classes"
SERVICES = "yarn.nodemanager.aux-services"
SERVICE = "gpusage_mps"
SAMPLER = "gpusage.node.usage-command"
ALLOCATOR = "yarn.scheduler.app-placement-allocator.class"
CALCULATOR = "yarn.scheduler.capacity.resource-calculator"
TYPES = "yarn.resource-types"
SCHEDULER, RESOURCE_TYPES = "capacity-scheduler.xml", "resource-types.xml"
FILES = (SITE, SCHEDULER, RESOURCE_TYPES)
CLASSES: Mapping[str, str] = {
    RULES: f"{PACKAGE}.GpuSharePlacementRule",
    PROCESSORS: f"{PACKAGE}.GpuShareProcessor",
    LISTENERS: f"{PACKAGE}.GpuShareNodeListener",
    f"{SERVICES}.{SERVICE}.class": f"{PACKAGE}.MpsAuxiliaryService",
    ALLOCATOR: f"{PACKAGE}.GpuSharePlacementAllocator",
    CALCULATOR: f"{PACKAGE}.GpuShareResourceCalculator",
}
DEFAULT_CALCULATOR, DOMINANT_CALCULATOR = (
    f"org.apache.hadoop.yarn.util.resource.{name}ResourceCalculator" for name in ("Default", "Dominant")
)
"""YARN's own, of which ours takes the place. The first is in force where none is named, and counts memory alone."""
_VARIABLE = re.compile(r"\$\{([^}$\s]+)\}")
_OF_ENVIRONMENT = re.compile(r"env\.(\w+)(?::?-(.*))?")
_DEEPEST = 20  # Hadoop's own limit
_USUAL = Path("/etc/hadoop/conf")
_Read = Callable[[Path], str | bytes | None]
"""Reads a file; ``None`` stands for no file."""


class _Entry(NamedTuple):
    """A property as it stands in *file*."""

    name: str
    value: str | None
    is_final: bool
    file: Path


def conf_folder(named: str | Path | None = None) -> Path:
    """Return the folder of Hadoop's configuration: *named*, else the environment's, else the usual folder."""
    chosen = named or os.environ.get("YARN_CONF_DIR") or os.environ.get("HADOOP_CONF_DIR")
    return Path(chosen) if chosen else _USUAL


def read_settings(path: Path, read: _Read = Path.read_bytes) -> dict[str, str]:
    """Return the settings in a file, none where there is no file; the last value of a name is in force.

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

    # What is final keeps its value against all that Hadoop reads later.
    settings: dict[str, str] = {}
    final: set[str] = set()
    for entry in entries:
        if entry.value is not None and entry.name not in final:
            settings[entry.name] = entry.value
        if entry.is_final:
            final.add(entry.name)
    return {name: expanded(value, settings) for name, value in settings.items()}


def final_settings(path: Path) -> dict[str, Path]:
    """Return the settings that the file at *path*, or a file that it includes, declares final, each with that file.

    Raises:
        RequestError: It cannot be read, or is not XML.
    """
    try:
        return {entry.name: entry.file for entry in _entries(path, Path.read_bytes) if entry.is_final}
    except FileNotFoundError:
        return {}


def _entries(path: Path, read: _Read, above: tuple[Path, ...] = ()) -> Iterator[_Entry]:
    """Yield each property, in the order in which Hadoop meets them; the files *above* include this file."""
    try:
        text = read(path)
        root = None if text is None else ET.fromstring(text)  # noqa: S314 - the admin's own file, and expat fetches nothing
    except FileNotFoundError:
        raise
    except (OSError, ET.ParseError, ValueError, LookupError) as error:
        message = f"File {str(path)!r} must be readable XML; got: {error}. Fix it, or name another folder."
        raise RequestError(message) from error

    if root is None:
        raise FileNotFoundError(path)
    if path in above:
        message = f"File {str(path)!r} must not include itself; it does. Fix it."
        raise RequestError(message)
    yield from _below(root, path, read, above)


def _below(element: ET.Element, path: Path, read: _Read, above: tuple[Path, ...]) -> Iterator[_Entry]:
    for child in element:
        kind = str(child.tag).rpartition("}")[2]
        if kind == "property":
            # Hadoop 3 takes attributes for what else stands in elements.
            name, value, final = (
                text if (text := child.findtext(part)) is not None else child.get(part)
                for part in ("name", "value", "final")
            )
            if name and name.strip():
                yield _Entry(name.strip(), value, (final or "").strip() == "true", path)
        elif kind == "include":
            yield from _included(child, path, read, above)
        else:
            yield from _below(child, path, read, above)


def _included(element: ET.Element, path: Path, read: _Read, above: tuple[Path, ...]) -> Iterator[_Entry]:
    """Yield the properties of an ``xi:include``, a path relative to *path*'s folder; else of its ``xi:fallback``."""
    place = path.parent / element.get("href", "").removeprefix("file://")
    try:
        yield from _entries(place, read, (*above, path))
    except FileNotFoundError as error:
        fallback = [child for child in element if str(child.tag).endswith("fallback")]
        if not fallback:
            message = f"File {str(path)!r} must include files that are there; {str(place)!r} is not. Fix it."
            raise RequestError(message) from error

        yield from _below(fallback[0], path, read, above)


def expanded(value: str, settings: Mapping[str, str]) -> str:
    """Return *value* with each ``${name}`` replaced by that setting or ``${env.NAME}``; unknown ones stay."""

    def value_of(match: re.Match[str]) -> str:
        variable = _OF_ENVIRONMENT.fullmatch(match[1])
        if variable is None:
            return settings.get(match[1], match[0])
        return os.environ.get(variable[1]) or (match[0] if variable[2] is None else variable[2])

    # A setting may name another, and that a third.
    for _ in range(_DEEPEST):
        filled = _VARIABLE.sub(value_of, value)
        if filled == value:
            break
        value = filled
    return value


SOCKET = "gpusage.daemon.socket"
"""Hadoop's setting of where the ResourceManager asks gpusaged."""
_RM = "yarn.resourcemanager"


def find_addresses(settings: YarnSettings, named: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the addresses that a user *named*, else the site's by *settings*, else Hadoop's own; there may be none.

    Raises:
        RequestError: Hadoop's configuration cannot be read.
    """
    chosen = named or settings.rm_urls
    if chosen:
        return tuple(address if "://" in address else f"http://{address}" for address in chosen)
    return addresses_of(read_settings(conf_folder(settings.conf_dir) / SITE))


def require_addresses(settings: YarnSettings, named: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the addresses, as `find_addresses` does.

    Raises:
        RequestError: There is none.
    """
    addresses = find_addresses(settings, named)
    if not addresses:
        folder = conf_folder(settings.conf_dir)
        message = (
            f"ResourceManager must be known; got none from {folder / SITE}. Set HADOOP_CONF_DIR, name it with "
            "--rm http://HOST:8088, or set rm_urls in the section [yarn] of gpusage.toml."
        )
        raise RequestError(message)
    return addresses


def sockets(configuration: Configuration | None, manager_socket: str | None) -> tuple[str, ...]:
    """Return where gpusaged may listen, the likeliest first.

    Args:
        configuration: Ours; ``None`` where it is broken, while gpusaged goes on with the last good one.
        manager_socket: Where the ResourceManager asks; ``None`` if it does not show its settings.
    """
    ours = configuration.daemon.socket if configuration else ""
    return tuple(dict.fromkeys(path for path in (ours, manager_socket, DaemonSettings().socket) if path))


def addresses_of(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses that yarn-site.xml's *settings* name, of both ResourceManagers where there is a pair."""
    is_secure = settings.get("yarn.http.policy", "").strip() == "HTTPS_ONLY"
    kind, scheme, port = (".https", "https", "8090") if is_secure else ("", "http", "8088")  # Hadoop's defaults
    paired = settings.get(f"{_RM}.ha.enabled", "").strip().lower() == "true"
    identities = [word.strip() for word in settings.get(f"{_RM}.ha.rm-ids", "").split(",") if word.strip()]

    addresses = []
    for suffix in [f".{identity}" for identity in identities] if paired and identities else [""]:
        whole = settings.get(f"{_RM}.webapp{kind}.address{suffix}", "").strip()
        host = settings.get(f"{_RM}.hostname{suffix}", "").strip()
        place = whole or (f"{host}:{port}" if host else "")
        place = place.replace("0.0.0.0:", f"{host}:") if host else place  # where it listens is no place to ask
        if place:
            addresses.append(f"{scheme}://{place}")
    return tuple(dict.fromkeys(addresses))
