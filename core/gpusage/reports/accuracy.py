"""How well promises to shares, predictions and histories held, by the runs that were observed.

Step times are not observed on a node, so they are not here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Literal

import msgspec

from gpusage.experience.runs import Run, model_runs
from gpusage.experience.trust import PARTNERS, TIMING, history_checks, history_trust, promise_held
from gpusage.reports.amounts import had_share, was_share_withheld
from gpusage.store.annotation import UNNAMED
from gpusage.store.rows import Observation
from gpusage_hooks.types import Code, DecisionRecord, GpuNeed, Interval
from gpusage_hooks.units import WHOLE_PERCENT

RULE = (
    "A promise is broken if a job ran out of memory, used more memory than its share booked, or took longer than "
    f"{PARTNERS:g} (partners) times {TIMING:g} (timing) times the worst price. It is kept if durations show that, or "
    "if the share had idle time. It is unknown if too few runs of the same job have the same length."
)


class Promises(msgspec.Struct, frozen=True, kw_only=True):
    """How many promises there were."""

    fulfilled: int = 0
    broken: int = 0
    unknown: int = 0


def count_promises(observations: Sequence[Observation], least_s: float) -> tuple[Promises, Promises]:
    """Return the promises of the shares that were given, and of those that were not, by what whole runs show.

    A job that was rescued runs on a whole GPU and has no promise any more.
    """
    promised = [*runs_with_promise(observations, least_s)]
    of_shares = (held for observed, held in promised if had_share(observed))
    return _count_promises(of_shares), _count_promises(
        held for observed, held in promised if was_share_withheld(observed)
    )


def runs_with_promise(observations: Sequence[Observation], least_s: float) -> Iterator[tuple[Observation, bool | None]]:
    """Yield each run that a share was decided for, with whether its promise was kept, or would have been."""
    runs = [*model_runs(observations, least_s)]
    jobs: dict[object, list[Run]] = defaultdict(list)
    for _, run in sorted(runs, key=lambda pair: pair[1].ended_at_s):
        jobs[run.job].append(run)
    for observed, run in runs:
        if run.promised_slowdown is not None:
            yield observed, promise_held(run, jobs[run.job])


def _count_promises(outcomes: Iterable[bool | None]) -> Promises:
    counts = Counter(outcomes)
    return Promises(fulfilled=counts[True], broken=counts[False], unknown=counts[None])


Figure = Literal["memory", "utilization"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionAccuracy:
    """How close predictions of one figure came.

    Attributes:
        ratio: The middle of observed over predicted.
        ratio_low: A quarter of the runs is below this.
        ratio_high: A quarter of the runs is above this.
        inside_count: How many runs were inside the interval.
        interval_count: How many had one that was of what they ran as.
    """

    family: str
    gpu: str
    figure: Figure
    run_count: int
    ratio: float
    ratio_low: float
    ratio_high: float
    inside_count: int
    interval_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    ratio: float
    inside: bool | None


_Key = tuple[str, str, Figure]


def prediction_accuracy(observations: Iterable[Observation], least_s: float) -> tuple[PredictionAccuracy, ...]:
    """Return how close predictions came, by family, GPU and figure; utilization of runs alone on a whole GPU."""
    pairs: dict[_Key, list[_Pair]] = defaultdict(list)
    for each, run in model_runs(observations, least_s):
        for key, pair in _pairs(each, run):
            pairs[key].append(pair)
    return tuple(_accuracy(key, pairs[key]) for key in sorted(pairs))


def _pairs(observed: Observation, run: Run) -> Iterator[tuple[_Key, _Pair]]:
    need = observed.decision.decision.need if observed.decision else None
    if need is None or need.gpu != run.gpu:
        return
    family = run.identity.family
    if run.memory_bytes and not run.out_of_memory and need.memory_bytes.value > 0:
        yield (family, run.gpu, "memory"), _pair(run.memory_bytes, need.memory_bytes.value, need.memory_bytes)
    if run.utilization and run.predicted_utilization and run.share_percent == WHOLE_PERCENT:
        yield (family, run.gpu, "utilization"), _utilization(run, run.utilization, run.predicted_utilization, need)


def _utilization(run: Run, observed: float, predicted: float, need: GpuNeed) -> _Pair:
    """Return the pair; an interval of a share is not one of a run on the whole GPU."""
    whole = need.share_percent == run.share_percent
    return _pair(observed, predicted, need.gpu_utilization if whole else None)


def _pair(observed: float, predicted: float, interval: Interval | None) -> _Pair:
    inside = None if interval is None else interval.low <= observed <= interval.high
    return _Pair(ratio=observed / predicted, inside=inside)


def _accuracy(key: _Key, pairs: Sequence[_Pair]) -> PredictionAccuracy:
    family, gpu, figure = key
    ratios = [pair.ratio for pair in pairs]
    low, middle, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    inside = [pair.inside for pair in pairs if pair.inside is not None]
    return PredictionAccuracy(
        family=family,
        gpu=gpu,
        figure=figure,
        run_count=len(pairs),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
        inside_count=sum(inside),
        interval_count=len(inside),
    )


class UnnamedJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that name no model, and the runs of such jobs that were checked.

    Attributes:
        jobs: All of them.
        estimated: For how many their history gave an estimate.
        shares: How many got a share by it.
        withheld: How many would have got one, had it been enforced.
        checked: Runs whose figures were estimated before, of each user as many as count for trust.
        held: How many of these stayed below all upper ends.
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
    """Return what became of the jobs of *records* that name no model, and of the runs in *observations*.

    Args:
        records: The decisions of a time.
        observations: The runs of that time.
        least_s: A run that was sampled for less shows nothing, as where a site's trust in history is counted.
    """
    jobs = [record for record in records if record.history_estimates or UNNAMED in record.decision.reasons]
    rewritten = [record for record in jobs if record.decision.code is Code.REWRITE]
    shares = sum(record.mode == "enforce" for record in rewritten)
    site = history_trust(history_checks(observations, least_s)).site
    return UnnamedJobs(
        jobs=len(jobs),
        estimated=sum(bool(record.history_estimates) for record in jobs),
        shares=shares,
        withheld=len(rewritten) - shares,
        checked=site.checked,
        held=site.held,
    )
