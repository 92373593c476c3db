"""The site's settings: `/etc/gpusage/gpusage.toml`, or the file that GPUSAGE_CONFIG names.

Invariants:

1. Every key has a default, so that no file is a valid configuration.
2. An unknown key is an error that names the nearest known one.
3. `origins` tells for each key where its value came from.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import GenerationRules, Rules, SharingRules, SloRules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PATH = Path("/etc/gpusage/gpusage.toml")
RANGES = {
    "slurm.limit_ms": (1.0, 1000.0),
    "slurm.card_limit_s": (0.1, 60.0),
    "daemon.refresh_s": (0.1, 3600.0),
    "daemon.stuck_after_s": (1.0, 86400.0),
}
"""Keys whose value could stall a controller, a login node or a manager; inclusive."""

SiteMode = Literal["observe", "advise", "enforce"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """How gpusaged listens and watches the cluster."""

    socket: str = "/run/gpusage/gpusaged.sock"
    allowed_users: tuple[str, ...] = ("root", "slurm")
    refresh_s: float = 15.0
    stale_after_s: float = 120.0
    stuck_after_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Where decisions are kept, and for how long; 0 days is for good."""

    url: str = "sqlite:////var/lib/gpusage/decisions.db"
    keep_days: int = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """What the Slurm adapter may take, in the controller and on the login node."""

    limit_ms: float = 40.0
    card_limit_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnSettings:
    """Where the YARN adapter finds its ResourceManager, and what it calls things.

    Attributes:
        rm_urls: For example ``http://rm1:8088``; none means those of Hadoop's own configuration.
        conf_dir: The folder of that; ``""`` means what HADOOP_CONF_DIR names, else ``/etc/hadoop/conf``.
        share_resource: The resource type of which one shared GPU has 100.
    """

    rm_urls: tuple[str, ...] = ()
    conf_dir: str = ""
    share_resource: str = "gpusage.io/share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Everything that a site can set.

    Attributes:
        mode: ``observe`` records only, ``advise`` tells the user, ``enforce`` rewrites.
        kill_switch: A file at this path turns every rewrite off at once.
        origins: For each key, as ``section.key``, the file that set it; defaults are not listed.
    """

    mode: SiteMode = "observe"
    kill_switch: str = "/etc/gpusage/off"
    sharing: SharingRules = SharingRules()
    generation: GenerationRules = GenerationRules()
    slo: SloRules = SloRules()
    daemon: DaemonSettings = DaemonSettings()
    store: StoreSettings = StoreSettings()
    slurm: SlurmSettings = SlurmSettings()
    yarn: YarnSettings = YarnSettings()
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def rules(self) -> Rules:
        """Return what policies act on."""
        return Rules(sharing=self.sharing, generation=self.generation, slo=self.slo)

    def effective(self) -> Iterator[tuple[str, Any, str]]:
        """Yield each key, its value, and where it came from."""
        for key, value in _flattened(self):
            yield key, value, self.origins.get(key, "default")


def configuration_path() -> Path:
    """Return the file that GPUSAGE_CONFIG names, or the default one."""
    named = os.environ.get("GPUSAGE_CONFIG")
    return Path(named) if named else DEFAULT_PATH


def load_configuration(path: Path | None = None) -> Configuration:
    """Return the settings of *path*; of the usual file where none is given, whose absence means all defaults.

    Raises:
        RequestError: The file cannot be read, is not TOML, or holds an unknown key or a wrong value.
    """
    chosen = path or configuration_path()
    try:
        text = chosen.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path is None and "GPUSAGE_CONFIG" not in os.environ:
            return Configuration()
        message = f"Configuration {str(chosen)!r} must exist; got no such file. Create it, or unset GPUSAGE_CONFIG."
        raise RequestError(message) from None
    except (OSError, UnicodeDecodeError) as error:
        message = f"Configuration {str(chosen)!r} must be a readable text file; got: {error}. Check the path."
        raise RequestError(message) from error
    return parse_configuration(text, origin=str(chosen))


def read_configuration() -> tuple[Configuration, str]:
    """Return our configuration, or the built-in one and why the file cannot be used."""
    try:
        return load_configuration(), ""
    except RequestError as error:
        return Configuration(), str(error)


def parse_configuration(text: str, *, origin: str) -> Configuration:
    """Return the settings written in *text*, which came from *origin*."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = f"Configuration {origin!r} must be TOML; got: {error}. Mend that line."
        raise RequestError(message) from error
    configuration: Configuration = _filled(Configuration, document, prefix="", origin=origin)
    return dataclasses.replace(configuration, origins=dict.fromkeys(_keys(document), origin))


def _filled(kind: type[Any], table: Mapping[str, Any], *, prefix: str, origin: str) -> Any:  # noqa: ANN401 - a `kind`
    """Return a value of the dataclass *kind* with the keys of *table* checked and set."""
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name != "origins"}
    arguments = {}
    for name, value in table.items():
        key = prefix + name
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=1)
            hint = f"Did you mean {prefix + near[0]!r}?" if near else f"Known are {', '.join(hints)}."
            message = f"Key {key!r} of configuration {origin!r} must be a known one; got {value!r}. {hint}"
            raise RequestError(message)
        if dataclasses.is_dataclass(hints[name]):
            table_value = _checked(key, value, dict, origin)
            arguments[name] = _filled(hints[name], table_value, prefix=f"{key}.", origin=origin)
        else:
            arguments[name] = _checked(key, value, hints[name], origin)
    return kind(**arguments)


def _checked(key: str, value: Any, hint: Any, origin: str) -> Any:  # noqa: ANN401 - TOML value in, `hint` out
    """Return *value* as a *hint*, or say what is wrong with it."""
    choices = get_args(hint) if getattr(hint, "__origin__", None) is Literal else ()
    if choices:
        expected, right = f"one of {', '.join(choices)}", value in choices
    elif hint == tuple[str, ...]:
        expected, right = "a list of texts", isinstance(value, list) and all(isinstance(item, str) for item in value)
        value = tuple(value) if right else value
    elif hint is float:
        right = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")
        expected, value = "a number of at least 0", float(value) if right else value
    elif hint is int:
        expected, right = "a whole number of at least 0", type(value) is int and value >= 0
    else:
        expected, right = {str: "a text", bool: "true or false", dict: "a section"}[hint], isinstance(value, hint)
    if right and key in RANGES:
        low, high = RANGES[key]
        expected, right = f"a number from {low:g} to {high:g}", low <= value <= high
    if not right:
        message = f"Key {key!r} of configuration {origin!r} must be {expected}; got {value!r}. Change it."
        raise RequestError(message)
    return value


def _flattened(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any dataclass
    for item in dataclasses.fields(value):
        inner = getattr(value, item.name)
        if dataclasses.is_dataclass(inner):
            yield from _flattened(inner, f"{prefix}{item.name}.")
        elif item.name != "origins":
            yield prefix + item.name, inner


def _keys(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name
