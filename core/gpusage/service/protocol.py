"""The daemon's protocol: one JSON line each way, text in and values out, no sockets.

Invariants:

1. Any line is a `Question`, or raises `ProtocolError`; nothing else leaves `parse_line`.
2. A response to a decision request is a flat object of texts on one line, so that a few lines of Lua can read it.
3. `UNCHANGED` changes no job; everyone whom we cannot answer gets it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from gpusage.boundary.printable_text import one_line
from gpusage.store.annotation import START
from gpusage_hooks.managers import NAME
from gpusage_hooks.types import Code, DecisionRequest

VERSION = "1"
LINE_LIMIT_BYTES = 128 * 1024
MAXIMUM_COUNT = 10**9
NUMBER_CHARACTERS = 12
MISSED = ("silent", "rest", "unreachable", "strange", "refused")
"""Why a client left a job alone: no answer within its limit; not asked during the pause after that; nobody listened; an
answer that is not valid; the site's own script refused another request for a share."""


class ProtocolError(ValueError):
    """A line breaks the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """A question whether anyone is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusQuery:
    """A question for the daemon's status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureNotice:
    """The notice that a job fails on its share at this moment; its client waits for no answer.

    Attributes:
        number: Of its decision.
        user: Whose job it is, as in `JobIdentity`.
    """

    number: str
    user: str = ""


Question = DecisionRequest | FailureNotice | Ping | StatusQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The answer to a decision request.

    Attributes:
        code: As it is applied to the job.
        message: For its user.
        settings: ``set.X`` and ``env.X`` keys with the values to set in the job.
        mark: Of the job's annotation, the text after the number; ``""`` for none.
        overdue: Deciding took too long: who asks again may get a better answer.
    """

    code: Code
    message: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    mark: str = ""
    overdue: bool = False

    def line(self, number: str = "") -> bytes:
        """Return it as one line, with *number*, its record's, in the annotation.

        In the message, line breaks become spaces and other control characters become question marks. Fields that are no
        settings are left out.
        """
        message = {"v": VERSION, "code": self.code.value, "message": one_line(self.message)}
        message |= {
            key: value
            for key, value in self.settings.items()
            if key.startswith(("set.", "env.")) and isinstance(value, str)
        }

        if self.mark:
            message["mark"] = START + number + self.mark
        if self.overdue:
            message["overdue"] = "1"
        return json_line(message)


def parse_line(line: bytes) -> Question:
    """Return the question that *line* holds, its newline left out.

    Raises:
        ProtocolError: The line is not JSON, of another version, or lacks a field of its question.
    """
    try:
        try:
            message = msgspec.json.decode(line)
        except msgspec.MsgspecError:
            # Python's own decoder accepts a little more, such as 1e999 and half a surrogate pair.
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
    if operation == "failure":
        # Cut off: a number is looked up, and never longer.
        return FailureNotice(number=str(message.get("number"))[:NUMBER_CHARACTERS], user=str(message.get("user")))
    if operation != "ask":
        reason = (
            f"Key 'op' must be 'ask', 'failure', 'ping' or 'status'; got {str(operation)[:40]!r}. Update the client."
        )
        raise ProtocolError(reason)
    return _parse_decision_request(message)


def _parse_decision_request(message: Mapping[str, Any]) -> DecisionRequest:
    manager, fields = message.get("manager"), message.get("fields")
    if not isinstance(manager, str) or not NAME.fullmatch(manager):
        reason = f"Key 'manager' must be a lower-case name; got {str(manager)[:40]!r}. Update the client."
        raise ProtocolError(reason)
    if not isinstance(fields, dict) or not {*map(type, fields.values())} <= {str}:
        reason = f"Key 'fields' must be an object of texts; got {str(fields)[:40]!r}. Update the client."
        raise ProtocolError(reason)

    # Times and counts that are none are left out: a job must not lose its decision for them.
    until_s, first_by_s = message.get("until_s"), message.get("first_by_s")
    missed = message.get("missed")
    counts = missed if isinstance(missed, dict) else {}
    return DecisionRequest(
        manager=manager,
        fields=fields,
        until_s=until_s if isinstance(until_s, float) and math.isfinite(until_s) else None,
        first_by_s=first_by_s if isinstance(first_by_s, float) and math.isfinite(first_by_s) else None,
        # JSON's true is an int as well.
        missed={why: counts[why] for why in MISSED if type(counts.get(why)) is int and 0 < counts[why] < MAXIMUM_COUNT},
    )


def json_line(message: Mapping[str, Any]) -> bytes:
    """Return *message* as one line of UTF-8, newline included, with ? for a character that UTF-8 cannot hold."""
    try:
        return msgspec.json.encode(message) + b"\n"
    except UnicodeEncodeError:
        # Half of a surrogate pair, which a user's JSON can hold.
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


UNCHANGED = Response(code=Code.KEEP)
LATE = replace(UNCHANGED, overdue=True)
THINKING = b" "
"""Sent before an answer that takes a while: white space before JSON, so any reader of answers may get it."""
ALIVE = json_line({"v": VERSION, "code": "OK"})
