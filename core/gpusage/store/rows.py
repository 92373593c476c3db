"""A decision's record as a row of the store, and back: JSON, with the columns that people ask for beside it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from gpusage_hooks.types import DecisionRecord, Usage

COLUMNS = ("decided_at_s", "manager", "mode", "code", "origin", "model", "before", "after", "record", "number")
"""As `migrations` makes them."""
Record = TypeVar("Record", DecisionRecord, Usage)
_NOUNS = {DecisionRecord: "decision", Usage: "usage"}
_log = logging.getLogger(__name__)
Row = tuple[float, str, str, str, str, str | None, str, str, str, str]


def decision_row(record: DecisionRecord) -> Row:
    """Return *record* by `COLUMNS`."""
    return (
        record.decided_at_s,
        record.manager,
        record.mode,
        record.decision.code.value,
        replace_invalid_unicode(record.origin),
        None if record.model is None else replace_invalid_unicode(record.model),
        replace_invalid_unicode(record.rendered.before),
        replace_invalid_unicode(record.rendered.after),
        encode_record(record),
        record.number,
    )


def decode_records(texts: Iterable[str], kind: type[Record], store: str) -> tuple[Record, ...]:
    """Return the records of *kind* in columns ``record``; a strange row of *store* is left out and hides no other."""
    records = []
    for text in texts:
        try:
            records.append(msgspec.json.decode(_with_current_names(text), type=kind))
        except (msgspec.MsgspecError, TypeError) as error:  # noqa: PERF203 - each row for itself; it may hold no text
            _log.warning("store %s holds a row that is no %s (%s): left out", store, _NOUNS[kind], error)
    return tuple(records)


def _with_current_names(text: str) -> str | bytes:
    """Return *text*, a record that any version wrote, with the names that its fields have now."""
    if '"told":{"' not in text:  # most jobs name a model, and have no estimates of history
        return text
    fields = msgspec.json.decode(text, type=dict[str, Any])
    return msgspec.json.encode({**fields, "history_estimates": fields.get("told", {})})


def encode_record(record: DecisionRecord | Usage) -> str:
    """Return *record* as JSON that any database can hold."""
    try:
        return _ENCODER.encode(record).decode()
    except UnicodeEncodeError:  # a user's text that is no Unicode: keep the columns, and the record in ASCII
        plain = msgspec.to_builtins(record, enc_hook=_encodable)
        return _ENCODER.encode(_with_valid_unicode(plain)).decode()


def _with_valid_unicode(value: object) -> object:
    """Return a JSON value with every text made valid Unicode."""
    if isinstance(value, str):
        return replace_invalid_unicode(value)
    if isinstance(value, Mapping):
        return {replace_invalid_unicode(key): _with_valid_unicode(item) for key, item in value.items()}
    return [_with_valid_unicode(item) for item in value] if isinstance(value, (list, tuple)) else value


def replace_invalid_unicode(text: str) -> str:
    """Return *text* with what UTF-8 cannot hold as question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _encodable(value: object) -> object:
    """Return what msgspec does not know as something that it does."""
    if isinstance(value, Mapping):
        return dict(value)
    message = f"Objects of type {type(value).__name__} are not supported"
    raise NotImplementedError(message)


_ENCODER = msgspec.json.Encoder(enc_hook=_encodable)
