"""`gpusage train --history`: fit what this site's own runs tell of jobs that name no model, and say how true it is."""

from __future__ import annotations

import time
from contextlib import closing
from functools import cache
from pathlib import Path

import msgspec

from gpusage.advisor import make_advisor
from gpusage.cli import tables
from gpusage.configuration import Configuration
from gpusage.configuration_file import load_configuration
from gpusage.history.evaluation import Trueness, evaluated
from gpusage.history.file import write_history
from gpusage.history.fitting import fit
from gpusage.history.history import Find, History
from gpusage.history.reading import past_runs
from gpusage.history.runs import PastRun
from gpusage.history.windows import QUANTITIES
from gpusage.store.decisions import DAY_S
from gpusage.store.opening import open_store
from gpusage.store.usage_rows import UsageQuestion
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_hooks.units import percent

SCHEMA = "gpusage.history-training/1"
LEAST_RUNS = 100
MOST_RUNS, MOST_OF_A_USER = 50_000, 2_000
"""The newest: the file stays one that gpusaged reads within a second, whatever one user does."""
COLUMNS = ("tested by", "quantity", "told by", "runs", "told", "below its end", "inside", "error", "symmetric accuracy")
NOTE = (
    "Below its end: the run stayed below the upper end that a share would be decided by; 95 of 100 should. "
    "Symmetric accuracy: the smaller of told and observed over the larger, the mean."
)


def train_history(store_url: str | None, output: Path | None, *, as_json: bool) -> None:
    """Fit the history of the store at *store_url*, print how true it is, and write it to *output*.

    Args:
        store_url: ``None`` for the site's own.
        output: ``None`` for where gpusaged reads it.
        as_json: Print one JSON document.
    """
    configuration, find = load_configuration(), cache(make_advisor().catalogue.find)
    url = store_url or configuration.store.url
    runs = _runs(configuration, url, find)
    _require_enough(runs, url)
    history, checks = fit(runs, find, time.time())
    rows, path = evaluated(checks, history, find), output or Path(configuration.learning.history_file)
    write_history(history, path)
    if as_json:
        tables.print_json(_document(history, rows, path))
        return
    tables.show_rows([tables.Column(COLUMNS[0], is_left=True), *map(tables.Column, COLUMNS[1:])], [*map(_cells, rows)])
    tables.show(NOTE, f"{history.runs} runs of {history.users} users: {path} ({path.stat().st_size} bytes)")


def _runs(configuration: Configuration, url: str, find: Find) -> list[PastRun]:
    settings = configuration.learning
    try:
        with closing(open_store(url)) as store:
            observations = store.observations(
                UsageQuestion(
                    since_s=time.time() - settings.days * DAY_S,
                    least_run_s=settings.least_sampled_s,
                    count=MOST_RUNS,
                    count_per_user=MOST_OF_A_USER,
                )
            )
    except (GpuUsageError, OSError) as error:
        message = f"The store must be readable; got: {error} Run this as root or as the daemon's user."
        raise RequestError(message) from error
    return [*past_runs(observations, settings.least_sampled_s, find)]


def _require_enough(runs: list[PastRun], url: str) -> None:
    for quantity in QUANTITIES:
        count = sum((run.utilization if quantity == "utilization" else run.memory_bytes) is not None for run in runs)
        if count < LEAST_RUNS:
            message = (
                f"Store {url} must have {LEAST_RUNS} runs whose {quantity} was seen; got {count}. Nothing is written; "
                "let more jobs run with history = 'observe' in [learning]."
            )
            raise RequestError(message)


def _document(history: History, rows: list[Trueness], path: Path) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "path": str(path),
        "runs": history.runs,
        "users": history.users,
        "trueness": msgspec.to_builtins(rows),
    }


def _cells(row: Trueness) -> list[str]:
    parts = [None if count is None or not row.told else count / row.told for count in (row.below, row.inside)]
    return [
        row.split,
        row.quantity,
        row.predictor,
        f"{row.runs:,}",
        percent(row.told / row.runs) if row.runs else "-",
        *(("-" if part is None else percent(part)) for part in (*parts, row.error, row.symmetric_accuracy)),
    ]
