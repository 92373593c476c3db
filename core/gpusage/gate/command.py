"""The command line of a Python program, with the gate's runner put before the program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpusage_hooks.errors import RequestError

RUNNER = ("-m", "gpusage.gate.run")
_PYTHON = re.compile(r"python[0-9.]*")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def through_gate(command: Sequence[str]) -> tuple[str, ...]:
    """Return *command* with the gate's runner: ``python -u train.py`` becomes ``python -u -m ... train.py``.

    Raises:
        RequestError: The command is not Python and a program, so the runner has no place between them.
    """
    place = _program(command)
    if not _PYTHON.fullmatch(Path(command[0]).name) or place is None:
        message = (
            f"Command of 'gpusage gate' must be Python and a program, as 'python train.py'; got {' '.join(command)!r}. "
            "Write 'import gpusage.gate; gpusage.gate.give_way()' into the program instead."
        )
        raise RequestError(message)
    return (*command[:place], *RUNNER, *command[place:])


def _program(command: Sequence[str]) -> int | None:
    """Return the index of the program, a script or ``-m``; ``None`` where the runner cannot run it."""
    # Options of Python itself stay in front of the runner.
    place = 1
    while place < len(command) and command[place].startswith("-") and command[place] != "-m":
        if command[place] in ("-", "-c"):
            return None
        place += 2 if command[place] in _WITH_VALUE else 1
    words = 2 if "-m" in command[place : place + 1] else 1
    return place if place + words <= len(command) else None
