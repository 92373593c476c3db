"""How a batch script ended, as `squeue` and `sacct` write it: its exit status, and the signal that ended it."""

from __future__ import annotations

from gpusage import exit_status


def is_interrupted(exit_code: str) -> bool:
    """Tell whether a failed script ended for a reason from outside, so surely not because it lacked GPU memory.

    Args:
        exit_code: ``STATUS:SIGNAL``, or up to 22.05 `squeue`'s one number for both, as wait(2) has it. Of what is
            neither nothing is known.
    """
    status, colon, number = exit_code.partition(":")
    if not status.isdecimal() or (colon and not number.isdecimal()):
        return False
    ended, sent = (int(status), int(number)) if colon else (int(status) >> 8, int(status) & 0x7F)
    return exit_status.is_interrupted(ended, sent)
