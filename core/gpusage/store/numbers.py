"""Numbers of records: twelve hexadecimal digits, of which eight are the second and four a count."""

from __future__ import annotations

import secrets


class RecordNumbers:
    """Gives numbers to the records that one process makes; the count begins anywhere, so that two hardly ever meet."""

    def __init__(self) -> None:
        self._count = secrets.randbits(16)

    def next_number(self, now_s: float) -> str:
        """Return the number of a record made at *now_s*: its second, and a count that no second repeats."""
        self._count = (self._count + 1) & 0xFFFF
        return f"{int(now_s):08x}{self._count:04x}"
