"""`gpusage report`: the store's decisions and usage of a time, as text, as JSON, and as a page."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
from click.core import ParameterSource

from gpusage.boundary.printable_text import visible
from gpusage.cli import tables
from gpusage.cli.cluster_file import find_cluster
from gpusage.cli.decisions import origins_of, user_name
from gpusage.cli.predicting.money import prices_per_hour
from gpusage.cli.user_file import page_origin, require_readable, write_output
from gpusage.decisions.advisor import make_advisor
from gpusage.plugins.loading import installed_managers
from gpusage.reports import lines, page, past_jobs
from gpusage.reports.amounts import Rates, rates_of
from gpusage.reports.breakdown import Dimension
from gpusage.reports.brief import brief
from gpusage.reports.reading import rules_of
from gpusage.reports.report import Period, Report, finished, period_of_month, report_of
from gpusage.reports.user_text import Writing, user_text
from gpusage.service.daily_reports import reader_of
from gpusage.settings.configuration_file import load_configuration
from gpusage.store.opening import describe_location, open_store
from gpusage.store.rows import Observation
from gpusage_hooks.errors import GpuUsageError, RequestError

Form = Literal["text", "json"]
SCHEMA = "gpusage.report/1"
EPOCH_YEAR = 1970


def report(jobs_file: Path | None, cluster_file: Path | None, **how: Any) -> None:
    """Show what happened by the store, or with *jobs_file* by what a workload manager's accounting printed."""
    context = click.get_current_context()
    set_options = {name for name in how if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if jobs_file is None and cluster_file is None:
        report_store(**how)
    elif jobs_file is None or set_options - {"forms", "by"} or "text" in how["forms"]:
        message = (
            "Option '--cluster' must come with '--from', which takes only '--by' and '--json'. Leave the others out."
        )
        raise click.UsageError(message)
    else:
        show_past_jobs(jobs_file, cluster_file, by=how["by"], as_json="json" in how["forms"])


def report_store(
    since_s: float, month: str | None, user: str, by: Sequence[Dimension], output: Path | None, forms: Sequence[Form]
) -> None:
    """Show what happened in the last *since_s* seconds, or in *month*, such as ``2026-10``."""
    now_s = time.time()
    if month is None:
        period = Period(since_s=now_s - since_s, until_s=now_s, user=user)
    elif click.get_current_context().get_parameter_source("since_s") is ParameterSource.COMMANDLINE:
        message = "Option '--month' must be without '--since'; got both. Leave one of them out."
        raise click.UsageError(message)
    else:
        match = re.fullmatch(r"(\d{4})-(0[1-9]|1[0-2])", month)
        is_month = match is not None and int(match[1]) > EPOCH_YEAR
        read = period_of_month(int(match[1]), int(match[2]), now_s) if match and is_month else None
        if read is None or read.since_s >= now_s:
            message = f"Option '--month' must be a month that has begun, such as 2026-10; got {month!r}. Change it."
            raise click.UsageError(message)
        period = replace(read, user=user)

    if "text" in forms:
        if not user or output is not None or by or "json" in forms:
            message = (
                "Option '--text' must come with '--user' and without '--by', '-o' and '--json'. Name the user, and "
                "leave the other options out."
            )
            raise click.UsageError(message)
        show_user_text(period)
    else:
        show_report(period, output, by=by, as_json="json" in forms)


def show_past_jobs(
    jobs_file: Path, cluster_file: Path | None, *, by: Sequence[Dimension] = (), as_json: bool = False
) -> None:
    """Show what the jobs of *jobs_file* held, and what shares would have freed on the cluster of *cluster_file*.

    Raises:
        RequestError: A file cannot be read or understood, or no cluster is named and none is here.
    """
    configuration = load_configuration()
    advisor = make_advisor().configured(configuration)
    jobs = advisor.hooks.read_past_jobs(str(jobs_file))
    if jobs is None:
        require_readable(jobs_file, "File")
        rule = "be what a workload manager's accounting printed"
        message = f"File {str(jobs_file)!r} must {rule}; got another. docs/admin.md has the command."
        raise RequestError(message)

    managers = installed_managers()
    cluster, origin = find_cluster(advisor, next(iter(managers.values())), cluster_file)
    if origin == "example":
        message = f"Option '--cluster' must name the file of the jobs' cluster; got none. {cluster.notes[0]}"
        raise RequestError(message)

    runs = past_jobs.runs_of(jobs, cluster)
    ends_s = [each.usage.ended_at_s for each in runs] or [0.0]
    period = Period(since_s=min(ends_s), until_s=max(ends_s))
    rules = rules_of(configuration, advisor.catalogue)
    made, left_out = report_of([], runs, Rates(), period, rules), past_jobs.left_out_counts(jobs)
    notes = [*past_jobs.file_notes(made, runs, cluster, managers.get(cluster.manager))]
    if as_json:
        tables.print_json(document(made) | {"notes": notes, "left_out": left_out})
    else:
        show_sections(lines.title(made), past_jobs.past_sections(made, notes, left_out, by))


def show_user_text(period: Period) -> None:
    """Print what the jobs of the period's user used, and one line to change, as the text of an e-mail."""
    made, observations = read_report(period, with_runs=True)
    configuration = load_configuration()
    writing = Writing(
        managers_of_scripts=[name for name, manager in installed_managers().items() if manager.directive],
        learns=configuration.learning.capture != "off",
    )
    click.echo(user_text(made, observations, writing, configuration.learning.least_sampled_s))


def show_report(period: Period, output: Path | None, *, by: Sequence[Dimension] = (), as_json: bool) -> None:
    """Show what happened in *period*, with its hours *by* some dimensions, and write all as a page to *output*."""
    made, _ = read_report(period)
    if output is not None:
        write_output(output, page.page(made, page_origin(), by))
    if as_json:
        tables.print_json({"schema": SCHEMA, "in_short": brief(made).notes, **document(made)})
        return

    show_sections(lines.title(made), (brief(made), *lines.sections(made, by)))
    # An empty report most often is of the wrong store.
    if not made.decisions and not made.run_count:
        tables.show(describe_location(load_configuration().store.url))


def read_report(period: Period, *, with_runs: bool = False) -> tuple[Report, Sequence[Observation]]:
    """Return the report of *period* from the store, and *with_runs* the runs that it is of, the newest first.

    Raises:
        RequestError: The caller may not read the store, or it cannot be read.
    """
    configuration = load_configuration()
    advisor = make_advisor().configured(configuration)
    prices = prices_per_hour(advisor.catalogue)
    runs = list[Observation]()
    gc.disable()  # records have no cycles, and to look for some takes a tenth of the time
    try:
        with closing(open_store(configuration.store.url)) as store:
            reader = replace(
                reader_of(store, advisor, configuration),
                user=user_name(period.user),
                origins=origins_of(period.user) if period.user else (),
            )
            mixed = store.mixed_clusters()
            # The report compares the two.
            before = reader.read(period.previous_since_s, period.since_s)
            part = replace(reader, see=runs.extend if with_runs else reader.see).read(period.since_s, period.until_s)
    except (GpuUsageError, OSError) as error:
        message = (
            f"The store of decisions must be readable; got: {error} Run this as root or as the daemon's user; for your "
            "own jobs, gpusage decisions --user NAME asks the workload manager."
        )
        raise RequestError(message) from error
    finally:
        gc.enable()

    # They show the capacity and, where there are no prices, what the managers bill for an hour.
    clusters = []
    for manager in installed_managers():
        with suppress(GpuUsageError):  # this host may not be able to ask it
            cluster = advisor.hooks.observe_cluster(manager, advisor.context(manager))
            clusters += [cluster] if cluster is not None else []

    made = finished(part, before if before.run_count else None, rates_of(prices, clusters), period)
    troubles = tuple(dict.fromkeys((*part.unaccounted, *before.unaccounted)))
    runs.sort(key=lambda each: each.usage.ended_at_s, reverse=True)
    made = msgspec.structs.replace(
        made,
        unaccounted=troubles,
        mixed_clusters=mixed,
        gpu_count=sum(pool.gpu_count for cluster in clusters for pool in cluster.pools),
        mode=configuration.mode,
        enforce_in=configuration.enforce_in,
    )
    return made, runs


def document(made: Report) -> dict[str, Any]:
    """Return *made* as JSON, the long tables by group last."""
    fields: dict[str, Any] = msgspec.to_builtins(made)
    # What sums of parts need, and nobody else.
    del fields["stays"]
    for row in fields["trueness"]:
        del row["ratios"]
    groups = fields.pop("groups")
    return {"schema": SCHEMA, **fields, "groups": groups}


def show_sections(title: str, sections: Iterable[lines.Section]) -> None:
    """Print a *title* and the *sections* below it."""
    tables.show_title(title)
    for section in sections:
        tables.show("")
        tables.show_title(section.title)
        if section.rows:
            rows = [[visible(cell) for cell in row] for row in section.rows]
            tables.show_rows(tables.columns(*section.columns), rows)

        tables.show(*section.notes)
