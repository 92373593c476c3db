"""The daemon's protocol: one JSON line each way, text in and values out, no sockets.

Invariants:

1. Any line is an `Ask`, a `Ping`, a `StatusQuery`, or raises `ProtocolError`; nothing else leaves `parse_line`.
2. An answer to an ask is a flat object of texts on one line, so that a few lines of Lua can read it.
3. `KEPT` changes no job; it is what everyone gets whom we cannot answer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = "1"
LINE_LIMIT_BYTES = 128 * 1024
MOST_LIMIT_MS = 2000
"""The longest that an adapter may tell us to take for its question."""
MAXIMUM_COUNT = 10**9
MISSED = ("silent", "rest", "unreachable", "strange")
"""Why a client left a job alone: no answer within its limit; not asked in the rest after that; nobody listened; an
answer that was none."""
_MANAGER = re.compile(r"[a-z][a-z0-9_-]{0,31}")


class ProtocolError(ValueError):
    """Say that a line is not of the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A submission to be decided on.

    Attributes:
        fields: The job's fields in the manager's own words.
        limit_s: How long the adapter waits for the answer; ``None`` where it goes by the configuration.
        until_s: When the client gives up, by the clock of this host; ``None`` where it does not say.
        missed: How many jobs before this one got no answer, by one of `MISSED`.
    """

    manager: str
    fields: Mapping[str, str]
    limit_s: float | None = None
    until_s: float | None = None
    missed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """A question whether anyone is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusQuery:
    """A question how the daemon fares."""


Question = Ask | Ping | StatusQuery


def parse_line(line: bytes) -> Question:
    """Return the question that *line* holds, its newline left out.

    Raises:
        ProtocolError: The line is not JSON, of another version, or lacks what a question needs.
    """
    try:
        message = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        reason = f"Line must be one JSON object; got {line[:40]!r}. Check the client."
        raise ProtocolError(reason) from error
    if not isinstance(message, dict) or message.get("v") not in (1, VERSION) or message.get("v") is True:
        reason = f"Line must be a JSON object with 'v' 1; got {line[:40]!r}. Update the client."
        raise ProtocolError(reason)
    operation = message.get("op", "ask")
    if operation == "ping":
        return Ping()
    if operation == "status":
        return StatusQuery()
    if operation != "ask":
        reason = f"Key 'op' must be 'ask', 'ping' or 'status'; got {str(operation)[:40]!r}. Update the client."
        raise ProtocolError(reason)
    return _ask(message)


def _ask(message: Mapping[str, Any]) -> Ask:
    manager, fields = message.get("manager"), message.get("fields")
    if not isinstance(manager, str) or not _MANAGER.fullmatch(manager):
        reason = f"Key 'manager' must be a lower-case name; got {str(manager)[:40]!r}. Update the client."
        raise ProtocolError(reason)
    if not isinstance(fields, dict) or not {*map(type, fields.values())} <= {str}:
        reason = f"Key 'fields' must be an object of texts; got {str(fields)[:40]!r}. Update the client."
        raise ProtocolError(reason)
    until_s = message.get("until_s")
    return Ask(
        manager=manager,
        fields=fields,
        limit_s=_limit_s(message.get("limit_ms")),
        until_s=until_s if isinstance(until_s, float) and math.isfinite(until_s) else None,
        missed=_counts(message.get("missed")),
    )


def _limit_s(limit_ms: object) -> float | None:
    """Return the limit that an adapter names, in seconds; an adapter that names none in its range has none."""
    if type(limit_ms) is not int or not 1 <= limit_ms <= MOST_LIMIT_MS:
        return None
    return limit_ms / 1000


def _counts(missed: object) -> dict[str, int]:
    """Return the counts that an adapter tells; what is none is left out."""
    told = missed if isinstance(missed, dict) else {}
    return {why: told[why] for why in MISSED if type(told.get(why)) is int and 0 < told[why] < MAXIMUM_COUNT}


def answer_line(code: str, message: str = "", settings: Mapping[str, str] | None = None) -> bytes:
    """Return an answer to an ask as one line.

    Args:
        code: ``REWRITE``, ``KEEP`` or ``DECLINE``.
        message: For the user; line breaks become spaces, other control characters question marks.
        settings: ``set.X`` and ``env.X`` keys; anything else in it is left out.
    """
    shown = printable(" ".join(message.split()))
    allowed = {
        key: value
        for key, value in (settings or {}).items()
        if key.startswith(("set.", "env.")) and isinstance(value, str)
    }
    return json_line({"v": VERSION, "code": code, "message": shown, **allowed})


def with_mark(line: bytes, start: str, rest: str) -> tuple[bytes, bytes]:
    """Return the answer *line* with one key more, the mark, in two parts: between them goes the record's number."""
    head = line[: line.rindex(b"}")] + b',"mark":' + json.dumps(start).encode()[:-1]
    return head, json.dumps(rest).encode()[1:] + b"}\n"


def late(line: bytes) -> bytes:
    """Return the answer *line*, or its beginning, where deciding took too long: who asks again may get a better one."""
    return b'{"overdue":"1",' + line[1:]


def printable(text: str) -> str:
    """Return *text* with a question mark for each control character: nothing of a user's may act on a terminal."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def json_line(message: Mapping[str, Any]) -> bytes:
    """Return *message* as one line of UTF-8, its newline included; what UTF-8 cannot hold becomes a question mark."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


KEPT = answer_line("KEEP")
LATE = late(KEPT)
DECLINED = answer_line("DECLINE")
ALIVE = json_line({"v": VERSION, "code": "OK"})
