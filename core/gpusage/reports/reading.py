"""Reads a period of a store a few hundred runs at a time, and adds it up: memory does not grow with the jobs.

Invariants:

1. A chunk has whole jobs of one span, so that each job counts once in it. A job that runs again on another day counts
   on each of its days. Jobs of one user are side by side: a promise is checked by runs like it in the same chunk.
2. A whole day that gpusaged has added up is read as one row; see `gpusage.service.daily_reports`.
3. A run counts where its node saw it end, also where the accounting has another time for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256

import msgspec

from gpusage.decisions.advisor import Advisor
from gpusage.devices.catalogue import Catalogue
from gpusage.plugins.loading import installed_managers
from gpusage.reports.breakdown import USUAL_RULES, ReportRules
from gpusage.reports.jobs import with_accounting
from gpusage.reports.joining import grouped, joined
from gpusage.reports.report import Report, part_of
from gpusage.reports.summary import PartitionTally
from gpusage.settings.configuration import Configuration
from gpusage.store.decisions import DecisionStore
from gpusage.store.rows import Observation, UsageQuery
from gpusage_hooks.errors import DeviceError, GpuUsageError
from gpusage_hooks.types import Gpu, Usage
from gpusage_hooks.units import DAY_S

CHUNK_RUNS = 500
EDGE_S = 900.0
"""Clocks of a node and of the accounting may differ by as much."""
FEW_RUNS, MANY_RUNS = 5_000, 20_000
"""A span with fewer is followed by one twice as long, and one with more by one half as long: the accounting takes a
second to answer at all, and its rows are all in memory."""
JOINED_PARTS = 32

Accounting = Callable[[float, float], tuple[Sequence[Usage], tuple[str, ...]]]
"""From two times to the managers' own rows of the runs that ended between, and why some could not be read."""


def no_accounting(_: float, __: float) -> tuple[Sequence[Usage], tuple[str, ...]]:
    """Know no rows."""
    return (), ()


def read_accounting(since_s: float, until_s: float, advisor: Advisor) -> tuple[Sequence[Usage], tuple[str, ...]]:
    """Return what managers' accounting has from *since_s* to *until_s*, and why some of it could not be read."""
    accounted, troubles = list[Usage](), list[str]()
    for manager in installed_managers():
        context = advisor.context(manager)
        try:
            accounted += advisor.hooks.read_accounting(manager, since_s, until_s, context) or ()
        except GpuUsageError as error:
            troubles.append(str(error))
    return accounted, tuple(troubles)


def rules_of(configuration: Configuration, catalogue: Catalogue) -> ReportRules:
    """Return the rules of a site's reports; a GPU that is not in *catalogue* has no prices of shares."""

    # Of a name that it lacks, the catalogue looks for the nearest one, which takes ten milliseconds.
    @lru_cache(maxsize=1024)
    def find_gpu(name: str) -> Gpu | None:
        try:
            return catalogue.find(name)
        except DeviceError:
            return None

    least_s = configuration.learning.least_sampled_s
    return ReportRules(least_sampled_s=least_s, sharing=configuration.sharing, find_gpu=find_gpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads parts of reports from *store*.

    Attributes:
        user: Name in usage of the only user; empty for everybody.
        origins: Names of this user in decisions.
        see: Is called with each chunk of runs.
    """

    store: DecisionStore
    rules: ReportRules = USUAL_RULES
    accounting: Accounting = no_accounting
    user: str = ""
    origins: Sequence[str] = ()
    see: Callable[[Sequence[Observation]], object] = field(default=lambda _: None)

    @property
    def form(self) -> str:
        """Return a digest of what a kept day depends on: the fields of a report, and the rules."""
        rules = repr((self.rules.sharing, self.rules.least_sampled_s))
        return sha256(msgspec.json.encode((msgspec.json.schema(Report), rules))).hexdigest()[:16]

    def read(self, since_s: float, until_s: float) -> Report:
        """Return the part of a report on what ended from *since_s* until before *until_s*.

        Raises:
            StoreError: The store cannot be read.
        """
        noted = {f"{day_s:.0f}": count for day_s, count in self.store.gpu_counts(since_s, until_s).items()}
        return msgspec.structs.replace(_sum(self._parts(since_s, until_s), self.rules), day_gpu_counts=noted)

    def read_span(self, since_s: float, until_s: float) -> tuple[Report, int]:
        """Return the same from the runs themselves, and how many rows were read for it at most at a time."""
        jobs = self.store.runs_between(since_s - EDGE_S, until_s + EDGE_S, self.user)
        accounted, troubles = self.accounting(since_s - EDGE_S, until_s + EDGE_S)
        own = (usage for usage in accounted if self.user in ("", usage.user))
        books = grouped(((usage.manager, usage.job_id), usage) for usage in own)

        def parts() -> Iterator[Report]:
            for records in self.store.between(since_s, until_s, self.origins):
                yield part_of(records, [], self.rules)
            everything = [*jobs, *sorted({*books} - {*jobs})]
            for keys in _chunks(everything, lambda key: len(jobs.get(key, ())) + len(books.get(key, ()))):
                seen = self.store.usage(UsageQuery(ids=[row for key in keys for row in jobs.get(key, ())]))
                rows = [usage for key in keys for usage in books.get(key, ())]
                runs = with_accounting(seen, rows, self.store.find)
                runs = tuple(each for each in runs if since_s <= each.usage.ended_at_s < until_s)
                self.see(runs)
                yield part_of([], runs, self.rules)

        part = msgspec.structs.replace(_sum(parts(), self.rules), unaccounted=troubles)
        return part, max(len(accounted), sum(map(len, jobs.values())))

    def _parts(self, since_s: float, until_s: float) -> Iterator[Report]:
        at_s, step_s, form = since_s, DAY_S, self.form
        while at_s < until_s:
            # Of one user, no day is kept.
            day = None if self.user or at_s % DAY_S or at_s + DAY_S > until_s else self.read_day(at_s, form)
            if day is not None:
                yield day
                at_s += DAY_S
                continue

            # To the end of its day, and from there on in whole days.
            end_s = min((at_s // DAY_S + max(step_s // DAY_S, 1)) * DAY_S, until_s)
            part, count = self.read_span(at_s, end_s)
            yield part
            at_s = end_s
            step_s = 2 * step_s if count < FEW_RUNS else step_s / 2 if count > MANY_RUNS else step_s

    def partitions_of_days(self, since_s: float, until_s: float) -> tuple[int, tuple[PartitionTally, ...]]:
        """Return on how many whole days of a time a row is kept, and what their jobs show; it reads no runs.

        Raises:
            StoreError: The store cannot be read.
        """
        form, numbers = self.form, range(int(since_s // DAY_S), int(until_s // DAY_S))
        tables = [day.partitions for number in numbers if (day := self.read_day(number * DAY_S, form)) is not None]
        return len(tables), joined([(), *tables])

    def read_day(self, day_s: float, form: str) -> Report | None:
        """Return the part of a report that is kept, in *form*, of the day that begins at *day_s*."""
        text = self.store.day(day_s, form)
        try:
            return None if text is None else msgspec.json.decode(text, type=Report)
        except msgspec.MsgspecError:  # damaged
            return None


def _sum(parts: Iterable[Report], rules: ReportRules) -> Report:
    sums = [part_of([], [], rules)]
    for part in parts:
        sums.append(part)
        if len(sums) == JOINED_PARTS:
            sums = [joined(sums)]
    return joined(sums)


def _chunks(
    keys: Iterable[tuple[str, str]], count_of: Callable[[tuple[str, str]], int]
) -> Iterator[Sequence[tuple[str, str]]]:
    chunk, count = list[tuple[str, str]](), 0
    for key in keys:
        chunk.append(key)
        count += count_of(key)
        if count >= CHUNK_RUNS:
            yield chunk
            chunk, count = [], 0
    if chunk:
        yield chunk
