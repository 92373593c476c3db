"""The site's settings: `/etc/gpusage/gpusage.toml`, or the file that GPUSAGE_CONFIG names.

Invariants:

1. Every key has a default, so that no file is a valid configuration.
2. An unknown key is an error that names the nearest known one.
3. `origins` tells for each key where its value came from.
4. Each workload manager that a plugin describes has a section, of the type that the plugin names.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from gpusage.managers import installed_managers
from gpusage.plugins.loading import load_hooks
from gpusage.sections import Source, flattened, read_section, require_known, require_table
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import Manager, ManagerSettings
from gpusage_hooks.types import GenerationRules, Range, Rules, SharingRules, SloRules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PATH = Path("/etc/gpusage/gpusage.toml")

SiteMode = Literal["observe", "advise", "enforce"]
Managers = Mapping[str, Manager]
_Settings = TypeVar("_Settings", bound=ManagerSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """How gpusaged listens and watches the cluster.

    Attributes:
        allowed_users: Who may ask; by default root, and those who ask for the installed workload managers.
    """

    socket: str = "/run/gpusage/gpusaged.sock"
    allowed_users: tuple[str, ...] = ("root",)
    refresh_s: Annotated[float, Range(low=0.1, high=3600)] = 15.0
    stale_after_s: float = 120.0
    stuck_after_s: Annotated[float, Range(low=1, high=86400)] = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Where decisions are kept, and for how long; 0 days is for good."""

    url: str = "sqlite:////var/lib/gpusage/decisions.db"
    keep_days: int = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Everything that a site can set.

    Attributes:
        mode: ``observe`` records only, ``advise`` tells the user, ``enforce`` rewrites.
        kill_switch: A file at this path turns every rewrite off at once.
        managers: The settings of each workload manager, by its name.
        origins: For each key, as ``section.key``, the file that set it; defaults are not listed.
    """

    mode: SiteMode = "observe"
    kill_switch: str = "/etc/gpusage/off"
    sharing: SharingRules = SharingRules()
    generation: GenerationRules = GenerationRules()
    slo: SloRules = SloRules()
    daemon: DaemonSettings = DaemonSettings()
    store: StoreSettings = StoreSettings()
    managers: Mapping[str, ManagerSettings] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def rules(self) -> Rules:
        """Return what policies act on."""
        return Rules(sharing=self.sharing, generation=self.generation, slo=self.slo)

    def mode_or(self, unset: SiteMode) -> SiteMode:
        """Return the mode that the site has set, or *unset* where it has set none."""
        return self.mode if "mode" in self.origins else unset

    def of_manager(self, kind: type[_Settings]) -> _Settings:
        """Return the settings of the workload manager that has them as a *kind*; its defaults where there is none."""
        return next((each for each in self.managers.values() if isinstance(each, kind)), kind())

    def answer_limit_s(self, manager: str) -> float:
        """Return how long a question of *manager* may take that does not say until when, in seconds."""
        return self.managers.get(manager, ManagerSettings()).answer_limit_s

    def effective(self) -> Iterator[tuple[str, Any, str]]:
        """Yield each key, its value, and where it came from."""
        for key, value in self._flattened():
            yield key, value, self.origins.get(key, "default")

    def _flattened(self) -> Iterator[tuple[str, object]]:
        yield from (("mode", self.mode), ("kill_switch", self.kill_switch))
        for name in SECTIONS:
            yield from flattened(getattr(self, name), f"{name}.")
        for name, settings in self.managers.items():
            yield from flattened(settings, f"{name}.")


SECTIONS: Mapping[str, type[Any]] = {
    item.name: type(item.default)
    for item in dataclasses.fields(Configuration)
    if dataclasses.is_dataclass(item.default)
}
"""Core's own sections; the others are the workload managers'."""


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
        message = f"Configuration {origin!r} must be TOML; got: {error}. Mend that line."
        raise RequestError(message) from error
    return _configuration(document, Source(origin=origin), installed_managers() if managers is None else managers)


def _configuration(document: Mapping[str, Any], source: Source, managers: Managers) -> Configuration:
    kinds = {**SECTIONS, **{name: manager.settings for name, manager in managers.items()}}
    known = ("mode", "kill_switch", *kinds)
    document = _without_those_set_aside(document, known)
    _require_installed(document, known, source)
    require_known(document, known, source)
    tables = {name: require_table(name, value, source) for name, value in document.items() if name in kinds}
    sections = {name: read_section(kind, tables.get(name, {}), source.below(name)) for name, kind in kinds.items()}
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


def _without_those_set_aside(document: Mapping[str, Any], known: tuple[str, ...]) -> Mapping[str, Any]:
    """Return *document* without the sections of plugins that cannot be used; people are told of these elsewhere."""
    strange = {name for name, value in document.items() if isinstance(value, dict)} - {*known}
    aside = strange & load_hooks().troubles().keys() if strange else strange
    return {name: value for name, value in document.items() if name not in aside}


def _require_installed(document: Mapping[str, Any], known: tuple[str, ...], source: Source) -> None:
    """Refuse the section of a workload manager that no plugin describes; a name like a known one is a slip instead."""
    for name, value in document.items():
        if isinstance(value, dict) and name not in known and not difflib.get_close_matches(name, known, n=1):
            message = (
                f"Section [{name}] of configuration {source.origin!r} must be gpusage's own or that of an installed "
                f"workload manager; got one that no plugin describes. Known are {', '.join(known[2:])}. Install the "
                "manager's plugin, or remove the section."
            )
            raise RequestError(message)


def _keys(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name
