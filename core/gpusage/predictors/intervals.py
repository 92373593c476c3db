"""Intervals of predictions: factors from a point to the ends between which 90 % of the truths should lie.

Without numpy, so that policies and commands that only compare predictions start quickly.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, hypot, log, sqrt

from gpusage.predictors.artifacts import pretrained
from gpusage_hooks.types import GpuNeed, Interval, ModelGraph, Workload

NINETY_PERCENT = 1.645
"""Standard deviations of a normal distribution to either side of its mean that hold 90 % of it."""
_HALF = 0.5


def unknown_share(graph: ModelGraph) -> float:
    """Return the share of the nodes whose operator no rule describes."""
    if not graph.unknown_op_types:
        return 0.0
    return min(1.0, sum(count for _, count in graph.unknown_op_types) / max(len(graph.nodes), 1))


def spread(deviation: float, graph: ModelGraph) -> float:
    """Return the factor from a point to the upper end, and from the lower end to the point.

    Args:
        deviation: Standard deviation of the logarithm of truth over prediction where every operator is known.
        graph: Unknown operators add a deviation of their own, as large as their share.
    """
    share = unknown_share(graph)
    return exp(NINETY_PERCENT * hypot(deviation, share + 0.1 * (share > 0)))


def interval_around(value: float, factor: float) -> Interval:
    """Return the interval from *value* / *factor* to *value* x *factor*."""
    return Interval(value=value, low=value / factor, high=value * factor)


def ratio(over: Interval, under: Interval, shared: float = 0.0) -> Interval:
    """Return *over* / *under*, two figures that miss by a factor each.

    The interval is a distance on a logarithmic scale; the squares of independent errors' distances add up.

    Args:
        over: Numerator.
        under: Denominator.
        shared: Which share of the smaller error's square both figures have in common, so that a ratio is free of it.
    """

    def distance(first: float, second: float) -> float:
        return sqrt(max(first**2 + second**2 - 2.0 * shared * min(first, second) ** 2, 0.0))

    value = over.value / under.value
    up = distance(log(over.high / over.value), log(under.value / under.low))
    down = distance(log(over.value / over.low), log(under.high / under.value))
    return Interval(value=value, low=value * exp(-down), high=value * exp(up))


def of_equal_inputs(step_time_s: Interval, workload: Workload) -> Interval:
    """Return a training step on several GPUs as if their inputs were alike: as wide as on one that was not measured."""
    if workload.mode != "train" or workload.gpus == 1:
        return step_time_s
    deviations, value = pretrained().step_time.deviations, step_time_s.value
    factor = exp(hypot(deviations.known, deviations.unseen_gpu))
    return replace(step_time_s, low=max(step_time_s.low, value / factor), high=min(step_time_s.high, value * factor))


def exact_interval(value: float) -> Interval:
    """Return the interval of a figure that is known."""
    return Interval(value=value, low=value, high=value)


def product(first: Interval, second: Interval) -> Interval:
    """Return *first* x *second*, two figures that miss by a factor each, independently of each other."""
    value = first.value * second.value
    up = hypot(log(first.high / first.value), log(second.high / second.value))
    down = hypot(log(first.value / first.low), log(second.value / second.low))
    return Interval(value=value, low=value * exp(-down), high=value * exp(up))


def other_factor(of: Interval, factor: Interval) -> Interval:
    """Return what *of*, a `product`, is of beside *factor*."""
    value = of.value / factor.value
    up = sqrt(max(log(of.high / of.value) ** 2 - log(factor.high / factor.value) ** 2, 0.0))
    down = sqrt(max(log(of.value / of.low) ** 2 - log(factor.value / factor.low) ** 2, 0.0))
    return Interval(value=value, low=value * exp(-down), high=value * exp(up))


def scaled(figure: Interval, factor: float) -> Interval:
    """Return *figure*, *factor* times as large."""
    return Interval(value=figure.value * factor, low=figure.low * factor, high=figure.high * factor)


def as_wide(figure: Interval, other: Interval) -> Interval:
    """Return *figure* with ends no nearer to its value, as factors, than those of *other*."""
    low, high = (figure.value * end / other.value for end in (other.low, other.high))
    return replace(figure, low=min(figure.low, low), high=max(figure.high, high))


def at_least(figure: Interval, least: float) -> Interval:
    """Return *figure*, each end of which is *least* where it is below."""
    return Interval(value=max(figure.value, least), low=max(figure.low, least), high=max(figure.high, least))


def at_most(figure: Interval, most: Interval) -> Interval:
    """Return *figure*, no end of which is above that of *most*."""
    return Interval(
        value=min(figure.value, most.value), low=min(figure.low, most.low), high=min(figure.high, most.high)
    )


def clip_to_one(interval: Interval) -> Interval:
    """Return *interval* with no end above 1."""
    return Interval(value=min(interval.value, 1.0), low=min(interval.low, 1.0), high=min(interval.high, 1.0))


def inverse(of: Interval) -> Interval:
    """Return 1 / *of*."""
    return Interval(value=1 / of.value, low=1 / of.high, high=1 / of.low)


def speedup(of: GpuNeed, over: GpuNeed) -> Interval:
    """Return how many times as fast a step runs on the GPU of *of* as on that of *over*.

    Both predictions miss alike by what is the model's own. How much that is was seen on models held out: more between
    GPUs on which many models were measured, which have a part of their own in `gpusage.predictors.times.efficiency`.
    Where both follow from a third GPU's known step, each interval is free of that part already, and has the error of
    the third: half of the square.
    """
    parameters = pretrained().step_time
    own = {of.gpu, over.gpu} <= parameters.residual.by_gpu.keys()
    deviations = parameters.deviations
    shared = deviations.shared_own if own else deviations.shared
    follow = of.source == over.source == "step"
    return ratio(over.step_time_s, of.step_time_s, min(shared, _HALF) if follow else shared)
