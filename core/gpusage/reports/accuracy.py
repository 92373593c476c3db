"""Accuracy of promises, predictions and histories, from observed runs.

A node observes no step time, so this module has none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import quantiles
from typing import ClassVar, Literal

import msgspec
from msgspec.structs import replace

from gpusage.experience.runs import model_runs
from gpusage.experience.trust import PARTNERS, TIMING, history_checks, promise_held
from gpusage.reports.amounts import had_share, was_share_withheld
from gpusage.reports.joining import grouped
from gpusage.store.annotation import UNNAMED
from gpusage.store.rows import Observation
from gpusage_hooks.types import Code, DecisionRecord, Interval
from gpusage_hooks.units import WHOLE_PERCENT

RULE = (
    "A promise is broken if a job ran out of memory, used more memory than its share booked, or took longer than "
    f"{PARTNERS:g} (partners) times {TIMING:g} (timing) times the worst price. It is kept if durations show that, or "
    "if the share had idle time. It is unknown if too few runs of the same job on that day have the same length."
)


Promised = tuple[Observation, bool | None]
"""A run with a decided share, and whether its promise held; ``None`` is unknown."""


class Promises(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of promises by outcome."""

    fulfilled: int = 0
    broken: int = 0
    unknown: int = 0


def count_promises(promised: Iterable[Promised]) -> tuple[Promises, Promises]:
    """Count the promises of enforced shares, and of shares that the site's mode withheld."""
    enforced, withheld = Counter[bool | None](), Counter[bool | None]()
    for observed, is_held in promised:
        # A job that was rescued runs on a whole GPU: it has no share and no promise any more.
        if had_share(observed):
            enforced[is_held] += 1
        if was_share_withheld(observed):
            withheld[is_held] += 1

    return (
        Promises(fulfilled=enforced[True], broken=enforced[False], unknown=enforced[None]),
        Promises(fulfilled=withheld[True], broken=withheld[False], unknown=withheld[None]),
    )


def runs_with_promise(observations: Sequence[Observation], least_s: float) -> Iterator[Promised]:
    """Yield each run with a decided share, and whether its promise held; ``None`` is unknown."""
    runs = [*model_runs(observations, least_s)]

    # A promise is checked against the other runs of the same job, the oldest first as `promise_held` expects.
    jobs = grouped((run.job, run) for _, run in sorted(runs, key=lambda pair: pair[1].ended_at_s))
    for observed, run in runs:
        if run.promised_slowdown is not None:
            yield observed, promise_held(run, jobs[run.job])


Figure = Literal["memory", "utilization"]


class PredictionAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy of the predictions of a figure.

    Attributes:
        ratio: Median of observed over predicted.
        ratio_low: Lower quartile.
        ratio_high: Upper quartile.
        inside_count: Runs inside their interval.
        interval_count: Runs whose interval was predicted for the share that they ran on.
        ratios: Number of runs by their ratio, of which the quartiles are; empty in a finished report.
    """

    KEY: ClassVar = ("family", "gpu", "figure")
    family: str
    gpu: str
    figure: Figure
    run_count: int
    ratio: float = 0.0
    ratio_low: float = 0.0
    ratio_high: float = 0.0
    inside_count: int
    interval_count: int
    ratios: Mapping[str, int] = msgspec.field(default_factory=dict)


def prediction_accuracy(observations: Iterable[Observation], least_s: float) -> tuple[PredictionAccuracy, ...]:
    """Compare predictions with observations by model family, GPU and figure."""
    ratios: dict[tuple[str, str, Figure], list[float]] = defaultdict(list)
    inside: dict[tuple[str, str, Figure], list[bool]] = defaultdict(list)
    for observed, run in model_runs(observations, least_s):
        need = observed.decision.decision.need if observed.decision else None
        # A job may land on another GPU than the prediction is for.
        if need is None or need.gpu != run.gpu:
            continue

        figures: list[tuple[Figure, float, float, Interval | None]] = []
        # A run that lacked memory shows its limit, not its need.
        if run.memory_bytes and not run.out_of_memory and need.memory_bytes.value > 0:
            figures.append(("memory", run.memory_bytes, need.memory_bytes.value, need.memory_bytes))
        # On a share, partners change the utilization. The interval of a share does not hold for a whole GPU.
        if run.utilization and run.predicted_utilization and run.share_percent == WHOLE_PERCENT:
            interval = need.gpu_utilization if need.share_percent == run.share_percent else None
            figures.append(("utilization", run.utilization, run.predicted_utilization, interval))

        for figure, value, predicted, interval in figures:
            key = (run.identity.family, run.gpu, figure)
            ratios[key].append(value / predicted)
            if interval is not None:
                inside[key].append(interval.low <= value <= interval.high)

    return tuple(_accuracy(key, ratios[key], inside[key]) for key in sorted(ratios))


def _accuracy(key: tuple[str, str, Figure], ratios: Sequence[float], inside: Sequence[bool]) -> PredictionAccuracy:
    family, gpu, figure = key
    alone = PredictionAccuracy(
        family=family,
        gpu=gpu,
        figure=figure,
        run_count=len(ratios),
        inside_count=sum(inside),
        interval_count=len(inside),
        ratios=Counter(f"{ratio:.4g}" for ratio in ratios),
    )
    return with_quartiles(alone)


def with_quartiles(accuracy: PredictionAccuracy) -> PredictionAccuracy:
    """Return *accuracy* with the quartiles of its ratios."""
    ratios = [float(text) for text in Counter(accuracy.ratios).elements()]
    # `quantiles` needs two values; inclusive, because these runs are all runs of the period and no sample of them.
    low, middle, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return replace(accuracy, ratio=middle, ratio_low=low, ratio_high=high)


class UnnamedJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of jobs that name no model, and of their checked runs.

    Attributes:
        jobs: Jobs without a model's name.
        estimated: Jobs whose history gave an estimate.
        shares: Jobs with a share from this estimate.
        withheld: Jobs whose share the site's mode withheld.
        checked: Runs with an earlier estimate.
        held: Checked runs that stayed below all upper ends.
    """

    jobs: int = 0
    estimated: int = 0
    shares: int = 0
    withheld: int = 0
    checked: int = 0
    held: int = 0


def count_unnamed_jobs(
    records: Sequence[DecisionRecord], observations: Sequence[Observation], least_s: float
) -> UnnamedJobs:
    """Count the jobs of *records* that name no model, and the checked runs in *observations*.

    Args:
        records: Decisions of a period.
        observations: Runs of the same period.
        least_s: A run with less sampled time shows nothing, as in `history_checks`.
    """
    # A decision has estimates from history or says that no model was named; both are jobs without a name.
    jobs = [record for record in records if record.history_estimates or UNNAMED in record.decision.reasons]
    # A rewrite in another mode than enforce was only advised or recorded.
    rewritten = [record for record in jobs if record.decision.code is Code.REWRITE]
    shares = sum(record.mode == "enforce" for record in rewritten)

    checks = [*history_checks(observations, least_s)]
    return UnnamedJobs(
        jobs=len(jobs),
        estimated=sum(bool(record.history_estimates) for record in jobs),
        shares=shares,
        withheld=len(rewritten) - shares,
        checked=len(checks),
        held=sum(check.held for check in checks),
    )
