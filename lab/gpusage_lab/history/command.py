"""`gpusage train --history`: fit what this site's runs show of jobs that name no model, and print how true that is."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

import msgspec

from gpusage.cli import tables
from gpusage.decisions.advisor import make_advisor
from gpusage.experience.history import QUANTITIES, GpuLookup, History
from gpusage.experience.runs import Run, history_runs
from gpusage.settings.configuration import Configuration
from gpusage.settings.configuration_file import load_configuration
from gpusage.store.opening import open_store
from gpusage.store.rows import UsageQuery
from gpusage_hooks.errors import DeviceError, GpuUsageError, RequestError
from gpusage_hooks.units import DAY_S, percent
from gpusage_lab.history.evaluation import Calibration, evaluate_history
from gpusage_lab.history.training import fit_history, write_history

SCHEMA = "gpusage.history-training/1"
LEAST_RUNS = 100
MOST_RUNS, MOST_OF_A_USER = 50_000, 2_000
"""The newest: the file stays one that gpusaged reads within a second, whatever one user does."""
COLUMNS = (
    "split",
    "quantity",
    "predictor",
    "runs",
    "estimated",
    "below its end",
    "inside",
    "error",
    "symmetric accuracy",
)
NOTE = (
    "Below its end: the run stayed below the upper end that a share would be decided by; 95 of 100 should. "
    "Symmetric accuracy: the smaller of estimate and observation over the larger, the mean."
)


def train_history(store_url: str | None, output: Path | None, *, as_json: bool) -> None:
    """Fit the history of the store at *store_url*, print how true it is, and write it to *output*.

    Args:
        store_url: ``None`` for the site's own.
        output: ``None`` for where gpusaged reads it.
        as_json: Print one JSON document.
    """
    configuration, find_gpu = load_configuration(), cache(make_advisor().catalogue.find)
    url = store_url or configuration.store.url
    runs = _read_runs(configuration, url, find_gpu)
    _require_enough(runs, url)
    history, backtests = fit_history(runs, find_gpu, time.time())
    rows, path = evaluate_history(backtests, history, find_gpu), output or Path(configuration.learning.history_file)
    write_history(history, path)
    if as_json:
        tables.print_json(_document(history, rows, path))
        return
    tables.show_rows(tables.columns(*COLUMNS), [*map(_cells, rows)])
    tables.show(NOTE, f"{history.runs} runs of {history.users} users: {path} ({path.stat().st_size} bytes)")


def _read_runs(configuration: Configuration, url: str, find_gpu: GpuLookup) -> list[Run]:
    """Return the runs of the store at *url* that show something, on GPUs that the catalogue knows."""
    settings = configuration.learning
    try:
        with closing(open_store(url)) as store:
            query = UsageQuery(
                since_s=time.time() - settings.days * DAY_S,
                least_run_s=settings.least_sampled_s,
                count=MOST_RUNS,
                only_decided=True,
            )
            observations = [*store.evidence(MOST_OF_A_USER, query)]
    except (GpuUsageError, OSError) as error:
        message = f"The store must be readable; got: {error} Run this as root or as the daemon's user."
        raise RequestError(message) from error
    runs = []
    for _, run in history_runs(observations, settings.least_sampled_s):
        with suppress(DeviceError):
            find_gpu(run.gpu)
            runs.append(run)
    return runs


def _require_enough(runs: list[Run], url: str) -> None:
    for quantity in QUANTITIES:
        values = (run.peak_utilization if quantity == "utilization" else run.required_bytes for run in runs)
        count = sum(value is not None for value in values)
        if count < LEAST_RUNS:
            message = (
                f"Store {url} must have {LEAST_RUNS} runs whose {quantity} was seen; got {count}. Nothing is written; "
                "let more jobs run with history = 'observe' in [learning]."
            )
            raise RequestError(message)


def _document(history: History, rows: list[Calibration], path: Path) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "path": str(path),
        "runs": history.runs,
        "users": history.users,
        "trueness": msgspec.to_builtins(rows),
    }


def _cells(row: Calibration) -> list[str]:
    parts = [None if count is None or not row.estimated else count / row.estimated for count in (row.below, row.inside)]
    return [
        row.split,
        row.quantity,
        row.predictor,
        f"{row.runs:,}",
        percent(row.estimated / row.runs) if row.runs else "-",
        *(("-" if part is None else percent(part)) for part in (*parts, row.error, row.symmetric_accuracy)),
    ]
