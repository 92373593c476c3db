"""Slurm's side of power saving: whether it is set up, and how nodes are suspended and resumed.

Tried on 22.05, 24.11 and 26.05: ``State=POWER_DOWN`` of a node on which a job runs waits for the job's end.
``POWER_DOWN_FORCE``, which would end it, is never used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from gpusage.sandboxes.host import user_name
from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.power.steps import Action, Delays, Step

STATES: Final[Mapping[Action, str]] = {"suspend": "POWER_DOWN", "resume": "POWER_UP"}
_MOST_AT_ONCE = 500
_REFUSED = "Invalid user id"
_PROGRAMS = ("SuspendProgram", "ResumeProgram")
_SECONDS = re.compile(r"\d+")


def require_power_saving(settings: Mapping[str, str]) -> Delays:
    """Return how long nodes take, by slurmctld's *settings*.

    Raises:
        RequestError: Power saving is not set up, so a suspended node would not come back for a job.
    """
    missing = [name for name in _PROGRAMS if not settings.get(name.lower())]
    if not _SECONDS.match(settings.get("suspendtime", "")):
        missing.append("SuspendTime")
    if missing:
        message = (
            "Slurm must be set up to save power, so that a job wakes the node that it needs; got no "
            f"{', '.join(missing)} in slurm.conf. docs/planning.md says how."
        )
        raise RequestError(message)
    return Delays(suspend_s=_seconds(settings, "suspendtimeout"), resume_s=_seconds(settings, "resumetimeout"))


def carry_out(steps: Iterable[Step], settings: Mapping[str, str]) -> None:
    """Have slurmctld do what *steps* say.

    Raises:
        RequestError: It refuses.
    """
    wanted = list(steps)
    for action, state in STATES.items():
        names = [step.node for step in wanted if step.action == action]
        for first in range(0, len(names), _MOST_AT_ONCE):
            _update(names[first : first + _MOST_AT_ONCE], state, settings)


def _update(names: Iterable[str], state: str, settings: Mapping[str, str]) -> None:
    try:
        scontrol.run("scontrol", "update", f"NodeName={','.join(names)}", f"State={state}")
    except RequestError as error:
        if _REFUSED not in str(error):
            raise
        admins = dict.fromkeys(["root", settings.get("slurmuser", "").partition("(")[0] or "slurm"])
        message = (
            f"Nodes must be suspended and resumed by an admin of Slurm; got user {user_name()!r}, whom slurmctld "
            f"refuses. Run it as {' or '.join(admins)}."
        )
        raise RequestError(message) from error


def _seconds(settings: Mapping[str, str], key: str) -> float:
    number = _SECONDS.match(settings.get(key, ""))
    return float(number[0]) if number else 0.0
