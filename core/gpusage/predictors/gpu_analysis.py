"""What one model needs on some GPUs when it is run in one way: the half of an analysis that depends on GPUs.

What depends on GPUs is computed for all of them at once, each part on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.extrapolation import gpu_warnings
from gpusage.predictors.intervals import scaled
from gpusage.predictors.lazy import lazy
from gpusage.predictors.parallel.data_parallel import (
    NO_GRADIENT_TRAFFIC,
    gradient_traffic,
    is_replicated,
    step_time_of_replicas,
    waiting_s,
)
from gpusage.predictors.parallel.model_parallel import wait_in_copy_s
from gpusage.predictors.parallel.pipeline import is_pipeline
from gpusage.predictors.step_work import StepWork
from gpusage.predictors.times.activity import Activity, activities, gaps_of, while_idle, while_waiting
from gpusage.predictors.times.engines import times_on
from gpusage.predictors.times.kernel_times import KernelTimes
from gpusage.predictors.times.kernels import Kernels
from gpusage.predictors.times.step_time import Timing, generation_timing, kernels_on, step_times_s, timing_with
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Gpu, Interval


class GpuAnalysis:
    """What a workload needs on some GPUs, one entry per GPU; each part is computed on first use.

    Attributes:
        gpus: Which they are.
        kernels: Of the workload, as are *work* and *graph*.
        kernels_of_passes: Of a pipeline, those without the update.
        generation: What a language model takes to write; none where the workload is a plain pass.
        passes: The kernels of its two passes; none without.
        exchange: What several GPUs sum in a pass; none on one.
    """

    def __init__(self, step: StepWork, gpus: Sequence[Gpu]) -> None:
        self.gpus = tuple(gpus)
        self.graph = step.graph
        self.workload = step.workload
        self.kernels = step.kernels
        self.kernels_of_passes = step.kernels_of_passes
        self.generation = step.generation
        self.passes = step.passes
        self.work = step.work
        self.exchange = step.exchange
        is_several = is_replicated(step.workload)
        self.gradients = gradient_traffic(step.lowering, step.workload) if is_several else NO_GRADIENT_TRAFFIC
        self.copy_traffic = step.copy_traffic
        self.efficiency = step.efficiency
        self.pretrained = step.pretrained

    @lazy
    def timing(self) -> Timing:
        """Seconds of one step, and what they are made of."""
        whole = self._timing_of(self.kernels)
        if self.generation is None:
            return whole
        first, then = map(self._timing_of, self.passes)
        return generation_timing(whole, first, then, self.generation.decode_count)

    @lazy
    def tokens(self) -> tuple[Timing, ...]:
        """Times of the prefill and of one decode pass, sums over GPUs included; empty without generation."""
        timings = map(self._timing_of, self.passes)
        if self.exchange is None:
            return tuple(timings)
        each = zip(timings, self.exchange.seconds(self.gpus, self.workload.gpus), strict=True)
        return tuple(replace(timing, step_s=timing.step_s + sum_s) for timing, sum_s in each)

    def _timing_of(self, kernels: Kernels) -> Timing:
        return timing_with(self.efficiency, kernels, self.gpus, self.workload.precision)

    @lazy
    def kernels_s(self) -> FloatArray:
        """`Timing.kernels_s` to six digits: of many GPUs in little time."""
        return kernels_on(self.efficiency, self.kernels, self.gpus, self.workload.precision)

    @lazy
    def kernel_times(self) -> KernelTimes:
        """Seconds of each kernel, to six digits."""
        return times_on(self.efficiency, self.kernels, self.gpus, self.workload.precision, np.float32).as_run

    @lazy
    def step_time_s(self) -> list[Interval]:
        """Seconds of one step."""
        of_one = step_times_s(self.efficiency, self.graph, self.workload, self.gpus, self.timing)
        if self.exchange:
            sums = zip(of_one, self.waiting_s, strict=True)
            return [scaled(step_time_s, 1.0 + sums_s / step_time_s.value) for step_time_s, sums_s in sums]
        each = zip(of_one, self._waits_in_copy_s, strict=True)
        of_copy = zip([scaled(step, 1.0 + wait_s / step.value) for step, wait_s in each], self.gpus, strict=True)
        return [step_time_of_replicas(step_time_s, self.workload, gpu, self.gradients) for step_time_s, gpu in of_copy]

    @lazy
    def _waits_in_copy_s(self) -> list[float]:
        """Seconds of a step in which each GPU waits for those that hold other parts of its copy of the model."""
        if self.workload.gpus_per_replica == self.workload.expert == 1:
            return [0.0] * len(self.gpus)
        is_whole = self.kernels_of_passes is self.kernels
        timing = self.timing if is_whole else self._timing_of(self.kernels_of_passes)
        each = zip(timing.step_s.tolist(), self._attention_s, self.gpus, strict=True)
        return [wait_in_copy_s(self.copy_traffic, step_s, part_s, self.workload, gpu) for step_s, part_s, gpu in each]

    @lazy
    def _attention_s(self) -> list[float]:
        """Seconds of a step in attentions, where keys and values of other GPUs come round meanwhile."""
        if self.workload.context == 1:
            return [0.0] * len(self.gpus)
        attends = np.isin(self.kernels.operator_class, (OperatorClass.BATCHED_PRODUCT, OperatorClass.ATTENTION))
        seconds: list[float] = (self.kernels.counts[attends] @ self.kernel_times.total_s[attends]).tolist()
        return seconds

    @lazy
    def waiting_s(self) -> list[float]:
        """Seconds of a step in which each GPU waits for the gradients of others, or for sums over all of them."""
        if self.exchange and self.generation:
            prompt_s, token_s = self.exchange.seconds(self.gpus, self.workload.gpus)
            sums_s: list[float] = (prompt_s + self.generation.decode_count * token_s).tolist()
            return sums_s
        if not is_replicated(self.workload):
            return [0.0] * len(self.gpus)
        each = zip(self.timing.step_s.tolist(), self._waits_in_copy_s, self.gpus, strict=True)
        return [wait_s + waiting_s(self.gradients, step_s + wait_s, self.workload, gpu) for step_s, wait_s, gpu in each]

    @lazy
    def activity(self) -> list[Activity]:
        """How busy the workload keeps each GPU when alone there."""
        gaps_s = gaps_of(self.pretrained.activity, self.workload.mode, float(self.kernels.counts.sum()))
        alone = activities(self.pretrained.activity, self.graph, self.work, self.timing, gaps_s)
        if is_pipeline(self.workload):
            return [while_idle(activity, 1.0 - 1.0 / self.workload.gpus) for activity in alone]
        each = zip(alone, self.timing.step_s.tolist(), self.waiting_s, strict=True)
        return [while_waiting(activity, step_s, waits_s) for activity, step_s, waits_s in each]

    @lazy
    def warnings(self) -> list[tuple[str, ...]]:
        """One sentence for each reason not to trust figures on this GPU as usual."""
        return gpu_warnings(self.pretrained.step_time_card, self.gpus)
