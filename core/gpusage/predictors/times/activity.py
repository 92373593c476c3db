"""How busy a workload keeps a GPU: one account of each step, of kernels, and gaps between them that its host leaves.

The step time is that of a host which launches kernels as fast as in benchmarks. A usual training job's host takes
longer, so each kernel is followed by a gap in which nothing runs. All activities are shares of the step and its gaps.
Gradient-boosted trees predict the share of the kernels' time in which SMs have work, from node times, kernel sizes and
input data. Ends are quantiles of the misses on models that a fit did not see, on the scale of log odds (logits).

Invariants:

1. Kernels run for all of GPU busy; SMs have work, and the memory moves bytes, for at most as long.
2. A larger batch has as many kernels and as many gaps, and its kernels are no shorter: GPU busy never falls with it.
3. Waiting for data is in the low end alone: no graph shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import log, prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpusage.predictors.arrays import FloatArray, IntArray
from gpusage.predictors.artifacts import ActivityParameters, ForestParameters, shaped
from gpusage.predictors.intervals import NINETY_PERCENT, spread
from gpusage.predictors.times.step_time import Timing
from gpusage.predictors.work.decoding import DecodingWork
from gpusage.predictors.work.lowering import Lowering
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Interval, Mode, ModelGraph

# A training step runs about three kernels for each forward one.
_PASSES = 3
# Seconds, so that a logarithm exists.
_LEAST = 1e-12
_IS_KERNEL = np.array([one is not OperatorClass.VIEW for one in OperatorClass])


class ActivityFeatures(NamedTuple):
    """The columns, one entry per GPU."""

    log_busy_s: FloatArray
    log_busy_s_per_kernel: FloatArray
    log_kernels: FloatArray
    sm_over_busy: FloatArray
    dram_over_busy: FloatArray
    log_inputs: FloatArray
    log_batch_size: FloatArray
    log_inputs_per_busy_s: FloatArray
    log_flop_per_byte: FloatArray
    log_parameters: FloatArray
    log_outputs: FloatArray
    log_flop_per_kernel: FloatArray


NAMES = (
    "log busy seconds",
    "log busy seconds a kernel",
    "log kernels",
    "SM time over busy time",
    "memory time over busy time",
    "log input elements",
    "log batch size",
    "log input elements over busy seconds",
    "log FLOP a byte",
    "log parameters",
    "log outputs",
    "log FLOP a kernel",
)
"""Of the fields of `ActivityFeatures`, in the artifact and for people."""


class Work(NamedTuple):
    """Those of `ActivityFeatures` that no GPU changes."""

    log_kernels: float
    log_inputs: float
    log_batch_size: float
    log_flop_per_byte: float
    log_parameters: float
    log_outputs: float
    log_flop_per_kernel: float


_OF_WORK = [ActivityFeatures._fields.index(name) for name in Work._fields]


def features_of(work: Work, timing: Timing) -> FloatArray:
    """Return one row per GPU of *timing*, with a column for each of `ActivityFeatures`."""
    rows = np.empty((len(timing.busy_s), len(NAMES)))
    rows[:, _OF_WORK] = work
    columns = ActivityFeatures(*rows.T)

    busy_s = np.maximum(timing.busy_s, _LEAST)
    log_busy_s = np.log(busy_s)
    columns.log_busy_s[:] = log_busy_s
    columns.log_busy_s_per_kernel[:] = log_busy_s - work.log_kernels
    columns.sm_over_busy[:] = timing.sm_s / busy_s
    columns.dram_over_busy[:] = timing.dram_s / busy_s
    columns.log_inputs_per_busy_s[:] = work.log_inputs - log_busy_s
    return rows


def work_of(graph: ModelGraph, lowering: Lowering, batch_size: int, decoding: DecodingWork | None = None) -> Work:
    """Return the features that no GPU changes; *lowering* is that of *graph*, or of the prefill of *decoding*."""
    works = [(lowering, 1)]
    if decoding:
        works.append((decoding.token, decoding.decode_count))
    kernels = flop = traffic = 0.0
    for one, times in works:
        counts, passes = one.structure.counts, _PASSES if one.train else 1
        kernels += times * max(float(counts @ _IS_KERNEL[one.operator_class]), 1.0) * passes
        flop += times * float(counts @ one.flop) * passes
        traffic += times * float(counts @ (one.read_bytes + one.parameter_bytes + one.written_bytes)) * passes

    inputs = 0
    for _, shape in graph.inputs:
        inputs += abs(prod(shape[1:])) * batch_size
    return Work(
        log_kernels=log(kernels),
        log_inputs=log(max(inputs, 1)),
        log_batch_size=log(batch_size),
        log_flop_per_byte=log(max(flop, 1.0) / max(traffic, 1.0)),
        log_parameters=log(max(lowering.parameter_count, 1)),
        log_outputs=log(max(lowering.output_elements_of_model, 1.0)),
        log_flop_per_kernel=log(max(flop, 1.0) / kernels),
    )


MAXIMUM_LEAVES = 16
"""Of a tree: the bits of `Trees.ruled_out`."""
_SPLITS = MAXIMUM_LEAVES - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """Gradient-boosted trees as flat arrays, evaluated with numpy for all rows and all trees at once.

    No tree is walked. Every node's condition is evaluated for every row; where a feature is above its threshold, the
    leaves left of the node are ruled out. A walk would end at the leftmost leaf that no condition rules out. A figure
    out of every tree's range gets the nearest leaf's value.

    Attributes:
        start: What the values of the trees are added to.
        feature: Of each split: the first ones of all trees, then the second ones, and so on.
        threshold: What the feature must exceed; infinite where a tree has no such split.
        ruled_out: Leaves, as bits, that a yes rules out.
        values: Of the leaves, `MAXIMUM_LEAVES` per tree.
        leaf_offsets: Where the leaves of each tree begin among them.
        leftmost: By the bits of leaves that are ruled out: the leftmost one that is not.

    Source:
        Lucchese et al., "QuickScorer: a Fast Algorithm to Rank Documents with Additive Ensembles of Regression Trees",
        SIGIR 2015.
    """

    start: float
    feature: IntArray
    threshold: FloatArray
    ruled_out: npt.NDArray[np.uint16]
    values: FloatArray
    leaf_offsets: IntArray
    leftmost: npt.NDArray[np.uint8]

    def predict(self, rows: FloatArray) -> FloatArray:
        """Return a figure for each of *rows*, shape (rows, features)."""
        above = rows.take(self.feature, axis=1) > self.threshold
        excluded = (above * self.ruled_out).reshape(len(rows), _SPLITS, len(self.leaf_offsets))
        leaves = self.leftmost.take(np.bitwise_or.reduce(excluded, axis=1)) + self.leaf_offsets
        sums: FloatArray = self.start + np.add.reduceat(self.values.take(leaves), [0], axis=1)[:, 0]
        return sums


def read_trees(forest: ForestParameters) -> Trees:
    """Return the trees that *forest* describes.

    The leaves to the left of a split are those between its left child and its right one.

    Raises:
        ValueError: The columns have different lengths.
    """
    count = len(forest.left)
    roots, left = np.array(forest.roots, dtype=np.int64), np.array(forest.left, dtype=np.int64)
    right = np.array(forest.right, dtype=np.int64)

    # Leaves are numbered from left to right within their tree, as nodes stand in depth-first order.
    nodes = np.arange(count)
    tree = np.searchsorted(roots, nodes, side="right") - 1
    is_leaf = left == nodes
    leaf = np.cumsum(is_leaf) - is_leaf
    leaf -= leaf[roots][tree]
    leaves, splits = is_leaf.nonzero()[0], (~is_leaf).nonzero()[0]

    # The k-th split of each tree stands in the k-th row: all trees' first splits are evaluated side by side.
    at = (splits - roots[tree[splits]] - leaf[splits], tree[splits])
    feature = np.zeros((_SPLITS, len(roots)), dtype=np.int64)
    threshold = np.full(feature.shape, np.inf)
    ruled_out = np.zeros(feature.shape, dtype=np.uint16)
    values = np.zeros((len(roots), MAXIMUM_LEAVES))
    feature[at] = shaped("feature", forest.feature, count)[splits]
    threshold[at] = shaped("threshold", forest.threshold, count)[splits]
    ruled_out[at] = 2 ** leaf[right[splits]] - 2 ** leaf[left[splits]]
    values[tree[leaves], leaf[leaves]] = shaped("value", forest.value, count)[leaves]

    sets = np.arange(2**MAXIMUM_LEAVES)
    return Trees(
        start=float(forest.start),
        feature=feature.ravel(),
        threshold=threshold.ravel(),
        ruled_out=ruled_out.ravel(),
        values=values.ravel(),
        leaf_offsets=np.arange(len(roots)) * MAXIMUM_LEAVES,
        leftmost=np.log2(~sets & (sets + 1)).astype(np.uint8),  # the lowest bit that is not set
    )


DRAM_DEVIATION = 0.50
"""Of the logarithm of the odds; a judgement, as nothing was fitted."""
LEAST_SHARE = 1e-4
"""No share is smaller, so that its odds have a logarithm."""
GREATEST_SHARE = 0.985
"""Even a GPU that is never without work idles between kernels, and while the last blocks of each finish."""
# Of `ActivityParameters.misses`: utilization and SM activity; below and above.
_FIGURES, _ENDS = 2, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """How busy a workload keeps one GPU, alone on it; shares of 0 to 1, but for the seconds that they are made of.

    Attributes:
        sm_s: Of one step: SMs have work, the mean over all SMs.
        gaps_s: What a usual host leaves idle in addition to the step time.
    """

    gpu_utilization: Interval
    sm_activity: Interval
    dram_activity: Interval
    sm_s: float
    gaps_s: float


def activities(
    parameters: ActivityParameters, graph: ModelGraph, work: Work, timing: Timing, gaps_s: float
) -> list[Activity]:
    """Return how busy a workload keeps each GPU when alone.

    Args:
        parameters: What was learned.
        graph: The model.
        work: Of the workload.
        timing: Of the workload, one entry per GPU.
        gaps_s: As `gaps_of` returns it.
    """
    trees, learned_misses = _learned(parameters)
    sm_s = timing.busy_s * sm_shares(trees, features_of(work, timing))
    dram_s = np.minimum(timing.dram_s, timing.busy_s)
    values = np.stack([timing.busy_s, sm_s, dram_s], axis=1) / (timing.step_s + gaps_s)[:, np.newaxis]

    # How far the odds lie off, below and above the point, of utilization, SM and DRAM activity.
    misses = np.vstack([learned_misses, np.full(_ENDS, NINETY_PERCENT * DRAM_DEVIATION)])
    unknown = log(spread(0.0, graph))
    intervals = shares_around(values, *np.exp(np.hypot(misses, unknown)).T)

    # A host as fast as the step time's leaves no gaps: GPU busy may always be as high.
    without_gaps = np.minimum(timing.busy_s / timing.step_s, 1.0).tolist()
    result = []
    for (busy, sm, dram), most, of_sm_s in zip(intervals, without_gaps, sm_s.tolist(), strict=True):
        busy_or_more = Interval(value=busy.value, low=busy.low, high=max(busy.high, most))
        result.append(
            Activity(gpu_utilization=busy_or_more, sm_activity=sm, dram_activity=dram, sm_s=of_sm_s, gaps_s=gaps_s)
        )
    return result


def while_waiting(activity: Activity, step_s: float, waits_s: float) -> Activity:
    """Return the activity of a GPU that waits for others in each step: a kernel runs then, on few SMs.

    NCCL's kernel runs on each GPU until the exchange has ended, so that the GPU is busy, and does next to nothing.

    Args:
        activity: Of a step without others.
        step_s: Of that step, without the gaps of its host.
        waits_s: What each step waits in addition.
    """
    if not waits_s:
        return activity
    share = waits_s / (step_s + activity.gaps_s + waits_s)
    busy = _mean_with(activity.gpu_utilization, share, 1.0)
    return replace(while_idle(activity, share), gpu_utilization=busy)


def while_idle(activity: Activity, share: float) -> Activity:
    """Return the activity of a GPU that is idle for a *share* of a step, while others have their turn."""
    return replace(
        activity,
        gpu_utilization=_mean_with(activity.gpu_utilization, share, 0.0),
        sm_activity=_mean_with(activity.sm_activity, share, 0.0),
        dram_activity=_mean_with(activity.dram_activity, share, 0.0),
    )


def _mean_with(mean: Interval, share: float, other: float) -> Interval:
    """Return the mean over a time of which a *share* has *other*."""
    low, value, high = ((1.0 - share) * each + share * other for each in (mean.low, mean.value, mean.high))
    return Interval(value=value, low=low, high=high)


def gaps_of(parameters: ActivityParameters, mode: Mode, kernel_count: float) -> float:
    """Return the idle seconds that a usual host adds to a step; none where it serves, as such hosts were not measured.

    Args:
        parameters: What was learned.
        mode: Of the workload.
        kernel_count: Of one step.
    """
    return parameters.gap_s * kernel_count if mode == "train" else 0.0


def shares_around(values: FloatArray, below: FloatArray, above: FloatArray) -> list[list[Interval]]:
    """Return intervals around shares: the odds of each may be *below* times as small or *above* times as large.

    On the odds, value / (1 - value), an interval can reach neither below 0 nor above 1.

    Args:
        values: Of shape (rows, figures), as is the result.
        below: At least 1, one per figure.
        above: The same.
    """
    values = np.maximum(np.minimum(values, GREATEST_SHARE), LEAST_SHARE)
    lows = values / (values + (1.0 - values) * below)
    highs = values * above / (values * above + 1.0 - values)
    return [
        [Interval(value=value, low=low, high=high) for value, low, high in zip(*row, strict=True)]
        for row in zip(values.tolist(), lows.tolist(), highs.tolist(), strict=True)
    ]


def sm_shares(trees: Trees, rows: FloatArray) -> FloatArray:
    """Return for each row what part of its kernels' time SMs have work, 0 to 1.

    Args:
        trees: What they say is the logarithm of 1 + percent.
        rows: As `features_of` returns them.
    """
    parts: FloatArray = np.maximum(np.minimum(np.expm1(trees.predict(rows)) / 100.0, 1.0), 0.0)
    return parts


@lru_cache(maxsize=4)
def _learned(parameters: ActivityParameters) -> tuple[Trees, FloatArray]:
    return read_trees(parameters.sm_share), shaped("misses", parameters.misses, _FIGURES, _ENDS)
