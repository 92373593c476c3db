"""Observed figures of a workload, in place of predicted ones, and what follows from them; without numpy.

Invariants:

1. What the GPU does in a step is as predicted; an observed step time says how long that takes, and what part of it the
   GPU works is weighed as for the price of a share (`gpusage.predictors.sharing.host`).
2. An observed utilization says what part of the step the GPU works; SMs and memory are busy for as much less or more.
3. A step time below what the GPU's peaks allow (a wrong unit, for example) is not used, and a note says so.
4. A step that takes longer than its GPU can explain waits for its host, and does so with any GPU; as far as the GPU
   explains it, and always where it is shorter than predicted, other GPUs' steps change by the same factor.
5. A utilization at another batch size shows what the GPU waited there, and so the utilization at this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from math import log2, log10, prod

from gpusage.devices.precisions import FLOAT_BYTES, HALF
from gpusage.devices.shares import memory_cap_bytes
from gpusage.predictors.intervals import at_least, at_most, clip_to_one, exact_interval, product, scaled, speedup
from gpusage_hooks import hookimpl
from gpusage_hooks.job_keys import QUANTISED
from gpusage_hooks.types import (
    Figure,
    Gpu,
    GpuNeed,
    Interval,
    ModelGraph,
    ObservedFigures,
    Price,
    SoloRun,
    Submitter,
    Workload,
)
from gpusage_hooks.units import WHOLE_PERCENT, gib, seconds

NO_EARLIER_RUN = SoloRun()
NOTHING_KNOWN = ObservedFigures()
USER = "what you said"
OTHER_STEP = "the step on "
"""How the source of a step time begins that follows from another GPU's."""
HOSTS_APART = 1.5
"""One host is taken to be at most so many times as fast as another; an assumption, no measurement shows it."""
# An explanation of fewer odds is in no interval's end; the note names the likelier one.
_FEW_ODDS, _EVEN = 0.1, 0.5
_ROUNDING = 1e-6
_UNLIKE = 4.0
"""Doublings between two batches from which a step of one shows nothing of the other's (`bench/known_step.py`)."""


@hookimpl(trylast=True)
def find_observed_figures(
    graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], submitter: Submitter
) -> Sequence[ObservedFigures] | None:
    """Return what the user observed of an earlier run alone on a whole GPU."""
    if workload.alone == NO_EARLIER_RUN:
        return None

    # A utilization holds for every whole GPU. A step time that cannot be is left out; `predict_needs` says why.
    alone, known = workload.alone, []
    of_batch = alone.step_batch_size in (None, workload.batch_size)
    for gpu, utilization in zip(gpus, _utilizations(graph, workload, gpus), strict=True):
        is_there = of_batch and (alone.gpu == gpu.name or (alone.gpu is None and not gpu.parent_gpu))
        is_used = is_there and not implausible_step_time(graph, workload, gpu)
        step_time_s = _figure(alone.step_time_s) if is_used else None
        known.append(ObservedFigures(step_time_s=step_time_s, gpu_utilization=None if gpu.parent_gpu else utilization))
    return known


def implausible_step_time(graph: ModelGraph, workload: Workload, gpu: Gpu) -> str:
    """Return why the step time that the user gave for *gpu* cannot be, one sentence; empty where it can."""
    alone = workload.alone
    if alone.step_time_s is None or (alone.gpu or gpu.name).casefold() not in (gpu.name, *gpu.aliases):
        return ""

    observed, subject = workload_of_step(workload), f"The step time that you gave, {seconds(alone.step_time_s)}"
    batch = f"batch {observed.batch_size}"
    if graph.fixed_batch_size not in (None, observed.batch_size):
        return f"{subject}, is not used: it is of {batch}, and the model runs at batch {graph.fixed_batch_size} alone."
    min_s = min_step_s(graph, observed, gpu)
    if alone.step_time_s >= min_s:
        return ""
    return f"{subject}, is not used: even at its peak, {gpu.name} needs {seconds(min_s)} at least for {batch}."


def workload_of_step(workload: Workload) -> Workload:
    """Return *workload* with the batch that its known step time is of, and nothing known."""
    batch_size = workload.alone.step_batch_size or workload.batch_size
    return replace(workload, batch_size=batch_size, alone=NO_EARLIER_RUN)


def first_known(answers: Sequence[Sequence[ObservedFigures]], gpus: Sequence[Gpu]) -> tuple[ObservedFigures, ...]:
    """Return for each of *gpus*, of each figure, the first of *answers* that has it."""
    if not answers:
        return (NOTHING_KNOWN,) * len(gpus)

    names = [field.name for field in fields(ObservedFigures)]
    return tuple(
        ObservedFigures(**{name: next(filter(None, (getattr(row, name) for row in rows)), None) for name in names})
        for rows in zip(*answers, strict=True)
    )


def apply_known_figures(
    need: GpuNeed, known: ObservedFigures, working: Interval | None, workload: Workload, gpu: Gpu
) -> GpuNeed:
    """Return *need*, as predicted for *gpu*, with what is *known* in its place and what follows from that.

    Args:
        need: As predicted.
        known: Takes the place of what is predicted.
        working: What a known step time shows about the part of the step in which the GPU works; None without one.
        workload: How the model is run.
        gpu: Where it is run.
    """
    if known == NOTHING_KNOWN:
        return need

    # A run needs at most the memory that it shows, and no more than predicted as a point.
    step_time_s = known.step_time_s.interval if known.step_time_s else need.step_time_s
    memory_bytes = known.memory_bytes.interval if known.memory_bytes else need.memory_bytes
    required_bytes = need.required_memory_bytes
    if known.memory_bytes:
        of = need.required_bytes
        value, low = min(of.value, memory_bytes.value), min(of.low, memory_bytes.low)
        required_bytes = Interval(value=value, low=low, high=memory_bytes.high)
    if known.memory_share:  # on a larger GPU it takes more, and needs no more
        memory_bytes = replace(memory_bytes, high=max(memory_bytes.high, known.memory_share * gpu.memory_bytes))

    # SMs and memory are busy for as much more or less as the GPU; bytes are as many, however long the step takes.
    shorter = need.step_time_s.value / step_time_s.value
    utilization = known.gpu_utilization.interval if known.gpu_utilization else working or need.gpu_utilization
    busier = utilization.value / need.gpu_utilization.value

    figures = {"step time": known.step_time_s, "GPU utilization": known.gpu_utilization, "memory": known.memory_bytes}
    sources = [f"The {name} is known from {figure.source}." for name, figure in figures.items() if figure]
    return replace(
        need,
        step_time_s=step_time_s,
        memory_bytes=memory_bytes,
        required_memory_bytes=required_bytes,
        share_high_bytes=None if known.memory_bytes else need.share_high_bytes,
        gpu_utilization=utilization,
        sm_activity=at_most(scaled(need.sm_activity, busier), utilization),
        dram_activity=at_most(scaled(need.dram_activity, shorter if known.step_time_s else busier), utilization),
        throughput_samples_per_s=throughput(workload, step_time_s),
        fits=(required_bytes or memory_bytes).high <= gpu.memory_bytes,
        source="step" if known.step_time_s and known.step_time_s.source.startswith(OTHER_STEP) else need.source,
        notes=(*need.notes, *sources),
    )


def throughput(workload: Workload, step_time_s: Interval) -> Interval:
    """Return samples per second, of all processes."""
    samples, step_s = workload.batch_size * workload.processes, step_time_s
    return Interval(value=samples / step_s.value, low=samples / step_s.high, high=samples / step_s.low)


def of_one_process(known: ObservedFigures, count: int) -> ObservedFigures:
    """Return what is *known* of *count* equal processes together as the part of each; their step is the same."""
    figures = {name: getattr(known, name) for name in ("gpu_utilization", "memory_bytes")}
    parts = {name: one and replace(one, interval=scaled(one.interval, 1 / count)) for name, one in figures.items()}
    return replace(known, **parts)


def contention(one: GpuNeed, count: int, known: ObservedFigures) -> Interval:
    """Return how many times as long a step of each of *count* processes takes as that of *one* alone.

    Where they have more work in a step than the GPU has time, it takes as much longer, unless the step is *known*.
    """
    return at_least(exact_interval(1.0) if known.step_time_s else scaled(one.gpu_utilization, count), 1.0)


def price_together(each: Interval, longer: Interval) -> Interval:
    """Return the price of a part for processes of which *each* has one alone, and that take *longer* on the whole."""
    return at_least(scaled(each, 1.0 / longer.value), 1.0)


def of_all_processes(one: GpuNeed, workload: Workload, known: ObservedFigures, gpu: Gpu, on_board: GpuNeed) -> GpuNeed:
    """Return the need of all processes of *workload* on *gpu*, of which *one* is of each: memory and work add up.

    *on_board* is the need of one on the whole GPU, against which a slice has its price.
    """
    count = workload.processes
    work, required = scaled(one.gpu_utilization, count), scaled(one.required_bytes, count)
    longer, alone = contention(one, count, known), contention(on_board, count, known)
    step_time_s, most = product(one.step_time_s, longer), at_least(required, gpu.memory_bytes)
    # A run shows no more than there is, unless it needs more and so cannot run.
    taken = {end: min(count * getattr(one.memory_bytes, end), getattr(most, end)) for end in ("value", "low", "high")}
    return replace(
        one,
        step_time_s=step_time_s,
        memory_bytes=Interval(**taken),
        required_memory_bytes=required,
        share_high_bytes=one.share_high_bytes and count * one.share_high_bytes,
        gpu_utilization=clip_to_one(work),
        sm_activity=clip_to_one(scaled(one.sm_activity, count)),
        dram_activity=clip_to_one(scaled(one.dram_activity, count)),
        throughput_samples_per_s=throughput(workload, step_time_s),
        fits=required.high <= gpu.memory_bytes,
        slowdown=price_together(product(one.slowdown, longer), alone) if gpu.parent_gpu else one.slowdown,
        notes=(*one.notes, f"All figures but the step time are of {count} processes together, each with the model."),
    )


def figures_from_step(
    known: Interval, there: GpuNeed, here: GpuNeed, busy: Interval, of_gpu: float, batch_sizes: tuple[int, int]
) -> ObservedFigures:
    """Return what a step on another GPU, or of another batch, shows about a GPU.

    It is the mean of two explanations: kernels take longer or shorter than predicted, here as there, or something else
    than a GPU decides, on any GPU. An end is that of an explanation whose odds are a tenth or more.
    So a slower GPU's time may fall as the known step grows: that speaks for a host, which such a GPU awaits less.

    Args:
        known: The step time there.
        there: What is predicted for it.
        here: What is predicted for this one.
        busy: This one's utilization by the first explanation.
        of_gpu: The odds of the first explanation, 0 to 1; 1 where the step is no longer than predicted.
        batch_sizes: This one's, and that of the known step.
    """
    # A step of half or twice the batch says all of what kernels take here, one of a sixteenth or 16 times nothing.
    more = batch_sizes[0] / batch_sizes[1]
    alike = min(max((_UNLIKE - abs(log2(more))) / (_UNLIKE - 1.0), 0.0), 1.0)
    if not alike:
        return NOTHING_KNOWN
    predicted, longer = here.step_time_s, (known.value / there.step_time_s.value) ** alike
    # A utilization that the graph shows has a usual host's gaps in it, which price no share: the point does not fall.
    value = max(busy.value, here.gpu_utilization.value)
    graph = replace(here.gpu_utilization, value=value, high=max(value, here.gpu_utilization.high))
    pairs = {end: (getattr(busy, end), getattr(graph, end)) for end in ("value", "low", "high")}
    busy = Interval(**{end: _mean(*pair, alike) for end, pair in pairs.items()})

    # A GPU's odds fall fast as the step grows: an end moves by their logarithm, from a tenth to a thousandth.
    few = min(max(1.0 + log10(max(of_gpu, _ROUNDING) / _FEW_ODDS) / 2.0, 0.0), 1.0)
    many = 1.0 - min((1.0 - of_gpu) / _FEW_ODDS, 1.0)

    # By the first explanation the step misses by what the ratio of both misses by, if that is less.
    own, times = predicted, speedup(there, here)
    own = Interval(
        value=own.value,
        low=own.value * max(own.low / own.value, times.low / times.value),
        high=own.value * min(own.high / own.value, times.high / times.value),
    )

    # By the second explanation the step waits for its host, which may be another one here: in each step as long, or
    # for each sample.
    waiting_s = Interval(
        value=max(predicted.value * min(longer, 1.0), known.value),
        low=max(predicted.low * min(longer, 1.0), known.low * min(more, 1.0) / HOSTS_APART),
        high=max(predicted.high * min(longer, 1.0), known.high * max(more, 1.0) * HOSTS_APART),
    )

    step_time_s = _interval_around(
        _mean(own.low * longer * known.low / known.value, waiting_s.low, few),
        _mean(own.value * longer, waiting_s.value, of_gpu),
        _mean(own.high * longer * known.high / known.value, waiting_s.high, many),
    )
    shows = f"takes {'no ' if longer <= 1 else ''}longer than predicted" if of_gpu > _EVEN else "waits for its host"
    of_batch = "" if abs(more - 1.0) < _ROUNDING else f" at batch {batch_sizes[1]}"
    source = f"{OTHER_STEP}{there.gpu}{of_batch}, which {shows}"
    utilization = _interval_around(
        _mean(busy.low, busy.low * predicted.value / waiting_s.high, many),
        _mean(busy.value, busy.value * predicted.value / waiting_s.value, of_gpu),
        _mean(busy.high, min(busy.high * predicted.value / waiting_s.low, 1.0), few),
    )
    return ObservedFigures(
        step_time_s=Figure(interval=step_time_s, source=source),
        gpu_utilization=Figure(interval=clip_to_one(utilization), source=source),
    )


def _mean(one: float, other: float, odds: float) -> float:
    return odds * one + (1.0 - odds) * other


def _interval_around(low: float, value: float, high: float) -> Interval:
    """Return an interval around its point: on a slower GPU one explanation may lie above the other's ends."""
    return Interval(value=value, low=min(low, value), high=max(high, value))


def _utilizations(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> Sequence[Figure | None]:
    """Return the utilization of each GPU by the user's figure; one of another batch size shows what the GPU waited."""
    alone = workload.alone
    if alone.utilization is None or is_same_batch_size(workload):
        return [_figure(alone.utilization)] * len(gpus)
    from gpusage.predictors.analysis import analyze  # numpy, and few users know it
    from gpusage.predictors.sharing.host import utilizations

    there = replace(workload, batch_size=alone.batch_size or workload.batch_size)
    utilizations_here = utilizations(alone.utilization, analyze(graph, there), analyze(graph, workload), list(gpus))
    return [Figure(interval=one, source=f"{USER} of batch {alone.batch_size}") for one in utilizations_here]


def is_same_batch_size(workload: Workload) -> bool:
    """Return whether the utilization that the user gave is of the batch size of *workload*."""
    return workload.alone.batch_size in (None, workload.batch_size)


def _figure(value: float | None) -> Figure | None:
    return None if value is None else Figure(interval=exact_interval(value), source=USER)


def share_notes(known: ObservedFigures) -> tuple[str, ...]:
    """Return how the known figures of a whole GPU count in the need of a share of it."""
    figures = [
        *([f"GPU busy {100 * known.gpu_utilization.interval.value:.0f} %"] if known.gpu_utilization else []),
        *([f"a step of {seconds(known.step_time_s.interval.value)}"] if known.step_time_s else []),
    ]
    if not figures:
        return ()

    of_whole = f"What is known of a whole GPU ({' and '.join(figures)}) counts in a share's slowdown and step time"
    return (f"{of_whole}; GPU busy and the activities of a share come from the graph alone.",)


def on_share(need: GpuNeed, workload: Workload, gpu: Gpu, price: Price, alone_s: Interval) -> GpuNeed:
    """Return *need*, of a share of *gpu*, with its *price*, and with the step that takes *alone_s* on the whole GPU."""
    step_time_s = product(alone_s, price.slowdown)
    need = replace(need, step_time_s=step_time_s, throughput_samples_per_s=throughput(workload, step_time_s))
    if price.share_percent == WHOLE_PERCENT:
        return replace(need, fits=need.required_bytes.high <= gpu.memory_bytes)

    # A share has a wall: what fits is decided by the second upper end, and by the share's part of the memory.
    cap_bytes = memory_cap_bytes(gpu.memory_bytes, price.share_percent)
    fits = need.share_memory_bytes <= cap_bytes
    what = f"must have {gib(need.share_memory_bytes)} there, which 1 of 1,000 jobs exceeds"
    if fits:
        what = f"may take {gib(need.certain_memory_bytes)} of a free GPU, so it fits only behind a wall"
    note = f"A share of {price.share_percent} % of {gpu.name} may use {gib(cap_bytes)}; this job {what}."
    return replace(
        need,
        fits=fits,
        share_percent=price.share_percent,
        slowdown=price.slowdown,
        notes=need.notes if need.certain_memory_bytes <= cap_bytes else (*need.notes, note),
    )


FEWER_MULTIPLICATIONS = 4.0
"""By how much the fastest algorithm for a convolution of 3 x 3 multiplies less than its definition.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, F(4x4, 3x3).
"""
READ_WHOLE = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that read all of their parameters in each step; a lookup reads a few rows."""
WIDE = ("fp32", "tf32")
"""Peaks that may count for any job: a GPU may take TF32 where a job says fp32."""
# At least: without the scales that `gpusage.devices.precisions.QUANTISED_BYTES` adds to them.
_WEIGHT_BYTES = {**dict.fromkeys(QUANTISED, 1.0), "int4": 0.5, "nf4": 0.5}


def min_step_s(graph: ModelGraph, workload: Workload, gpu: Gpu) -> float:
    """Return seconds in which *gpu* cannot make one step, at its peaks: a lower bound of the forward pass alone.

    The arithmetic is counted as the fastest algorithm has it, and the cache is taken to hold as many parameters as fit.
    """
    from gpusage.predictors.analysis import analyze
    from gpusage.predictors.work.lowering import step_flop  # numpy, and few users know a step time

    precision = workload.precision
    flop = step_flop(analyze(graph, workload).lowering) / FEWER_MULTIPLICATIONS
    names = (*WIDE, *HALF) if precision in HALF else WIDE
    peak_flop_per_s = max(rate for name, rate in gpu.peak_flop_per_s.items() if name in names)

    nodes = (node for node in graph.nodes if node.op_type in READ_WHOLE)
    count = min(sum(prod(shape) for node in nodes for shape in node.parameters), graph.parameter_count)
    read_bytes = max(count * _WEIGHT_BYTES.get(precision, FLOAT_BYTES[precision]) - gpu.l2_bytes, 0)
    return max(flop / peak_flop_per_s, read_bytes / gpu.bandwidth_bytes_per_s)
