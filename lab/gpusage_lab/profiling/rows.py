"""The rows of one measurement: its settings, the workers' results, and the readings of the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

from gpusage.experience.profile_rows import COLUMNS
from gpusage_lab.profiling.crew import Measured
from gpusage_lab.profiling.items import Item, Sharing, Side
from gpusage_lab.profiling.plan import shape_text
from gpusage_lab.profiling.table import OPERATOR_COLUMNS

Facts = Mapping[str, Any]
"""Of the machine: the same in every row."""


def rows_of(item: Item, outcome: Measured, sharing: Sharing, facts: Facts) -> list[dict[str, Any]]:
    """Return one row per side."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    common = {
        "item": item.key,
        "kind": item.kind,
        "sides": len(item.sides),
        "measured_at": now,
        "seconds": item.seconds,
        "sharing": sharing,
        "gpusage": metadata.version("gpusage") if _is_installed() else "from source",
    }
    held = outcome.readings.get("process_bytes") or {}
    rows = []
    for place, side in enumerate(item.sides):
        columns = {
            **facts,
            **outcome.readings,
            **outcome.answers[place],
            **common,
            **_request_columns(item, side, place),
        }
        columns["process_bytes"] = held.get(outcome.pids[place]) if outcome.pids else None
        rows.append({name: columns.get(name) for name in COLUMNS})
    return rows


def operator_rows_of(item: Item, outcome: Measured, facts: Facts) -> list[dict[str, Any]]:
    """Return one row per operator and its shapes."""
    columns = {**facts, **_request_columns(item, item.sides[0], 0), "item": item.key}
    rows = outcome.answers[0].get("rows", ())
    return [{name: {**columns, **row}.get(name) for name in OPERATOR_COLUMNS} for row in rows]


def _request_columns(item: Item, side: Side, place: int) -> dict[str, Any]:
    workload = side.job.workload
    others = [other.label for other in (*item.sides[:place], *item.sides[place + 1 :])]
    return {
        "side": place,
        "model": side.job.model,
        "batch_size": workload.batch_size,
        "mode": workload.mode,
        "precision": workload.precision,
        "optimizer": workload.optimizer if workload.mode == "train" else None,
        "shape": shape_text(side),
        "stall_ratio": side.job.stall_ratio,
        "partners": "|".join(others),
        "thread_percent": side.percent,
        "priority": side.priority,
        "memory_limit_bytes": side.memory_limit_bytes,
        "gated": side.gated,
    }


def _is_installed() -> bool:
    try:
        metadata.version("gpusage")
    except metadata.PackageNotFoundError:
        return False
    return True
