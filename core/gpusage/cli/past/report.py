"""`gpusage report`: the store's decisions and usage of a time, as text, as JSON, and as a page."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from gpusage.boundary.printable_text import visible
from gpusage.cli import tables
from gpusage.cli.output_file import page_origin, write_output
from gpusage.cli.past.decisions import origins_of, user_name
from gpusage.cli.predicting.money import site_prices
from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.devices.catalogue import Catalogue
from gpusage.reports import lines, page
from gpusage.reports.amounts import rates_of
from gpusage.reports.breakdown import Dimension, ReportRules
from gpusage.reports.report import Period, Report, report_of
from gpusage.settings.configuration_file import load_configuration
from gpusage.store.opening import describe_location, open_store
from gpusage_hooks.errors import DeviceError, GpuUsageError, RequestError
from gpusage_hooks.types import Cluster, Gpu

SCHEMA = "gpusage.report/1"


def report(since_s: float, user: str, by: Sequence[Dimension], output: Path | None, *, as_json: bool) -> None:
    """Show what happened in the last *since_s* seconds."""
    now_s = time.time()
    show_report(Period(since_s=now_s - since_s, until_s=now_s, user=user), output, by=by, as_json=as_json)


def show_report(period: Period, output: Path | None, *, by: Sequence[Dimension] = (), as_json: bool) -> None:
    """Show what happened in *period*, with its hours *by* some dimensions, and write all as a page to *output*."""
    made = read_report(period)
    if output is not None:
        write_output(output, page.page(made, page_origin()))
    if as_json:
        tables.print_json(document(made))
        return
    show(made, by)
    if not made.decisions and not made.run_count:
        tables.show(describe_location(load_configuration().store.url))
    if output is not None:
        tables.show(f"The page is {output}.")


def read_report(period: Period) -> Report:
    """Return the report of *period* from the store.

    Raises:
        RequestError: The caller may not read the store, or it cannot be read.
    """
    configuration = load_configuration()
    advisor = make_advisor()
    prices = site_prices(advisor.catalogue)
    origins = origins_of(period.user) if period.user else ()
    try:
        with closing(open_store(configuration.store.url)) as store:
            records = store.since(period.previous_since_s, origins)
            observations = store.usage(since_s=period.previous_since_s, user=user_name(period.user) or None)
    except (GpuUsageError, OSError) as error:
        message = (
            f"The store of decisions must be readable; got: {error} Run this as root or as the daemon's user; for your "
            "own jobs, gpusage decisions --user NAME asks the workload manager."
        )
        raise RequestError(message) from error
    managers = () if prices else dict.fromkeys(each.usage.manager for each in observations)
    rates = rates_of(prices, _clusters(advisor, managers))
    rules = ReportRules(
        least_sampled_s=configuration.learning.least_sampled_s,
        sharing=configuration.sharing,
        find_gpu=partial(_find_gpu, advisor.catalogue),
    )
    return report_of(records, observations, rates, period, rules)


def _find_gpu(catalogue: Catalogue, name: str) -> Gpu | None:
    """Return the row of the GPU that a node named; ``None`` where it is in no catalogue."""
    try:
        return catalogue.find(name)
    except DeviceError:
        return None


def _clusters(advisor: Advisor, managers: Iterable[str]) -> Iterator[Cluster]:
    """Yield the clusters of *managers* that this host can ask."""
    for manager in managers:
        with suppress(GpuUsageError):
            cluster = advisor.hooks.observe_cluster(manager, advisor.context(manager))
            if cluster is not None:
                yield cluster


def document(made: Report) -> dict[str, Any]:
    """Return *made* as JSON."""
    fields: dict[str, Any] = msgspec.to_builtins(made)
    return {"schema": SCHEMA, **fields}


def show(made: Report, by: Sequence[Dimension] = ()) -> None:
    """Print *made* for people."""
    tables.show_title(lines.title(made))
    for section in lines.sections(made, by):
        tables.show("")
        tables.show_title(section.title)
        if section.rows:
            first, *rest = section.columns
            rows = [[visible(cell) for cell in row] for row in section.rows]
            tables.show_rows([tables.Column(first, is_left=True), *map(tables.Column, rest)], rows)
        tables.show(*section.notes)
