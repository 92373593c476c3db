"""A plugin's description of the workload manager that it adapts, and the context of the manager's hooks.

Invariants:

1. A manager's settings are one frozen dataclass; every field has a default, so that no section is a valid section.
2. A field is a ``bool``, ``int``, ``float``, ``str``, ``tuple[str, ...]`` or a ``Literal`` of texts; a number may carry
   a `Range`. No number is below 0.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

from gpusage_hooks.comment import MODEL_NAMES
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Gpu, Range

NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
"""What a manager may be called."""

# A manager's section stands beside these in the same file.
TAKEN = (
    *("mode", "enforce_in", "kill_switch"),
    *("sharing", "generation", "slo", "daemon", "store", "learning", "money", "network", "gpus"),  # sections
)
"""The keys of gpusage.toml that are gpusage's own."""

_PLAIN = (bool, int, float, str, tuple[str, ...])
_PLAIN_NAMES = "bool, int, float, str, tuple[str, ...]"
_Chosen = TypeVar("_Chosen", bound="ManagerSettings")


class ManagerSettings:
    """Base of a manager's section of gpusage.toml; a subclass is a frozen dataclass with a default for each field."""

    __slots__ = ()

    @property
    def answer_limit_s(self) -> float:
        """How long gpusaged may take over a question that does not say until when its answer is of use, in seconds."""
        return 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """A workload manager.

    Attributes:
        name: Lower-case; submissions, clusters and its section of gpusage.toml bear it, for example ``pbs``.
        title: The same for people, for example ``PBS``.
        settings: The type of its section of gpusage.toml.
        directive: What the lines of a job script begin with that are for it, for example ``#PBS``; ``None`` where it
            has no job scripts.
        submit: The command that submits a job script, for example ``("qsub",)``; empty where there is none, or where it
            does not pass the variable GPUSAGE_COMMENT on.
        users: Who asks gpusaged on its behalf, beside root; ``daemon.allowed_users`` replaces them.
        sampling: What a site sets so that accounting has GPUs, and what jobs took of them; empty where it never has.
    """

    name: str
    title: str
    settings: type[ManagerSettings] = ManagerSettings
    directive: str | None = None
    submit: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    sampling: str = ""

    def has_lines_in(self, script: str) -> bool:
        """Return whether *script* has a line that is for this manager."""
        directive = self.directive
        return directive is not None and any(line.split(None, 1)[:1] == [directive] for line in script.splitlines())


class GpuCatalogue(Protocol):
    """The GPUs that gpusage knows."""

    def find(self, name: str) -> Gpu:
        """Return the GPU called *name*, whatever its case and separators.

        Raises:
            DeviceError: There is none of this name.
        """


def known_gpu(catalogue: GpuCatalogue, name: str) -> str | None:
    """Return the catalogue's name of the GPU that a site calls *name*; ``None`` where it is not in there."""
    try:
        return catalogue.find(name).name
    except DeviceError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The context of a question to a manager's hooks.

    Attributes:
        settings: The manager's section of gpusage.toml; of the type that its plugin named.
        catalogue: The GPUs that gpusage knows, those of plugins among them.
        model_names: How models are named, those of plugins among them; `parse_comment` needs it.
    """

    settings: ManagerSettings
    catalogue: GpuCatalogue
    model_names: tuple[str, ...] = MODEL_NAMES

    def settings_of(self, kind: type[_Chosen]) -> _Chosen:
        """Return the settings as a *kind*; its defaults where they are of another type."""
        return self.settings if isinstance(self.settings, kind) else kind()


def manager_fault(manager: Manager) -> str | None:
    """Return the fault in the description of a manager, as a clause, or ``None``."""
    kind, name = manager.settings, manager.name
    if not NAME.fullmatch(name):
        return f"its name must be lower-case letters, digits, '-' and '_'; got {name!r:.80}"
    if name in TAKEN:
        return f"its name must not be one of gpusage.toml's own keys, {', '.join(TAKEN)}; got {name!r}"
    if kind is ManagerSettings:
        return None

    # dataclass() writes __setattr__ where it is frozen, and there alone.
    if not (is_dataclass(kind) and "__setattr__" in vars(kind)):
        return f"its settings must be a frozen dataclass; got {kind.__name__}"
    hints = get_type_hints(kind, include_extras=True)
    for item in fields(kind):
        fault = _field_fault(item, hints[item.name])
        if fault:
            return fault
    limit_s = kind().answer_limit_s
    return None if limit_s > 0 else f"answer_limit_s of its settings must be above 0; got {limit_s!r}"


def _field_fault(field: Field[Any], hint: Any) -> str | None:  # any annotation
    default: Any = field.default
    if default is MISSING:
        return f"setting {field.name!r} must have a default; got none"

    # Only what TOML can say, and a command can show with its origin.
    plain, *limits = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if plain not in _PLAIN and get_origin(plain) is not Literal:
        return f"setting {field.name!r} must be one of {_PLAIN_NAMES} or a Literal; got {plain}"
    for limit in limits:
        if isinstance(limit, Range) and not limit.low <= default <= limit.high:
            return f"setting {field.name!r} must have a default from {limit.low:g} to {limit.high:g}; got {default}"
    return None
