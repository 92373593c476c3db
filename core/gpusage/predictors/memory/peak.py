"""Peak bytes of device memory: the tensors that live at the same time, and what allocator and libraries add.

The liveness walk says which tensors there are (`gpusage.predictors.memory.liveness`). What a training step *takes* on a
free GPU is a quantile regression on the walk's terms, learned from measured peaks (`gpusage train`). Its weights are
not negative, so that more batch never needs less memory. It is never below what the update of the weights takes, nor
below inference.

What it *requires*, and fails without, is less: cuDNN tries algorithms whose scratch memory is as large as it finds room
for, and PyTorch's allocator holds what was freed until an allocation fails. Required are the tensors that live at once,
and what allocator and libraries add where nothing can be freed. How much that is was learned from peaks of runs that
had no choice: models with hardly any convolution, and models whose tensors fill half of the GPU.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gpusage.devices.precisions import AUTOCAST, FLOAT_BYTES, QUANTISED_BYTES, parameter_share
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.artifacts import MemoryParameters, shaped
from gpusage.predictors.intervals import interval_around, spread
from gpusage.predictors.memory.liveness import (
    GRADIENT_BYTES,
    TRAINING_TERMS,
    TrainingTerms,
    Walk,
    number_share,
    terms,
    trained_share,
    walk,
)
from gpusage.predictors.parallel.data_parallel import Sharding
from gpusage.predictors.parallel.division import Division
from gpusage.predictors.work.checkpoints import Checkpoints
from gpusage.predictors.work.decoding import DecodingWork, Pass
from gpusage.predictors.work.lowering import Lowering, hidden_share, weight_memory_bytes
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Gpu, Interval, MemoryInterval, ModelGraph, Workload
from gpusage_hooks.units import MIB

_MOMENTS_OF_8_BITS = 2.0 * (1.0 + 4.0 / 256)
STATE_BYTES = {
    **dict.fromkeys(("none", "sgd"), 0.0),
    "momentum": 4.0,
    **dict.fromkeys(("adam", "adamw", "muon"), 8.0),
    "adafactor": 0.1,
    **dict.fromkeys(("adam8bit", "adamw8bit"), _MOMENTS_OF_8_BITS),
}
"""The optimizer's state, bytes per weight: the moments in fp32; Adafactor keeps sums of rows and columns. Of two
moments of 8 bits, 256 numbers share a scale (bitsandbytes); the update works in place. Muon's are AdamW's, but for
hidden matrices, which have one moment."""
UPDATE_COPY_BYTES = 4.0
"""What the update computes in addition, bytes per weight, all weights at once as PyTorch's ``foreach`` does: gradients
with their weight decay, or the root of the second moment. Moments of 8 bits are updated in place."""
WEIGHT_BYTES = float(FLOAT_BYTES["fp32"])
"""Autocast leaves weights in fp32, frozen ones as well."""
FITTED_STATE_BYTES = STATE_BYTES["momentum"]
"""The state that the measured peaks contain."""
LOSS_BYTES = 12.0
"""Of each output, in fp32: the logarithm of its softmax, and the gradients of that and of the output; by rule."""
USUAL_CONTEXT = Interval(value=1000 * MIB, low=400 * MIB, high=1300 * MIB)
"""CUDA context with the kernels of PyTorch and cuBLAS, where a GPU's row does not say it: an estimate."""
FITTED_CONTEXT_BYTES = 1443 * MIB
"""The context that the measured peaks contain, which are an A100's (`Gpu.context_bytes` of its row)."""
ALLOCATOR_FACTOR = 1.05
"""Inference: the caching allocator rounds blocks up and cannot join all that is free."""
WORKSPACE_FACTOR = 3.3
"""Inference: scratch memory of a convolution for each byte that it reads and writes ..."""
MAXIMUM_WORKSPACE_BYTES = 970 * MIB
"""... and the most of it; both fitted on training's peaks."""
LOWER_WITHOUT_CONVOLUTIONS = 1.4
"""How many times less a training step without convolutions may take: of the published ones, 90 % take more."""
LEAST_MARGIN = 0.05
"""The upper end of a training step is at least by this share above the point, and by `BLOCK_BYTES`."""
INFERENCE_DEVIATION = 0.15
"""Of the logarithm of measured over predicted, context left out: an estimate, for no public data has such peaks."""
BLOCK_BYTES = 64 * MIB
"""What the caching allocator takes for the first tensor of a new size (20 MiB) and cuBLAS as workspace: checked on
perceptrons, which are smaller than that."""
# Low end, point and high end; the places of the first two among them.
_ENDS, _LOW, _POINT = 3, 0, 1
# The same three, and a share's high end, of what a run needs; the place of the last one.
_NEED_ENDS, _NEED_SHARE_HIGH = 4, 3
_LAST_CONVOLUTION = int(OperatorClass.GROUPED_CONVOLUTION)
_IS_DENSE_CONVOLUTION = np.array([one is OperatorClass.CONVOLUTION for one in OperatorClass])


class Peak(NamedTuple):
    """What a process takes at its peak on a free GPU, and what of it a run needs, in bytes."""

    taken: Interval
    required: MemoryInterval


def context_of(gpu: Gpu) -> Interval:
    """Return the bytes of a CUDA context on *gpu*."""
    return gpu.context_bytes or USUAL_CONTEXT


def with_context(tensors: Peak, gpu: Gpu) -> Peak:
    """Return the bytes of a process on *gpu*: of its *tensors*, and of the CUDA context."""
    context, (taken, required) = context_of(gpu), tensors
    return Peak(
        taken=Interval(value=taken.value + context.value, low=taken.low + context.low, high=taken.high + context.high),
        required=MemoryInterval(
            value=required.value + context.value,
            low=required.low + context.low,
            high=required.high + context.high,
            share_high=required.share_high + context.high,
        ),
    )


def tensor_peak(
    parameters: MemoryParameters,
    graph: ModelGraph,
    division: Division,
    checkpoints: Checkpoints | None = None,
    in_flight: FloatArray | float = 1.0,
) -> Peak:
    """Return what a process takes and needs without the CUDA context, in bytes; no GPU changes it.

    Args:
        parameters: What was learned.
        graph: The model.
        division: The work of *graph* on the one GPU, or what one of several has of it.
        checkpoints: From which blocks are computed once more.
        in_flight: Batches whose activations wait for the backward pass, of all nodes or of each.
    """
    lowering, workload, sharding = division.lowering, division.workload, division.sharding
    trained = trained_share(workload) * sharding.gradients
    tensors = walk(graph, lowering, workload.batch_size).as_trained(trained, checkpoints, lowering.structure)
    convolves = bool((lowering.operator_class <= _LAST_CONVOLUTION).any())
    library_bytes = float(_learned(parameters).constants[_POINT]) if convolves else 0.0

    # A pass without gradients. cuDNN's scratch memory is part of what it takes, not of what it needs.
    weights = weight_memory_bytes(lowering, workload.precision) * sharding.weights
    passing = weights + _passing_bytes(tensors, tensors.live)
    scratch_bytes = WORKSPACE_FACTOR * (lowering.read_bytes + lowering.written_bytes + lowering.parameter_bytes)
    workspace = np.minimum(scratch_bytes, MAXIMUM_WORKSPACE_BYTES) * _IS_DENSE_CONVOLUTION[lowering.operator_class]
    at_once = tensors.live + workspace[lowering.structure.kind_of_node]
    inference = weights + _passing_bytes(tensors, at_once) + library_bytes
    if not lowering.train:
        return Peak(_inference(graph, inference), inference_need(parameters, graph, passing + library_bytes))

    # A training step: the learned sum of the walk's terms, changed by what the measured runs did not have.
    walked = terms(lowering, tensors)
    peak = tensors.with_stored_gradients(workload).training_peak() + tensors.other_batches_bytes(in_flight)
    held = _held_bytes(lowering, tensors, peak, workload, sharding)
    changed = peak - walked.peak - narrower_bytes(lowering, workload) * sharding.weights
    sums = _weighted_sums(parameters, lowering, walked, workload, sharding, convolves=convolves)
    low, value, high = (end + changed for end in sums)

    # Buffers: the least, what is usual, and the most.
    low += sharding.gathered_bytes
    value += sharding.bucket_bytes + sharding.gathered_bytes
    high += sharding.bucket_bytes + sharding.max_gathered_bytes

    if workload.lora:
        low -= _narrow_adapters_bytes(lowering, workload, sharding)
    elif workload.trainable < 1:  # gradients of activations may stop before all but the last layers
        low = min(low, inference - weights + _resident_bytes(lowering, workload, sharding))
    least = max(inference, library_bytes + held)
    value_or_least = max(value, least)
    low = min(low, value_or_least / (1.0 if convolves else LOWER_WITHOUT_CONVOLUTIONS))

    margin, unknown = value_or_least * (1.0 + LEAST_MARGIN) + BLOCK_BYTES, spread(0.0, graph)
    taken = Interval(value=value_or_least, low=min(low, value_or_least) / unknown, high=max(high, margin) * unknown)
    return Peak(taken, training_need(parameters, graph, max(passing, held), taken, convolves=convolves))


def decoding_peak(parameters: MemoryParameters, graph: ModelGraph, decoding: DecodingWork, workload: Workload) -> Peak:
    """Return what a process that generates takes and needs without the CUDA context: with keys and values."""
    weights = weight_memory_bytes(decoding.prompt, workload.precision)
    most = weights + max(_present_bytes(graph, one, workload.batch_size) for one in decoding.memory_phases())
    return Peak(_inference(graph, most), inference_need(parameters, graph, most))


def peak_pass(graph: ModelGraph, decoding: DecodingWork, batch_size: int) -> Pass:
    """Return the pass of *decoding* in which most memory is taken."""
    return max(decoding.memory_phases(), key=lambda one: _present_bytes(graph, one, batch_size))


def _present_bytes(graph: ModelGraph, one: Pass, batch_size: int) -> float:
    tensors = walk(graph, one.lowering, batch_size)
    return one.kv_cache_bytes + _passing_bytes(tensors, tensors.live)


def _passing_bytes(tensors: Walk, at_once: FloatArray) -> float:
    """Return the inputs of a pass, and the most bytes that are there *at_once*, one entry per node."""
    return ALLOCATOR_FACTOR * (tensors.input_bytes + float(at_once.max(initial=0.0)))


def _inference(graph: ModelGraph, value: float) -> Interval:
    return interval_around(value, spread(INFERENCE_DEVIATION, graph))


def weight_share(workload: Workload) -> float:
    """Return what the weights take against 4 bytes each, those that are trained included."""
    return (1.0 - workload.trainable) * parameter_share(workload.precision) + trained_share(workload)


def narrower_bytes(lowering: Lowering, workload: Workload) -> float:
    """Return what quantised weights take less than those of 2 bytes, but for the largest layer, which is widened."""
    if workload.precision not in QUANTISED_BYTES:
        return 0.0
    whole = lowering.parameter_count * float(FLOAT_BYTES[workload.precision])
    largest = float(lowering.parameter_bytes.max(initial=0.0))
    return max(whole - weight_memory_bytes(lowering, workload.precision) - largest, 0.0)


def state_bytes(workload: Workload, lowering: Lowering) -> float:
    """Return the optimizer's state for each 4 bytes of weights.

    A weight of 2 bytes has half of it, but for moments of 8 bits, which it has whole.
    """
    state = STATE_BYTES[workload.optimizer]
    if workload.optimizer == "muon":
        state -= STATE_BYTES["momentum"] * hidden_share(lowering)
    return state / number_share(workload) if state == _MOMENTS_OF_8_BITS else state


def _copy_bytes(workload: Workload) -> float:
    """Return the bytes of each weight's copy in half precision, where there is one."""
    return float(FLOAT_BYTES[workload.precision]) if workload.precision in AUTOCAST else 0.0


def _narrow_adapters_bytes(lowering: Lowering, workload: Workload, sharding: Sharding) -> float:
    """Return what adapters and loss take less where a library has both in 2 bytes, as litgpt and Qwen's scripts."""
    if parameter_share(workload.precision) == 1:
        return 0.0
    a_weight = WEIGHT_BYTES * (sharding.weights + sharding.gradients) + state_bytes(workload, lowering) * sharding.state
    adapters = lowering.parameter_count * trained_share(workload) * a_weight
    return 0.5 * (adapters + LOSS_BYTES * lowering.output_elements_of_model)


class _Learned(NamedTuple):
    """What was learned: of low end, point and high end, and where a run needs it, of a share's high end.

    Attributes:
        weights: Of the walk's terms, shape (3, terms).
        constants: Bytes that cuDNN's kernels add to the context, shape (3,).
        need_constants: The same of what a run needs, shape (4,), as *need_factors* is.
        need_factors: Of the tensors that live at once.
    """

    weights: FloatArray
    constants: FloatArray
    need_constants: FloatArray
    need_factors: FloatArray


@lru_cache(maxsize=4)
def _learned(parameters: MemoryParameters) -> _Learned:
    return _Learned(
        shaped("weights", parameters.weights, _ENDS, len(TRAINING_TERMS)),
        shaped("constant_bytes", parameters.constant_bytes, _ENDS) - FITTED_CONTEXT_BYTES,
        shaped("required_constant_bytes", parameters.required_constant_bytes, _NEED_ENDS),
        shaped("required_factors", parameters.required_factors, _NEED_ENDS),
    )


def _weighted_sums(
    parameters: MemoryParameters,
    lowering: Lowering,
    walked: TrainingTerms,
    workload: Workload,
    sharding: Sharding,
    *,
    convolves: bool,
) -> list[float]:
    """Return low end, point and high end of a training step in bytes, context left out."""
    learned, share = _learned(parameters), trained_share(workload)
    sums = learned.weights @ np.array(walked._replace(weights=walked.weights * share * sharding.state))

    # The measured runs trained in fp32 with momentum: no copies of autocast, another state. They count weights as
    # divided like the state, so what is not divided is added.
    state = (state_bytes(workload, lowering) - FITTED_STATE_BYTES) * share * sharding.state
    frozen = (weight_share(workload) - share) * sharding.weights + share * (sharding.weights - sharding.state)
    unmeasured = _copy_bytes(workload) * sharding.copies + state + WEIGHT_BYTES * frozen

    extra = lowering.parameter_count * unmeasured + LOSS_BYTES * lowering.output_elements_of_model
    ends: list[float] = ((sums + learned.constants if convolves else sums) + extra).tolist()
    return ends


def _resident_bytes(lowering: Lowering, workload: Workload, sharding: Sharding) -> float:
    """Return what stays from step to step: weights and state."""
    state = state_bytes(workload, lowering) * trained_share(workload) * sharding.state
    a_weight = WEIGHT_BYTES * weight_share(workload) * sharding.weights + state
    whole = lowering.parameter_count * (a_weight + _copy_bytes(workload) * sharding.persistent_copies)
    return whole - narrower_bytes(lowering, workload) * sharding.weights


def _held_bytes(lowering: Lowering, tensors: Walk, peak_bytes: float, workload: Workload, sharding: Sharding) -> float:
    """Return what must be there at once: in the passes, where tensors take *peak_bytes*, or in the update."""
    resident = _resident_bytes(lowering, workload, sharding)
    in_passes = resident + sharding.bucket_bytes + sharding.gathered_bytes
    in_passes = in_passes + peak_bytes + LOSS_BYTES * lowering.output_elements_of_model
    if workload.optimizer == "none":
        return max(in_passes, tensors.input_bytes)

    # The update has gradients, and what it computes of them for all weights at once.
    copied = 0.0 if STATE_BYTES[workload.optimizer] == _MOMENTS_OF_8_BITS else UPDATE_COPY_BYTES
    if workload.optimizer == "muon":  # which updates hidden matrices one after the other
        copied *= 1.0 - hidden_share(lowering)
    a_weight = GRADIENT_BYTES * sharding.gradients + copied * sharding.state
    more = lowering.parameter_count * trained_share(workload) * a_weight
    return max(in_passes, tensors.input_bytes + resident + more + sharding.bucket_bytes)


def training_need(
    parameters: MemoryParameters, graph: ModelGraph, tensor_peak: float, taken: Interval, *, convolves: bool
) -> MemoryInterval:
    """Return what a training step needs without the CUDA context, in bytes.

    Args:
        parameters: What was learned.
        graph: The model.
        tensor_peak: The most that the walk says must be there at once.
        taken: What the step takes on a free GPU: it needs no more, as expected and at both ends.
        convolves: Whether it uses cuDNN, whose kernels add to the context; the allocator has blocks all the same.
    """
    unknown, learned = spread(0.0, graph), _learned(parameters)
    constants = learned.need_constants if convolves else BLOCK_BYTES
    low, value, high, share_high = (learned.need_factors * tensor_peak + constants).tolist()

    value = min(value, taken.value)
    low = min(low, value if convolves else value / LOWER_WITHOUT_CONVOLUTIONS, taken.low * unknown)
    high = max(min(high * unknown, taken.high), value)
    return MemoryInterval(value=value, low=low / unknown, high=high, share_high=max(share_high * unknown, high))


def inference_need(parameters: MemoryParameters, graph: ModelGraph, tensor_peak: float) -> MemoryInterval:
    """Return what a pass without gradients needs, which is *tensor_peak* with what the allocator adds."""
    uncertain, factors = spread(INFERENCE_DEVIATION, graph), _learned(parameters).need_factors
    # Nobody measured it, so a share's end lies as far above as that of training at least.
    farthest = max(uncertain, float(factors[_NEED_SHARE_HIGH] / factors[_POINT]) * spread(0.0, graph))
    return MemoryInterval(
        value=tensor_peak, low=tensor_peak / uncertain, high=tensor_peak * uncertain, share_high=tensor_peak * farthest
    )
