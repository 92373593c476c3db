"""A real scheduler's figures beside the simulator's: gains, how far they are apart, and its own delays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean, median

from gpusage_planning.replay.virtual_gpus import Stay
from gpusage_planning.simulator.result import Result

STATES = ("off", "on")
AGREEMENT = 0.10
MINUTE_S = 60.0
AT_ONCE = "simulated without its delays"
COLUMNS = ("state", "makespan min", "JCT min", "utilization %", "out of memory", "GPU hours")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of all jobs. Times are those of the emulated cluster, in seconds.

    Attributes:
        makespan_s: From the release of all jobs to the last end.
        jct_s: Mean time from the release to a job's end.
        utilization: Mean busy share of all GPUs over the makespan.
        out_of_memory: Stays that ended for want of memory.
        gpu_hours: GPU time with at least one job.
    """

    makespan_s: float
    jct_s: float
    utilization: float
    out_of_memory: float
    gpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """What the scheduler itself took, in seconds of the real clock; medians.

    Attributes:
        start_s: From the moment that somebody left a GPU, or all jobs were released, to the next start there.
        rescue_s: From the end of a job that ran out of memory to its second start; ``None`` where none did.
    """

    start_s: float
    rescue_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """One repetition, by state.

    Attributes:
        real: On the scheduler.
        simulations: As predicted, with the scheduler's own delays, each time somewhat longer.
        at_once: As predicted where every job starts as soon as there is room.
        backfilled: Starts that only a look at the whole queue made; none where the scheduler does not count them.
        differing: Jobs whose share the simulator has otherwise.
    """

    real: Mapping[str, Outcome]
    simulations: Sequence[Mapping[str, Outcome]]
    at_once: Mapping[str, Outcome]
    delays: Mapping[str, Delays]
    backfilled: Mapping[str, int]
    differing: int
    stays: Mapping[str, Sequence[Stay]]

    @property
    def simulated(self) -> Mapping[str, Outcome]:
        """Return the mean of all simulations."""
        return mean(self.simulations)


def outcome_of(stays: Sequence[Stay], busy_s: float, gpu_count: int) -> Outcome:
    """Return the figures of *stays*, in which each job was done once; times are since the release."""
    ends_s = [stay.end_s for stay in stays if stay.ending == "done"]
    makespan_s = max(ends_s)
    return Outcome(
        makespan_s=makespan_s,
        jct_s=fmean(ends_s),
        utilization=busy_s / (makespan_s * gpu_count),
        out_of_memory=sum(stay.ending == "out_of_memory" for stay in stays),
        gpu_hours=sum(end_s - start_s for spans in _occupied(stays).values() for start_s, end_s in spans) / 3600,
    )


def outcome_simulated(result: Result) -> Outcome:
    """Return the same figures of a simulation."""
    figures = result.figures
    return Outcome(
        makespan_s=float(result.end_s.max()),
        jct_s=float(result.end_s.mean()),
        utilization=figures.utilization,
        out_of_memory=figures.out_of_memory,
        gpu_hours=figures.gpu_hours,
    )


def delays_of(stays: Sequence[Stay], compression: float) -> Delays:
    """Return what the scheduler itself took, where all jobs were released at second 0 of *stays*."""
    rescues_s = [*_rescues(stays)]
    return Delays(
        start_s=median(_start_delays(stays)) / compression,
        rescue_s=median(rescues_s) / compression if rescues_s else None,
    )


def _start_delays(stays: Sequence[Stay]) -> Iterator[float]:
    """Yield how long there was room before each start: since the last one before it left, or from the beginning on."""
    for stay in stays:
        there = [one.end_s for one in stays if (one.node, one.device) == (stay.node, stay.device)]
        yield stay.start_s - max((end_s for end_s in there if end_s <= stay.start_s), default=0.0)


def _occupied(stays: Sequence[Stay]) -> Mapping[tuple[str, int], list[tuple[float, float]]]:
    """Return the times in which each GPU had a job."""
    spans: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for stay in sorted(stays, key=lambda stay: stay.start_s):
        here = spans[stay.node, stay.device]
        if here and stay.start_s <= here[-1][1]:
            here[-1] = (here[-1][0], max(here[-1][1], stay.end_s))
        else:
            here.append((stay.start_s, stay.end_s))

    return spans


def _rescues(stays: Sequence[Stay]) -> Iterator[float]:
    """Yield how long each job that ran out of memory waited for its next start."""
    for stay in stays:
        if stay.ending == "out_of_memory":
            later = [one.start_s for one in stays if one.job == stay.job and one.start_s >= stay.end_s]
            yield from (start_s - stay.end_s for start_s in sorted(later)[:1])


def gain(outcomes: Mapping[str, Outcome], figure: str) -> float:
    """Return how much less *figure* is with gpusage, 0 to 1; below 0 where it is more."""
    return 1 - float(getattr(outcomes["on"], figure)) / float(getattr(outcomes["off"], figure))


def relative_difference(one: Mapping[str, Outcome], other: Mapping[str, Outcome], figure: str) -> float:
    """Return how far two ratios of with to without gpusage are apart, relative to *other*."""
    return (1 - gain(one, figure)) / (1 - gain(other, figure)) - 1


def mean(parts: Sequence[Mapping[str, Outcome]]) -> Mapping[str, Outcome]:
    """Return the mean of each figure by state."""
    rows = {state: [asdict(part[state]) for part in parts] for state in STATES}
    keys = [each.name for each in fields(Outcome)]
    return {state: Outcome(**{key: fmean(row[key] for row in rows[state]) for key in keys}) for state in STATES}


def rows(repetitions: Sequence[Repetition]) -> Iterator[tuple[str | float, ...]]:
    """Yield the means of all repetitions, real and simulated, in the order of `COLUMNS`."""
    for name, of in _means(repetitions).items():
        for state in STATES:
            yield _row(f"{name}, gpusage {state}", of[state])


def sentences(repetitions: Sequence[Repetition]) -> Iterator[str]:
    """Yield gains, agreement and delays in words."""
    parts = _means(repetitions)
    for figure, words in (("makespan_s", "makespan"), ("jct_s", "mean JCT")):
        gains = ", ".join(f"{100 * gain(of, figure):.1f} % {name}" for name, of in parts.items())
        yield f"{words} shorter with gpusage: {gains}"
        far = relative_difference(parts["real"], parts["simulated"], figure)
        verdict = "met" if abs(far) <= AGREEMENT else "missed"
        yield f"{words}, with over without: real {100 * far:+.1f} % from simulated (goal 10: {verdict})"
        yield f"the same of single repetitions: {_ratios_text(repetitions, 'simulated', figure)}"
        each = [relative_difference(run, one.simulated, figure) for one in repetitions for run in one.simulations]
        yield f"the same of single simulations from their mean: {100 * min(each):+.0f} % to {100 * max(each):+.0f} %"
        far = relative_difference(parts["real"], parts[AT_ONCE], figure)
        single = _ratios_text(repetitions, "at_once", figure)
        yield f"the same where the simulator starts jobs at once: {100 * far:+.1f} %; single repetitions: {single}"

    for state in STATES:
        yield f"gpusage {state}: {', '.join(_delay_words([each.delays[state] for each in repetitions]))}"
        starts = [f"{each.backfilled[state]} of {len(each.stays[state])}" for each in repetitions if each.backfilled]
        if starts:
            yield f"gpusage {state}: starts by backfill: {', '.join(starts)}"

    yield f"jobs whose share the simulator has otherwise: {', '.join(str(each.differing) for each in repetitions)}"


def _ratios_text(repetitions: Sequence[Repetition], key: str, figure: str) -> str:
    """Return how far each repetition's ratio is from the simulated one."""
    return ", ".join(f"{100 * relative_difference(one.real, getattr(one, key), figure):+.0f} %" for one in repetitions)


def document(repetitions: Sequence[Repetition]) -> dict[str, object]:
    """Return everything as JSON holds it."""
    parts = _means(repetitions)
    figures = ("makespan_s", "jct_s")
    return {
        "gains": {name: {figure: gain(of, figure) for figure in figures} for name, of in parts.items()},
        "apart": {figure: relative_difference(parts["real"], parts["simulated"], figure) for figure in figures},
        "repetitions": [asdict(each) for each in repetitions],
    }


def _means(repetitions: Sequence[Repetition]) -> Mapping[str, Mapping[str, Outcome]]:
    return {
        "real": mean([each.real for each in repetitions]),
        "simulated": mean([each.simulated for each in repetitions]),
        AT_ONCE: mean([each.at_once for each in repetitions]),
    }


def _row(name: str, one: Outcome) -> tuple[str | float, ...]:
    return (
        name,
        round(one.makespan_s / MINUTE_S, 1),
        round(one.jct_s / MINUTE_S, 1),
        round(100 * one.utilization, 1),
        round(one.out_of_memory, 1),
        round(one.gpu_hours, 1),
    )


def _delay_words(delays: Sequence[Delays]) -> Iterator[str]:
    words = {
        "start_s": "a start {:.2f} s after there was room",
        "rescue_s": "a job that ran out of memory again after {:.1f} s",
    }
    for key, text in words.items():
        known = [seconds for one in delays if (seconds := getattr(one, key)) is not None]
        if known:
            yield text.format(fmean(known))
