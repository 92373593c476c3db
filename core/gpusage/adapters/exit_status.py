"""What the exit status of a script says about its end."""

from __future__ import annotations

import signal

_STATUS_OF_SIGNALS = 128
"""A shell adds a signal's number to it, where a signal ended the shell's last command."""
_FROM_OUTSIDE = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGUSR1, signal.SIGUSR2}
    | {signal.SIGTERM, signal.SIGXCPU, signal.SIGXFSZ}
)
"""Sent by a person, by a workload manager or by the kernel; who lacks GPU memory gets SIGABRT at most."""
_NOT_STARTED = frozenset({126, 127})
"""A shell's: the last command cannot be run, or is not there."""


def is_interrupted(status: int, number: int = 0) -> bool:
    """Return whether a failed script ended for a reason from outside, so surely not because it lacked GPU memory.

    Args:
        status: The exit status, 0 to 255.
        number: Of the signal that ended the script itself; 0 where none did.
    """
    return status in _NOT_STARTED or (number or status - _STATUS_OF_SIGNALS) in _FROM_OUTSIDE
