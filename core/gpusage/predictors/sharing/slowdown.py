"""What a share of a GPU costs a job: its step time on the share over that on the whole GPU, as one ratio.

Both step times miss alike by what is the model's own, so their ratio is known far better than either. On the share the
GPU's own time grows; what the host does (the loader, launches, Python) takes as long as before. So the cost depends on
how much of the step the GPU works, which the graph shows, or an earlier run alone on the whole GPU
(`gpusage.predictors.sharing.host`).

**Growth of the GPU's time** on a share under MPS or a slice under MIG. A kernel of few thread blocks does not fill a
GPU, so with fewer SMs it takes no longer until its blocks have to wait for one another. Memory is as fast as the part
says: a share alone has all of it, as far as its SMs can draw it, a slice its own part. What starts a kernel takes as
long as before. This rule is fitted on kernels that PyTorch launches one by one. Of what engines,
compiled passes and decoding cost on shares hardly anything is published (vLLM on half of an A100: 1.54 to 2.02 times as
long, by batch), and an engine picks kernels that fill the GPU that it is built on.
So there each kernel is predicted anew on the part as a GPU of its own, with bandwidth in proportion
(docs/decisions/predictors.md). A known step far below what PyTorch is predicted to take is likely that of an engine
which nobody named: the farther it lies below the interval, the more the dearer of both rules counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from math import log

import numpy as np

from gpusage.caches import Identity
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.artifacts import BusyShareEvidence, HostUncertainty, SlowdownRule
from gpusage.predictors.sharing.host import SHARPNESS, gpu_bound_probability, gpu_time_shares
from gpusage.predictors.times.efficiency import KERNEL_COUNT
from gpusage.predictors.times.kernel_times import streaming_bytes_per_s
from gpusage.predictors.times.step_time import Timing, engine_of
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Figure, Gpu, Interval, ModelGraph, ObservedFigures, Workload

_TINY_S = 1e-30


def slowdown_rule(analysis: WorkloadAnalysis) -> SlowdownRule:
    """Return what a part of a GPU costs: measured of kernels that PyTorch launches one by one, else in proportion."""
    rules = analysis.pretrained.slowdown
    is_measured = engine_of(analysis.workload) == "eager" and not analysis.workload.generate
    return rules.eager if is_measured else rules.proportional


def growths(analysis: WorkloadAnalysis, gpus: Sequence[Gpu], parts: Sequence[Sequence[Gpu]]) -> FloatArray:
    """Return the GPU's own time on each part over that on the whole GPU, at least 1, the parts of all *gpus* in a row.

    Args:
        analysis: Of the workload.
        gpus: Whole GPUs.
        parts: For each of *gpus* its parts.
    """
    return growths_with(slowdown_rule(analysis).filling_blocks, analysis, gpus, parts)


def growths_with(
    filling_blocks: float | None, analysis: WorkloadAnalysis, gpus: Sequence[Gpu], parts: Sequence[Sequence[Gpu]]
) -> FloatArray:
    """Return the same as `growths`, by the rule of *filling_blocks*.

    Args:
        filling_blocks: So many blocks per SM fill a GPU; ``None`` where all is in proportion.
            Blocks are counted as in `gpusage.predictors.times.kernels`, by assumption.
        analysis: As there.
        gpus: As there.
        parts: As there.
    """
    whole = np.repeat(np.arange(len(gpus)), [len(of_gpu) for of_gpu in parts])
    if filling_blocks is None:
        before_s, after_s = analysis.timing(gpus).kernels_s[whole], analysis.kernels_s(_in_proportion(gpus, parts))
    else:
        seconds = analysis.kernels.counts[:, np.newaxis] * analysis.on(gpus).kernel_times.total_s[:, whole]
        before_s = seconds.sum(axis=0)
        after_s = np.einsum("kp,kp->p", seconds, _kernel_growths(filling_blocks, analysis, gpus, parts))

    # A model all of whose nodes are views takes no time before nor after.
    growth = np.divide(after_s, before_s, out=np.ones_like(before_s), where=before_s > 0)
    return np.asarray(np.maximum(growth, 1.0))


def kernel_growths(analysis: WorkloadAnalysis, gpu: Gpu, parts: Sequence[Gpu]) -> FloatArray:
    """Return each kernel's time on *parts* of *gpu* over that on the whole of it, at least 1: (kernels, parts)."""
    filling_blocks = slowdown_rule(analysis).filling_blocks
    if filling_blocks is None:
        seconds = analysis.on([gpu, *_in_proportion([gpu], [parts])]).kernel_times.total_s
        growth = seconds[:, 1:] / np.maximum(seconds[:, :1], _TINY_S)
    else:
        growth = _kernel_growths(filling_blocks, analysis, [gpu], [parts])
    return np.asarray(np.maximum(growth, 1.0))


def _kernel_growths(
    filling_blocks: float, analysis: WorkloadAnalysis, gpus: Sequence[Gpu], parts: Sequence[Sequence[Gpu]]
) -> FloatArray:
    """Return each kernel's time on each part over that on the whole GPU: (kernels, parts).

    The time of the arithmetic is in proportion to the 4-norm of two numbers: the kernel's blocks per SM, and the
    blocks with which it fills the GPU. As on the whole GPU, a kernel takes the 4-norm of arithmetic and traffic.
    """
    whole = np.repeat(np.arange(len(gpus)), [len(of_gpu) for of_gpu in parts])
    blocks = analysis.kernels.blocks[:, np.newaxis] / filling_blocks
    in_a_row = [part for of_gpu in parts for part in of_gpu]
    before, after = (1.0 + (blocks / np.array([each.sm_count for each in some])) ** 4 for some in (gpus, in_a_row))
    bandwidth_ratios = np.array(
        [
            streaming_bytes_per_s(gpu) / streaming_bytes_per_s(part)
            for gpu, of_gpu in zip(gpus, parts, strict=True)
            for part in of_gpu
        ]
    )

    times = analysis.on(gpus).kernel_times
    compute, traffic, launch_s = times.compute_s**4, times.traffic_s**4, times.launch_s
    before_s = (compute + traffic) ** 0.25 + launch_s
    after_s = (compute[:, whole] * after / before[:, whole] + traffic[:, whole] * bandwidth_ratios**4) ** 0.25
    growth: FloatArray = (after_s + launch_s) / np.maximum(before_s[:, whole], _TINY_S)
    return growth


def _in_proportion(gpus: Sequence[Gpu], parts: Sequence[Sequence[Gpu]]) -> list[Gpu]:
    """Return all *parts* in a row, the memory of shares, which have the name of their GPU, in proportion."""
    return [
        _share_in_proportion(Identity(gpu), Identity(part)) if part.name == gpu.name else part
        for gpu, of_gpu in zip(gpus, parts, strict=True)
        for part in of_gpu
    ]


@lru_cache(maxsize=1024)
def _share_in_proportion(gpu: Identity[Gpu], share: Identity[Gpu]) -> Gpu:
    """Return *share* with as much of the bandwidth of *gpu* as it has of its arithmetic, the same object each time."""
    part = share.value.peak_flop_per_s["fp32"] / gpu.value.peak_flop_per_s["fp32"]
    return replace(share.value, bandwidth_bytes_per_s=gpu.value.bandwidth_bytes_per_s * part)


_NO_SLOWDOWN = Interval(value=1.0, low=1.0, high=1.0)
# Where the low end, the point and the high end lie on a logarithmic scale, as rows.
_DIRECTIONS = np.array([[-1.0], [0.0], [1.0]])


@hookimpl(trylast=True)
def predict_slowdown(
    graph: ModelGraph,
    workload: Workload,
    gpus: Sequence[Gpu],
    parts: Sequence[Sequence[Gpu]],
    known: Sequence[ObservedFigures],
) -> Sequence[Sequence[Interval]]:
    """Predict the step time on each of a GPU's *parts* against that on the whole of it, for all *gpus* at once."""
    analysis = analyze(graph, workload)
    rule = slowdown_rule(analysis)

    # All parts of all GPUs in a row, so that numpy computes them at once.
    gpu_of = np.repeat(np.arange(len(gpus)), [len(of_gpu) for of_gpu in parts])
    working = _working(analysis.on(gpus).timing, known, rule)
    ends = slowdowns(working[:, gpu_of], growths_with(rule.filling_blocks, analysis, gpus, parts), rule)
    weights = _engine_weights(analysis, gpus, known) if {*known} != {ObservedFigures()} else []
    if any(weights):
        # Nobody says which engine; training has none, so there each kernel is in proportion.
        if workload.mode == "infer" and engine_of(workload) == "eager" and not workload.generate:
            analysis = analyze(graph, replace(workload, engine="tensorrt"))
            working = _working(analysis.on(gpus).timing, known, rule)
        dearer = slowdowns(working[:, gpu_of], growths_with(None, analysis, gpus, parts), rule) / ends
        ends *= np.maximum(dearer, 1.0) ** np.array(weights)[gpu_of]

    rows = iter(ends.T.tolist())
    return [
        [
            _NO_SLOWDOWN if part is gpu else Interval(value=value, low=low, high=high)
            for part, (low, value, high) in zip(of_gpu, islice(rows, len(of_gpu)), strict=True)
        ]
        for gpu, of_gpu in zip(gpus, parts, strict=True)
    ]


def _engine_weights(analysis: WorkloadAnalysis, gpus: Sequence[Gpu], known: Sequence[ObservedFigures]) -> list[float]:
    """Return for each of *gpus* how much its known step looks like an unnamed engine's, 0 to 1.

    It is 0 from the low end of the predicted interval up, and 1 at the square of its distance from the point.
    """
    shares = []
    for step_s, of_gpu in zip(analysis.step_time_s(gpus), known, strict=True):
        known_s = of_gpu.step_time_s.interval.value if of_gpu.step_time_s else step_s.value
        shares.append(min(max(log(known_s / step_s.low) / log(step_s.low / step_s.value), 0.0), 1.0))
    return shares


def slowdowns(working: FloatArray, growth: FloatArray, deviations: SlowdownRule) -> FloatArray:
    """Return the low ends, the points and the high ends of slowdowns, each at least 1, as three rows.

    Args:
        working: As `share_interval` returns it; above 1 counts as 1.
        growth: The GPU's own time on the part over that on the whole GPU; below 1 counts as 1.
        deviations: How far the truths lie from the point.
    """
    powers, noises = 1.0 + _DIRECTIONS * deviations.growth, np.exp(_DIRECTIONS * deviations.noise)
    return np.maximum(_joined(working, np.maximum(growth, 1.0) ** powers) * noises, 1.0)


def points(working: FloatArray, growth: FloatArray) -> FloatArray:
    """Return the points alone of `slowdowns`."""
    return np.maximum(_joined(working, np.maximum(growth, 1.0)), 1.0)


def share_interval(working: FloatArray, evidence: BusyShareEvidence, deviations: SlowdownRule) -> FloatArray:
    """Return the low ends, the points and the high ends of the part of the step that the GPU works, as three rows.

    Args:
        working: The GPU's own time over the step's, alone on the whole GPU; or its low ends, points and high ends.
        evidence: Its source.
        deviations: How far the truths lie from the point.
    """
    less, more = deviations.working[evidence]
    return working * np.exp([[-less], [0.0], [more]])


def _working(timing: Timing, known: Sequence[ObservedFigures], deviations: SlowdownRule) -> FloatArray:
    """Return the part of the step in which each GPU works, alone on it, with its ends, from the best known figure."""
    working = share_interval(timing.busy_s / timing.step_s, "graph", deviations)

    # A utilization says it directly; a step time leaves open how much of it is the host's.
    for index, of_gpu in enumerate(known):
        if of_gpu.gpu_utilization:
            working[:, [index]] = share_interval(_ends(of_gpu.gpu_utilization), "utilization", deviations)
        elif of_gpu.step_time_s:
            shares = _shares_from_step_time(of_gpu.step_time_s, timing, index, deviations.host)
            working[:, [index]] = share_interval(shares, "step_time", deviations)
    return working


def busy_shares(
    graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], known: Sequence[ObservedFigures]
) -> list[Interval | None]:
    """Return for each of *gpus* what a known step time shows about the GPU's part of the step; None without one."""
    if not any(of_gpu.step_time_s for of_gpu in known):
        return [None] * len(gpus)
    analysis = analyze(graph, workload)
    timing, deviations = analysis.timing(gpus), slowdown_rule(analysis)

    intervals: list[Interval | None] = []
    for index, of_gpu in enumerate(known):
        if of_gpu.step_time_s is None:
            intervals.append(None)
            continue
        shares = _shares_from_step_time(of_gpu.step_time_s, timing, index, deviations.host)
        low, value, high = np.minimum(share_interval(shares, "step_time", deviations)[:, 0], 1.0).tolist()
        intervals.append(Interval(value=value, low=low, high=high))
    return intervals


def gpu_bound_odds(graph: ModelGraph, workload: Workload, gpu: Gpu, step_time_s: float, busy: float | None) -> float:
    """Return how likely *gpu* takes all of a known step, 0 to 1, against a step that is as long as predicted.

    The rest is the odds of a host, or of data, that the GPU waits for. How *busy* it was says that better.
    """
    analysis = analyze(graph, workload)
    if busy is not None:
        return float(min((busy / analysis.activity([gpu])[0].gpu_utilization.value) ** SHARPNESS, 1.0))
    timing, doubt = analysis.timing([gpu]), slowdown_rule(analysis).host
    count, predicted_s = np.exp(timing.features[[0, 0], KERNEL_COUNT]), float(timing.step_s[0])

    # Against the odds of a step as predicted, which leave some to the host, too.
    steps_s = np.array([max(step_time_s, predicted_s), predicted_s])
    known, predicted = gpu_bound_probability(timing.busy_s[[0, 0]], steps_s, count, doubt).tolist()
    return float(min(known / max(predicted, 1e-30), 1.0))


def _shares_from_step_time(step_time_s: Figure, timing: Timing, index: int, host: HostUncertainty) -> FloatArray:
    """Return low end, point and high end of what *step_time_s* shows about the GPU's part of the step."""
    count = np.exp(timing.features[[index], KERNEL_COUNT])
    low, value, high = gpu_time_shares(timing.busy_s[[index]], _ends(step_time_s)[:, 0], count, host).tolist()
    return np.array([[min(low, value, high)], [value], [max(low, value, high)]])


def _ends(figure: Figure) -> FloatArray:
    """Return low end, point and high end of *figure*, one below the other."""
    return np.array([[figure.interval.low], [figure.interval.value], [figure.interval.high]])


def _joined(working: FloatArray, growth: FloatArray) -> FloatArray:
    """Return the step's time against before, the GPU's own time being *growth* times as long."""
    before = np.minimum(working, 1.0)
    joined: FloatArray = ((before * growth) ** SHARPNESS + 1.0 - before**SHARPNESS) ** (1.0 / SHARPNESS)
    return joined
