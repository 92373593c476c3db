"""The letter: what the jobs of one node really did, as one word of a text that only the node's own daemons write.

Invariants:

1. `letter_in` reads what `with_letter` wrote, behind the site's own words, which stay as they are.
2. Any text is read without an error; what is no letter of ours is none.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable

import msgspec

from gpusage.hindsight import LEAST_S, filled_its_cap
from gpusage_hooks.types import Usage

LIMIT_BYTES = 4096
LIMIT_JOBS = 64
"""Of a letter; runs that tell nothing go first, then the oldest."""
KEPT_S = 900.0
"""How long usage stays in a letter after the next one is there: gpusaged looks every minute."""
_LETTER = re.compile(r"(?:^|(?<=[ =]))gpusage:([A-Za-z0-9_-]+=*)(?= |$)", re.MULTILINE)
_LONGEST_JSON_BYTES = 65_536
_DIGITS = 4


def with_letter(comment: str, usages: Iterable[Usage], now_s: float) -> str:
    """Return *comment* with a letter that has *usages*, too; of what it had, what is not too old."""
    site = _LETTER.sub("", comment).strip()
    known = {(usage.job_id, usage.started_at_s): usage for usage in letter_in(comment)}
    fresh = {key: usage for key, usage in known.items() if now_s - usage.ended_at_s < KEPT_S}
    letters = fresh | {(usage.job_id, usage.started_at_s): usage for usage in usages}
    best = sorted(letters.values(), key=_worth, reverse=True)[:LIMIT_JOBS]
    word = _word(best)
    while len(word) > LIMIT_BYTES:
        best.pop()
        word = _word(best)
    return f"{site} {word}".strip()


def letter_in(text: str) -> tuple[Usage, ...]:
    """Return the usage in the letters of *text*, each run of a job once; none where there is no letter."""
    usages = {}
    for word in _LETTER.findall(text):
        for usage in _opened(word):
            usages[usage.job_id, usage.started_at_s] = usage
    return tuple(usages.values())


def _worth(usage: Usage) -> tuple[bool, float]:
    """Rank *usage*: one user's many jobs of a second must not drive out what tells something of others' jobs."""
    lacked = usage.outcome == "out_of_memory" or filled_its_cap(usage)
    return usage.sampled_s >= LEAST_S or lacked, usage.ended_at_s


def _word(usages: Iterable[Usage]) -> str:
    compact = [_compact(msgspec.to_builtins(usage)) for usage in usages]
    return "gpusage:" + base64.urlsafe_b64encode(zlib.compress(msgspec.json.encode(compact), 9)).decode()


def _compact(fields: object) -> object:
    """Return a JSON value without what is unknown or empty, its numbers with a few digits."""
    if isinstance(fields, dict):
        return {name: _compact(value) for name, value in fields.items() if value not in (None, "") or name in _NEEDED}
    return round(fields, _DIGITS) if isinstance(fields, float) else fields


_NEEDED = ("number", "user")


def _opened(word: str) -> tuple[Usage, ...]:
    try:
        packed = base64.urlsafe_b64decode(word)
        text = zlib.decompressobj().decompress(packed, _LONGEST_JSON_BYTES)
        return msgspec.json.decode(text, type=tuple[Usage, ...])
    except (ValueError, zlib.error, msgspec.MsgspecError):
        return ()
