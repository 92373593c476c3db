"""gpusaged's metric families for Prometheus: the unit and ``_total`` last in each name, no user's name anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import accumulate

from msgspec.structs import astuple
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from gpusage.reports.amounts import Amounts
from gpusage.service.counters import BOUNDS_S, AnswerCounters, Labels, RunCounters
from gpusage.service.metrics.sources import MetricSources
from gpusage_hooks.units import HOUR_S

Counts = Mapping[Labels, float]
AMOUNTS = {
    "requested": "as their users requested them",
    "booked": "as granted, a share as its part",
    "used": "with a kernel running",
    "idle": "without a kernel running",
    "unseen": "for which it is unknown whether a kernel ran",
}


class MetricsCollector(Collector):
    """Collects the counts of *sources*, as they are at each scrape."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        yield InfoMetricFamily("gpusage_build", "gpusage's version.", {"version": version("gpusage")})
        yield from _answer_families(self._sources.request_handler.tally)
        yield from _failure_families(self._sources)
        yield from _run_families(self._sources.runs)


def _answer_families(tally: AnswerCounters) -> Iterator[Metric]:
    names = ("manager", "code", "mode")
    yield _labelled_counter("gpusage_decisions", "Decisions on jobs.", names, dict(tally.decisions))
    counts = accumulate([*tally.durations.counts])
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    what = "Time from an incoming question to its answer."
    durations = HistogramMetricFamily("gpusage_answer_duration_seconds", what)
    durations.add_metric([], [*zip(bounds, counts, strict=True)], tally.durations.sum_s)
    yield durations


def _failure_families(sources: MetricSources) -> Iterator[Metric]:
    counts, records, jobs = sources.request_handler.counts, sources.recorder.counts, sources.job_monitor.status()
    yield _counter("gpusage_answers_overdue", "Answers without a decision, for lack of time.", counts.overdue)
    yield _counter(
        "gpusage_answers_failed", "Answers without a change because of an error in gpusage or a plugin.", counts.failed
    )
    missed: Counts = {(reason,): count for reason, count in sources.request_handler.missed.items()}
    yield _labelled_counter(
        "gpusage_answers_missed", "Jobs left unchanged without an answer, as clients report.", ("reason",), missed
    )
    yield _counter("gpusage_records_written", "Decisions written to the store.", records.written)
    yield _counter("gpusage_records_lost", "Decisions that could not be written.", records.lost)
    yield _counter("gpusage_jobs_turned_back", "Rewritten jobs that got their own request back.", jobs["turned_back"])
    yield _counter("gpusage_jobs_requeued", "Jobs that ran again, on a whole GPU for lack of memory.", jobs["requeued"])


def _run_families(tally: RunCounters) -> Iterator[Metric]:
    yield _labelled_counter(
        "gpusage_runs_observed", "Runs that nodes reported.", ("manager", "outcome"), dict(tally.runs)
    )
    promises: Counts = {(result,): tally.promises[result] for result in ("fulfilled", "broken", "unknown")}
    yield _labelled_counter("gpusage_promises", "Shares by whether their promise was fulfilled.", ("result",), promises)
    hours = dict(tally.hours)
    for position, (name, what) in enumerate(AMOUNTS.items()):
        seconds: Counts = {(gpu,): HOUR_S * _amount(amounts, position) for gpu, amounts in hours.items()}
        yield _labelled_counter(f"gpusage_gpu_{name}_seconds", f"GPU time of runs {what}.", ("gpu",), seconds)


def _amount(amounts: Amounts, position: int) -> float:
    value: float = astuple(amounts)[position]
    return value


def _counter(name: str, help_text: str, count: float) -> Metric:
    return CounterMetricFamily(name, help_text, value=count)


def _labelled_counter(name: str, help_text: str, labels: Labels, counts: Counts) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family
