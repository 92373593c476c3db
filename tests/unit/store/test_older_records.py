"""A store that an older gpusage wrote is read as it is: what a record or a usage lacks has its default."""

from __future__ import annotations

import json

from gpusage.store.rows import decode_records, encode_record
from gpusage_hooks.types import DecisionRecord, JobIdentity, Usage
from records import RECORD, USAGE

NEW = ("told", "source", "script_digest", "peak_utilization")


def without_new(value: object) -> object:
    """Return a JSON value without the keys that history brought."""
    if isinstance(value, dict):
        return {key: without_new(item) for key, item in value.items() if key not in NEW}
    return [without_new(item) for item in value] if isinstance(value, list) else value


def test_records_and_usage_from_before_history_are_read() -> None:
    older = json.dumps(without_new(json.loads(encode_record(RECORD))))
    assert '"told"' not in older
    (record,) = decode_records([older], DecisionRecord, "store")
    assert (record.told, record.identity or JobIdentity()) == ({}, JobIdentity())
    (usage,) = decode_records([json.dumps(without_new(json.loads(encode_record(USAGE))))], Usage, "store")
    assert usage == USAGE
