"""`gpusage decisions`: what was done to a job, and why.

Two know something: the workload manager, whose job carries a mark, and the store, whose record has all. Each is asked
as far as the caller may read it.
"""

from __future__ import annotations

import csv
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import groupby
from pathlib import Path

import click

from gpusage.boundary.printable_text import one_line, visible
from gpusage.cli import tables
from gpusage.cli.decision_lines import document, lines
from gpusage.decisions.advisor import make_advisor
from gpusage.experience.pair_rows import PAIR_COLUMNS, pair_rows
from gpusage.experience.profile_rows import COLUMNS, Cell, profile_row
from gpusage.plugins.loading import installed_managers
from gpusage.reports.joining import grouped
from gpusage.settings.configuration_file import load_configuration, read_configuration
from gpusage.store.annotation import parse_annotation
from gpusage.store.decisions import DecisionStore
from gpusage.store.opening import describe_location, open_store
from gpusage.store.rows import UsageQuery
from gpusage_hooks.errors import GpuUsageError, PluginError, RequestError
from gpusage_hooks.types import AnnotatedJob, DecisionRecord, JobState, Usage

Row = Mapping[str, Cell]
_FORMULA = ("=", "+", "-", "@")


def write_profiles(folder: Path) -> None:
    """Write one table per GPU, and one of pairs, into *folder*, in place of those that were written before.

    Raises:
        GpuUsageError: The store cannot be read, or the folder not be written.
    """
    configuration = load_configuration()
    with closing(open_store(configuration.store.url)) as store:
        observations = store.usage()
    least_s = configuration.learning.least_sampled_s
    pairs = list(pair_rows(observations, least_s))
    rows = (profile_row(each.usage, each.decision, least_s) for each in observations if each.decision)
    by_gpu = grouped((str(row["gpu"]), row) for row in rows if row is not None)

    try:
        (folder / "profile").mkdir(parents=True, exist_ok=True)
        _write_table(folder / "pairs.csv", PAIR_COLUMNS, pairs)
        for gpu, of_gpu in by_gpu.items():
            # A GPU's name is perhaps a driver's, with signs that no file name should have.
            name = re.sub(r"[^\w.-]|_", "-", gpu)
            _write_table(folder / "profile" / f"site-{name}.csv", COLUMNS, of_gpu)
    except OSError as error:
        message = f"Folder {str(folder)!r} must be one that you may write; got: {error}. Name another one."
        raise RequestError(message) from error

    count = sum(map(len, by_gpu.values()))
    tables.show(f"{count} of {len(observations)} runs were alone on a whole GPU: {count} rows in {folder / 'profile'}.")
    tables.show(f"{len(pairs)} ran beside one other, and their scripts also alone: rows in {folder / 'pairs.csv'}.")


def _write_table(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _harmless(cell) for name, cell in row.items()} for row in rows)


def _harmless(cell: Cell) -> Cell:
    """Return *cell* without what acts on a terminal, or on a spreadsheet, which reads ``=1+1`` as a formula."""
    if not isinstance(cell, str):
        return cell
    text = visible(cell)
    return f"'{text}" if text.startswith(_FORMULA) else text


SCHEMA = "gpusage.decisions/1"
USUAL_COUNT = 20


def decisions(job_id: str, count: int | None, user: str, profile_folder: Path | None, *, as_json: bool) -> None:
    """Show what was done to a job, and why; without a job, what was decided last."""
    if profile_folder is not None:
        if job_id or count or user or as_json:
            message = "--as-profile writes all that the store has; leave out JOBID, --last, --user and --json."
            raise click.UsageError(message)
        write_profiles(profile_folder)
        return
    if job_id and (count or user):
        message = "JOBID names one job; leave out --last and --user."
        raise click.UsageError(message)

    entries = of_job(job_id) if job_id else latest(count or USUAL_COUNT, user)
    if as_json:
        documents = [{**document(job, record, runs), "job_ids": ids} for job, record, runs, ids in entries]
        tables.print_json({"schema": SCHEMA, "decisions": documents})
        return

    if not entries:
        where = "" if job_id or user else f" {describe_location(load_configuration().store.url)}"
        tables.show(f"No decision yet.{where}")
    for entry in entries:
        tables.show(*lines(*entry))


JobHistory = tuple[AnnotatedJob | None, DecisionRecord | None, tuple[Usage, ...], tuple[str, ...]]
"""A job, what was decided of it, what its runs really did, and the ids of all jobs that this was decided of, as far as
each is known. Tasks of an array have one decision."""


def of_job(job_id: str) -> tuple[JobHistory, ...]:
    """Return the jobs with this id, each with its record where the caller may read it.

    Raises:
        RequestError: No workload manager here knows the job, and the store has no run of it.
    """
    failure: GpuUsageError | None = None
    try:
        jobs = _managed_jobs(job_id=job_id, user="")
    except GpuUsageError as error:
        jobs, failure = [], error
    entries = tuple(_with_records(jobs)) or tuple(_long_ago(job_id))
    if not entries:
        message = (
            f"Job {job_id!r} must be one that a workload manager here remembers, or whose run the store has; it is "
            "neither. Check the id; the store of others' jobs is read by root and the daemon's user."
        )
        raise failure or RequestError(message)
    return entries


def _long_ago(job_id: str) -> Iterator[JobHistory]:
    """Yield what the store has of a job that no manager remembers; nothing where the caller may not read it."""
    with suppress(GpuUsageError, OSError), closing(_store()) as store:
        # By manager an index finds the job. A number that was used again has a decision for each job.
        for manager in installed_managers():
            runs = store.usage(UsageQuery(manager=manager, job_id=job_id))[::-1]
            for _, of_job in groupby(runs, key=lambda each: each.usage.number):
                observed = [*of_job]
                if observed[-1].decision is not None:
                    yield None, observed[-1].decision, tuple(each.usage for each in observed), (job_id,)


def present(state: JobState) -> tuple[tuple[AnnotatedJob, DecisionRecord | None], ...]:
    """Return the jobs that wait or run now and carry our mark, as their managers show them to the caller.

    Returns:
        Each with its record, ``None`` where the caller may not read it.

    Raises:
        RequestError: There are such jobs, and none of their records can be read.
    """
    jobs = [job for job in _managed_jobs(job_id="", user="") if job.state == state and parse_annotation(job.mark)]
    known = tuple((job, record) for job, record, *_ in _with_records(jobs) if job is not None)
    if known and not any(record for _, record in known):
        message = (
            f"Jobs that are {state} must have records that you may read; of {len(jobs)} none has. "
            "Run this as root or as the daemon's user."
        )
        raise RequestError(message)

    return known


def latest(count: int, user: str) -> tuple[JobHistory, ...]:
    """Return the last decisions, the newest first; of *user* alone where one is named.

    Raises:
        GpuUsageError: The store cannot be read, and the workload managers have nothing of the user's.
    """
    try:
        with closing(_store()) as store:
            records = store.latest(count, origins_of(user) if user else ())
            entries = tuple((record, _runs(store, record.number)) for record in records)
    except (GpuUsageError, OSError) as error:
        jobs = [job for job in _managed_jobs(job_id="", user=user) if parse_annotation(job.mark)] if user else []
        if not jobs:
            message = (
                f"The store of decisions must be readable; got: {error} Run this as root or as the daemon's user, "
                "or ask for one job: gpusage decisions JOBID."
            )
            raise RequestError(message) from error
        return tuple((job, None, (), ()) for job in jobs[-count:][::-1])

    # The managers are asked only for decisions whose jobs have not reported a run yet: they may take seconds.
    by_number = _jobs_by_number(user) if any(not runs for _, runs in entries) else {}
    histories: list[JobHistory] = []
    for record, runs in entries:
        # Any user may write another's number into the tags of a YARN application.
        jobs = [job for job in by_number.get(record.number, ()) if record.origin in origins_of(job.user)]
        ids = tuple(dict.fromkeys([*(job.job_id for job in jobs), *(run.job_id for run in runs)]))
        histories.append((jobs[0] if len(jobs) == len(ids) == 1 else None, record, runs, ids))
    return tuple(histories)


def _jobs_by_number(user: str) -> dict[str, list[AnnotatedJob]]:
    """Return the jobs that the workload managers remember, of *user* or of all, by the number of their record."""
    with suppress(GpuUsageError):  # the store has told of them already
        marks = ((parse_annotation(job.mark), job) for job in _managed_jobs(job_id="", user=user))
        return grouped((mark.number, job) for mark, job in marks if mark is not None and mark.number)
    return {}


def _managed_jobs(*, job_id: str, user: str) -> list[AnnotatedJob]:
    """Return the jobs that each workload manager remembers; a plugin at fault only gives a warning.

    Raises:
        GpuUsageError: A manager does not answer, and no other one has jobs.
    """
    advisor = make_advisor().configured(read_configuration()[0])
    jobs: list[AnnotatedJob] = []
    failures: list[GpuUsageError] = []
    for manager in advisor.settings:
        try:
            jobs += advisor.hooks.find_jobs(manager, job_id, user, advisor.context(manager)) or ()
        except PluginError as error:  # noqa: PERF203 - one at fault must not silence the others
            click.echo(one_line(f"gpusage: warning: {error}"), err=True)
        except GpuUsageError as error:
            failures.append(error)
    if failures and not jobs:
        raise failures[0]

    for failure in failures:  # a host may have two managers, and one of them may be down
        click.echo(one_line(f"gpusage: warning: {failure}"), err=True)
    return jobs


def _with_records(jobs: Iterable[AnnotatedJob]) -> Iterator[JobHistory]:
    """Yield each job with its record; for a record that cannot be read, the mark is shown."""
    # Who may not read the store still sees the marks of the jobs.
    store: DecisionStore | None = None
    with suppress(GpuUsageError):
        store = _store()
    for job in jobs:
        mark, record, runs = parse_annotation(job.mark), None, tuple[Usage, ...]()
        if mark is not None and mark.number and store is not None:
            with suppress(GpuUsageError, OSError):
                record = store.find(mark.number)
                runs = _runs(store, mark.number)
        yield job, record, tuple(run for run in runs if run.job_id == job.job_id), (job.job_id,)

    if store is not None:
        store.close()


def _runs(store: DecisionStore, number: str) -> tuple[Usage, ...]:
    """Return what the jobs with the record *number* did, the first run first; all tasks of an array have one number."""
    return tuple(observed.usage for observed in store.usage(UsageQuery(number=number))[::-1]) if number else ()


def _store() -> DecisionStore:
    return open_store(load_configuration().store.url)


def origins_of(user: str) -> tuple[str, ...]:
    """Return how records name *user*: by id if the manager gave one, else by name."""
    # Records name a user as the manager does, by id or by name.
    if user.isdigit():
        return (f"uid {user}",)
    try:
        return user, f"uid {pwd.getpwnam(user).pw_uid}"
    except KeyError:
        return (user,)


def user_name(user: str) -> str:
    """Return the name of *user*, as usage has it, where it is given as an id that this host knows."""
    try:
        return pwd.getpwuid(int(user)).pw_name if user.isdigit() else user
    except (KeyError, OverflowError):
        return user
