"""How a batch script ended, as `squeue` writes it: its exit status, and the signal that ended it."""

from __future__ import annotations

import signal

_STATUS_OF_SIGNALS = 128
"""A shell adds a signal's number to it, where a signal ended the shell's last command."""
_FROM_OUTSIDE = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGUSR1, signal.SIGUSR2}
    | {signal.SIGTERM, signal.SIGXCPU, signal.SIGXFSZ}
)
"""Sent by a person, by Slurm's ``--signal`` or by the kernel; who lacks memory gets SIGABRT at most."""
_NOT_STARTED = frozenset({126, 127})
"""A shell's: the last command cannot be run, or is not there."""


def lacks_nothing(exit_code: str) -> bool:
    """Tell whether a failed script ended for a reason that is surely no lack of GPU memory.

    Args:
        exit_code: ``STATUS:SIGNAL``, or up to 22.05 both in one number, as wait(2) has it. Of what is neither nothing
            is known.
    """
    status, colon, number = exit_code.partition(":")
    if not status.isdecimal() or (colon and not number.isdecimal()):
        return False
    ended, sent = (int(status), int(number)) if colon else (int(status) >> 8, int(status) & 0x7F)
    return ended in _NOT_STARTED or (sent or ended - _STATUS_OF_SIGNALS) in _FROM_OUTSIDE
