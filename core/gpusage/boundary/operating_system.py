"""The operating system's facts about processes: the user of this process, and the reason why a script ended."""

from __future__ import annotations

import os
import pwd
import signal

from gpusage_hooks.errors import RequestError

_STATUS_OF_SIGNALS = 128
"""A shell's status is this plus the number of the signal that ended its last command (POSIX, 2.8.2)."""
_FROM_OUTSIDE = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGUSR1, signal.SIGUSR2}
    | {signal.SIGTERM, signal.SIGXCPU, signal.SIGXFSZ}
)
"""A person, a workload manager or the kernel sends these; a program that lacks GPU memory gets SIGABRT at most."""
_NOT_STARTED = frozenset({126, 127})
"""A shell's status where its last command cannot run, or does not exist."""


def user_name() -> str:
    """Return the name of the user that this process runs as, whatever the environment says.

    Raises:
        RequestError: The user has no name; daemons run nothing for such a user.
    """
    # Not $USER or $LOGNAME: anybody can set them.
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        message = f"User must have a name; got uid {os.getuid()} without one. Add it to /etc/passwd."
        raise RequestError(message) from error


def is_interrupted(status: int, number: int = 0) -> bool:
    """Return whether a failed script ended for a reason from outside, surely not for lack of GPU memory.

    Args:
        status: The exit status, 0 to 255.
        number: The signal that ended the script itself, or 0.
    """
    return status in _NOT_STARTED or (number or status - _STATUS_OF_SIGNALS) in _FROM_OUTSIDE
