"""A user's jobs as the text of an e-mail: their usage, and one line to change.

Invariants:

1. At most `MOST_LINES` lines of at most `WIDTH` printable characters.
2. One line to change, for the job with the most idle GPU hours among the jobs with a possible change.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpusage.boundary.printable_text import shortened, visible
from gpusage.experience import finished_jobs
from gpusage.reports.amounts import Amounts, amounts_of, total
from gpusage.reports.jobs import newest_seen, runs_by_job
from gpusage.reports.lines import amount, count_text, freed, idle_notes, slower
from gpusage.reports.report import Report
from gpusage.store.rows import Observation
from gpusage_hooks.units import percent

MOST_LINES, WIDTH = 25, 78
MOST_JOBS = 5
NOTHING = "None of your jobs held a GPU in this period."
UNKNOWN = "No job of yours was seen on a GPU, and the accounting cannot be read."


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A line for a user to write.

    Attributes:
        line: Line of the job's script, or request in words.
        notes: Sentences with the reason, and with other places for the line.
    """

    line: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """Ways in which a site's users can address gpusage.

    Attributes:
        managers_of_scripts: Workload managers whose job scripts gpusage reads.
        learns: Whether a job may let its own run show its model.
    """

    managers_of_scripts: Collection[str]
    learns: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    shown: Observation
    hours: Amounts

    @property
    def name(self) -> str:
        return shortened(visible(f"{self.shown.usage.job_id} {self.shown.usage.job_name}".strip()), 40)


def user_text(report: Report, observations: Sequence[Observation], writing: Writing, least_s: float) -> str:
    """Return the text of a user's *report*.

    Args:
        report: Report on this user's jobs alone.
        observations: The user's runs that ended in its period, the newest first.
        writing: Ways in which this site's users can address gpusage.
        least_s: A run with less sampled time shows nothing.
    """
    lines = [f"Your jobs on GPUs, {_day(report.since_s)} to {_day(report.until_s)}", ""]
    if not observations:
        return _text([*lines, UNKNOWN if report.unaccounted else NOTHING])

    lines += _sums(report)
    jobs = [
        _Job(shown=newest_seen(runs, least_s), hours=total(amounts_of(run, least_s) for run in runs))
        for runs in runs_by_job(observations)
    ]
    jobs = sorted((job for job in jobs if job.hours.idle), key=lambda job: (-job.hours.idle, job.shown.usage.job_id))
    if jobs:
        lines += ["", "The jobs with the most idle GPU hours:"]
        for job in jobs[:MOST_JOBS]:
            # Of the seen time alone: unseen hours are neither busy nor idle.
            busy = percent(job.hours.used / (job.hours.used + job.hours.idle))
            gpu = f" on {job.shown.usage.gpu}" if job.shown.usage.gpu else ""
            lines.append(f"  {job.name}{gpu}: {amount(job.hours.booked)} GPU hours, {busy} busy")

    # One change per mail: people make one, and skip a list.
    for job in jobs:
        change = change_of(job.shown, writing, least_s)
        if change is not None:
            heading = f"One line to change, for the next job like {job.name}:"
            return _text([*lines, "", heading, f"  {change.line}", *change.notes])
    return _text([*lines, "", "Nothing that was measured asks for a change."])


def _sums(report: Report) -> list[str]:
    hours, possible = report.hours, report.all_jobs.possible
    before = f", {amount(report.previous.hours.booked)} in the previous period" if report.previous else ""
    used = f"A kernel ran in {amount(hours.used)} of them and none in {amount(hours.idle)}"
    lines = [
        f"{count_text(report.all_jobs.job_count)} booked {amount(hours.booked)} GPU hours{before}.",
        f"{used}; {amount(hours.unseen)} were not seen.",
        *idle_notes(report),
    ]

    if report.totals.share_count:
        promises, gained = report.totals.promises, amount(hours.freed)
        held = f"{promises.fulfilled:,} kept their price, {promises.broken:,} did not"
        lines.append(f"{report.totals.share_count:,} had a part of a GPU: {held}; {gained} GPU hours freed.")

    if possible is not None:
        lines.append(f"{possible.job_count:,} more could have shared a GPU, longer by {slower(possible)},")
        lines.append(f"and freed {freed(possible, ' GPU hours')}.")
    return lines


def change_of(observed: Observation, writing: Writing, least_s: float) -> Change | None:
    """Return the change for the next job like this run; ``None`` where nothing is known to help."""
    usage, record = observed.usage, observed.decision
    utilization = finished_jobs.own_utilization(usage, least_s)
    if utilization is None:
        return None

    # From the most to the least certain: a GPU that hardly ran a kernel needs no share, and processors that are
    # busy explain a wait that no model can.
    if utilization < finished_jobs.UNUSED_BELOW:
        request = f" (it had {record.rendered.before})" if record else ""
        return Change(line=f"Ask for no GPU{request}.", notes=("It hardly used one.",))
    if finished_jobs.lacks_processors(usage, least_s):
        busy, waiting = percent(finished_jobs.processor_utilization(usage)), percent(1 - utilization)
        note = f"They were {busy} busy, and the GPU waited {waiting} of the time."
        return Change(line=f"Ask for more than {usage.cpus} processors.", notes=(note,))

    if record is not None and record.model is not None:
        key = finished_jobs.utilization_key(usage, record, least_s)
        line = _written(key, usage.manager, writing)
        note = "The job waits for its host, which its model cannot show; so it may get a part of a GPU."
        # A comment with a model takes precedence over the script's lines.
        elsewhere = (f"If its comment names its model, write it there: ,{key}",) if line.startswith("#") else ()
        is_helped = key and finished_jobs.describe_waiting(usage, least_s)
        return Change(line=line, notes=(*elsewhere, note)) if is_helped else None

    keys = "learn=on" if writing.learns else "model=FILE,batch=N"
    note = "Then its later runs can get as much of a GPU as its model needs."
    return Change(line=_written(keys, usage.manager, writing), notes=(note,))


def _written(keys: str, manager: str, writing: Writing) -> str:
    """Return *keys* as a line of a job script of *manager*, or as options of its command."""
    if manager in writing.managers_of_scripts:
        return f"#GPUSAGE {keys}"
    return " ".join(f"--{key}".removesuffix("=on") for key in keys.split(","))


def _text(lines: Sequence[str]) -> str:
    # Names of jobs and models are their users' words, and a mail is read in a terminal.
    return "\n".join(shortened(visible(line), WIDTH) for line in lines[:MOST_LINES])


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))
