"""The command line of a Python program, with the gate's runner put before the program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpusage.capture.programs import PYTHON, program_place
from gpusage_hooks.errors import RequestError

RUNNER = ("-m", "gpusage.gate.run")


def through_gate(command: Sequence[str]) -> tuple[str, ...]:
    """Return *command* with the gate's runner: ``python -u train.py`` becomes ``python -u -m ... train.py``.

    Raises:
        RequestError: The command is not Python and a program, so the runner has no place between them.
    """
    place = program_place(command)
    if not PYTHON.fullmatch(Path(command[0]).name) or place is None:
        message = (
            f"Command of 'gpusage gate' must be Python and a program, as 'python train.py'; got {' '.join(command)!r}. "
            "Write 'import gpusage.gate; gpusage.gate.give_way()' into the program instead."
        )
        raise RequestError(message)
    return (*command[:place], *RUNNER, *command[place:])
