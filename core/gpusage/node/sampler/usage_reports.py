"""Usage reports: what the jobs of one node used, as one word of a text that only the node's own daemons write.

Invariants:

1. `parse_usage_reports` reads what `append_usage_reports` wrote, behind the site's own words, which stay as they are.
2. Any text is read without an error; a word that is no report of ours is skipped.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable

import msgspec

from gpusage.experience.finished_jobs import LEAST_SAMPLED_S, filled_memory_cap
from gpusage_hooks.types import Usage

LIMIT_BYTES = 4096
LIMIT_JOBS = 64
"""Of a report; runs that show nothing are dropped first, then the oldest."""
RETENTION_S = 900.0
"""How long usage stays in the text after newer usage has come: gpusaged reads it every minute."""
_REPORT = re.compile(r"(?:^|(?<=[ =]))gpusage:([A-Za-z0-9_-]+=*)(?= |$)", re.MULTILINE)
_LONGEST_JSON_BYTES = 65_536
_DIGITS = 4


def append_usage_reports(comment: str, usages: Iterable[Usage], now_s: float) -> str:
    """Return *comment* with a report that adds *usages* to what it reported and is not too old."""
    site = _REPORT.sub("", comment).strip()
    known = {(usage.job_id, usage.started_at_s): usage for usage in parse_usage_reports(comment)}
    fresh = {key: usage for key, usage in known.items() if now_s - usage.ended_at_s < RETENTION_S}
    runs = fresh | {(usage.job_id, usage.started_at_s): usage for usage in usages}
    best = sorted(runs.values(), key=_priority, reverse=True)[:LIMIT_JOBS]
    word = _encode(best)
    while len(word) > LIMIT_BYTES:
        best.pop()
        word = _encode(best)
    return f"{site} {word}".strip()


def parse_usage_reports(text: str) -> tuple[Usage, ...]:
    """Return the usage that *text* reports, each run of a job once."""
    usages = {}
    for word in _REPORT.findall(text):
        for usage in _decode(word):
            usages[usage.job_id, usage.started_at_s] = usage
    return tuple(usages.values())


def _priority(usage: Usage) -> tuple[bool, float]:
    """Rank *usage*: one user's many jobs of a second must not displace what shows something of others' jobs."""
    lacked_memory = usage.outcome == "out_of_memory" or filled_memory_cap(usage)
    return usage.sampled_s >= LEAST_SAMPLED_S or lacked_memory, usage.ended_at_s


def _encode(usages: Iterable[Usage]) -> str:
    compact = [_compact(msgspec.to_builtins(usage)) for usage in usages]
    return "gpusage:" + base64.urlsafe_b64encode(zlib.compress(msgspec.json.encode(compact), 9)).decode()


def _compact(fields: object) -> object:
    """Return a JSON value without what is unknown or empty, its numbers with a few digits."""
    if isinstance(fields, dict):
        return {name: _compact(value) for name, value in fields.items() if value not in (None, "") or name in _NEEDED}
    return round(fields, _DIGITS) if isinstance(fields, float) else fields


_NEEDED = ("number", "user")


def _decode(word: str) -> tuple[Usage, ...]:
    try:
        packed = base64.urlsafe_b64decode(word)
        text = zlib.decompressobj().decompress(packed, _LONGEST_JSON_BYTES)
        return msgspec.json.decode(text, type=tuple[Usage, ...])
    except (ValueError, zlib.error, msgspec.MsgspecError):
        return ()
