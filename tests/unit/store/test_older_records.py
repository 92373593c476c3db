"""A store that an older gpusage wrote is read as it is: what a record or a usage lacks has its default."""

from __future__ import annotations

import json
from dataclasses import replace

from gpusage.store.rows import decode_records, encode_record
from gpusage_hooks.types import DecisionRecord, Figure, JobIdentity, ObservedFigures, Usage
from records import INTERVAL, RECORD, USAGE

NEW = ("history_estimates", "source", "script_digest", "peak_utilization")


def without_new(value: object) -> object:
    """Return a JSON value without the keys that history brought."""
    if isinstance(value, dict):
        return {key: without_new(item) for key, item in value.items() if key not in NEW}
    return [without_new(item) for item in value] if isinstance(value, list) else value


def test_records_and_usage_from_before_history_are_read() -> None:
    older = json.dumps(without_new(json.loads(encode_record(RECORD))))
    assert '"history_estimates"' not in older
    (record,) = decode_records([older], DecisionRecord, "store")
    assert (record.history_estimates, record.identity or JobIdentity()) == ({}, JobIdentity())
    (usage,) = decode_records([json.dumps(without_new(json.loads(encode_record(USAGE))))], Usage, "store")
    assert usage == USAGE


def test_what_history_predicted_is_read_under_its_first_name() -> None:
    figures = ObservedFigures(gpu_utilization=Figure(interval=INTERVAL, source="history"))
    record = replace(RECORD, history_estimates={USAGE.gpu: figures})
    older = encode_record(record).replace('"history_estimates"', '"told"')
    assert decode_records([older, '["told"]', '["told":{"'], DecisionRecord, "store") == (record,)
