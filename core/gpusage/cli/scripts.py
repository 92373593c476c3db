"""Job scripts: their texts, and the workload manager that they are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpusage.cli.user_file import read_content
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import Manager

MAXIMUM_SCRIPT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A job script, or why it cannot be read."""

    path: str
    text: str = ""
    error: RequestError | None = None


def read_scripts(paths: Sequence[Path]) -> tuple[Script, ...]:
    """Return the job scripts at *paths*, each read once, for it may be a pipe."""
    scripts = []
    for path in map(str, paths):
        try:
            scripts.append(Script(path=path, text=read_script(path)))
        except RequestError as error:  # noqa: PERF203 - one that cannot be read does not hide the others
            scripts.append(Script(path=path, error=error))
    return tuple(scripts)


def read_script(path: str) -> str:
    """Return the text of the job script at *path*.

    Raises:
        RequestError: It cannot be read, or is larger than a job script is.
    """
    return read_content(Path(path), "Script", MAXIMUM_SCRIPT_BYTES).decode("utf-8", "replace")


def manager_of(scripts: Sequence[Script], managers: Mapping[str, Manager], name: str | None = None) -> Manager:
    """Return the workload manager that all *scripts* are for.

    Args:
        scripts: Those that have no line of any manager go along with the others.
        managers: The installed ones, by name.
        name: What the user says; ``None`` leaves it to the lines, and where there are none to the only manager that has
            job scripts.

    Raises:
        RequestError: The user names none that has job scripts, or it is not clear which one is meant.
    """
    possible = {manager.name: manager for manager in managers.values() if manager.directive}
    if name is not None:
        if name in possible:
            return possible[name]
        known = ", ".join(possible) or "none"
        message = (
            f"Workload manager {name!r} must be installed and have job scripts; these do: {known}. Change --manager, "
            "or install its plugin."
        )
        raise RequestError(message)

    # Without any line a script is for the only manager that there is.
    meant = [manager for manager in possible.values() if any(manager.has_lines_in(each.text) for each in scripts)]
    chosen = meant or list(possible.values())
    if len(chosen) == 1:
        return chosen[0]

    lines = " or ".join(f"{manager.directive} ({manager.title})" for manager in possible.values()) or "if one is here"
    met = " and ".join(str(manager.directive) for manager in meant) or "none"
    message = f"Scripts must have lines of one workload manager, {lines}; got {met}. Name it with --manager."
    raise RequestError(message)
