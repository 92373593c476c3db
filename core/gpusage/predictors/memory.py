"""Peak bytes of device memory: which tensors live at the same time, and what the libraries add.

Training keeps, beside weights, gradients and the optimizer's state, every tensor that a backward pass will read again;
the peak is the largest sum over the nodes in order, forward and then backward. Inference keeps a tensor until its last
reader has run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gpusage.predictors.identity import Identity
from gpusage.predictors.intervals import spread
from gpusage.predictors.lowering import FLOAT_BYTES, FloatArray, Lowering, lower
from gpusage.predictors.operators import OperatorClass
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Gpu, Interval, ModelGraph, Workload
from gpusage_hooks.units import MIB

DEVIATION = {"train": 0.12, "infer": 0.15}
"""Of the logarithm of measured over predicted, context left out; training: on 1,875 measured peaks of timm models."""
STATE_BYTES = {"none": 0.0, "sgd": 0.0, "momentum": 4.0, "adam": 8.0, "adamw": 8.0, "adafactor": 0.1}
"""The optimizer's state, bytes a weight: the moments in fp32; Adafactor keeps sums of rows and columns."""
CONTEXT_BYTES = {
    "kepler": 500 * MIB,
    "pascal": 800 * MIB,
    "volta": 1000 * MIB,
    "turing": 1000 * MIB,
    "ampere": 1500 * MIB,
    "ada": 1000 * MIB,
    "hopper": 1000 * MIB,
    "blackwell": 1000 * MIB,
}
"""CUDA context with the kernels of PyTorch, cuBLAS and cuDNN, as nvidia-smi shows it.

Ampere is the least peak of 3,000 perceptrons on an A100 (GPUMemNet, arXiv 2602.17817: 1,443 MiB). The others are
estimates by the number of kernels; where CUDA loads them lazily it is less than half, which the interval covers.
"""
DEFAULT_CONTEXT_BYTES = 1000 * MIB
CONTEXT_LOW, CONTEXT_HIGH = 0.4, 1.3
TRAINING_BYTES = 280 * MIB
"""What training takes beside all that is counted; fitted, with the next four, on the peaks of 280 timm models
(GPUMemNet: training in fp32, momentum, one A100)."""
ALLOCATOR_FACTOR = 1.05
"""The caching allocator rounds blocks up and cannot join all that is free."""
UPDATE_BYTES = 2.8
"""Of each weight: temporary copies of the gradients in the update, whose blocks nothing else reuses."""
WORKSPACE_FACTOR = 3.3
"""Scratch memory of a convolution for each byte that it reads and writes ..."""
MAXIMUM_WORKSPACE_BYTES = 970 * MIB
"""... and the most of it."""
LOSS_BYTES = 12.0
"""Of each output: in fp32 its logarithm of softmax, its gradient, and a copy."""


@hookimpl(trylast=True)
def predict_memory(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> Sequence[Interval]:
    """Predict the peak bytes of device memory on each GPU, context included."""
    tensors = _tensor_bytes(Identity(lower(graph, workload)), workload.precision, workload.optimizer)
    factor = spread(DEVIATION[workload.mode], graph)
    return [_interval(tensors, CONTEXT_BYTES.get(gpu.generation, DEFAULT_CONTEXT_BYTES), factor) for gpu in gpus]


def _interval(tensor_bytes: float, context_bytes: float, factor: float) -> Interval:
    return Interval(
        value=tensor_bytes + context_bytes,
        low=tensor_bytes / factor + CONTEXT_LOW * context_bytes,
        high=tensor_bytes * factor + CONTEXT_HIGH * context_bytes,
    )


@lru_cache(maxsize=512)
def _tensor_bytes(key: Identity[Lowering], precision: str, optimizer: str) -> float:
    """Return what the allocator holds at the peak, workspace included."""
    lowering = key.value
    if lowering.train:
        walk = _training_peak(lowering, precision)
        resident = _resident(lowering, precision, optimizer) + TRAINING_BYTES
    else:
        walk, resident = _inference_peak(lowering), float(lowering.parameter_count * FLOAT_BYTES[precision])
    return float(ALLOCATOR_FACTOR * walk + resident)


def _resident(lowering: Lowering, precision: str, optimizer: str) -> float:
    """Return weights, state and the update's copies in fp32 and, in mixed precision, what autocast casts to 2 bytes."""
    copies = 2.0 if FLOAT_BYTES[precision] < FLOAT_BYTES["fp32"] else 0.0
    updates = 0.0 if optimizer == "none" else UPDATE_BYTES
    return lowering.parameter_count * (4.0 + STATE_BYTES[optimizer] + updates + copies)


def _inference_peak(lowering: Lowering) -> float:
    structure = lowering.structure
    stored = lowering.output_bytes[structure.kind_of_node]
    node_count = len(stored)
    if not node_count:
        return 0.0
    change = np.zeros(node_count + 1)
    change[:node_count] += stored
    np.subtract.at(change, structure.last_reader + 1, stored)
    live = np.cumsum(change[:node_count])
    return float((live + _workspace(lowering)).max())


def _training_peak(lowering: Lowering, precision: str) -> float:
    """Return the largest sum of activations, gradients and workspace, forward and backward."""
    structure = lowering.structure
    kind = structure.kind_of_node
    node_count = len(kind)
    if not node_count:
        return 0.0
    stored = lowering.output_bytes[kind]
    kept = np.where(_is_kept(lowering), stored, 0.0) + lowering.kept_bytes[kind]
    passing = stored - np.minimum(kept, stored)
    change = np.zeros(node_count + 1)
    change[:node_count] += passing
    np.subtract.at(change, structure.last_reader + 1, passing)
    workspace = _workspace(lowering)
    kept_until = np.cumsum(kept)
    forward = kept_until + np.cumsum(change[:node_count]) + workspace
    backward = kept_until + _gradients_after(lowering, precision) + _passing_gradients(lowering) + workspace
    backward[-1] += LOSS_BYTES * lowering.output_elements_of_model
    return float(max(forward.max(), backward.max()))


def _is_kept(lowering: Lowering) -> npt.NDArray[np.bool_]:
    """Return, a node, whether some backward pass reads its storage: its own, or that of one of its readers."""
    structure = lowering.structure
    kept: npt.NDArray[np.bool_] = lowering.keeps_output[structure.kind_of_node].copy()
    keepers = lowering.keeps_inputs[structure.kind_of_node][structure.destinations]
    kept[structure.sources[keepers]] = True
    return kept


def _gradients_after(lowering: Lowering, precision: str) -> FloatArray:
    """Return, a node, the gradients of all weights from this node to the last: they are there when its turn comes."""
    structure = lowering.structure
    float_bytes = FLOAT_BYTES[precision]
    own = (lowering.parameter_bytes / float_bytes * FLOAT_BYTES["fp32"])[structure.kind_of_node]
    total = float(own.sum())
    limit = lowering.parameter_count * float(FLOAT_BYTES["fp32"])
    after = np.cumsum(own[::-1])[::-1]
    return after * (limit / total) if total > 0 else np.full(len(own), limit)


def _passing_gradients(lowering: Lowering) -> FloatArray:
    """Return, a node, the gradients of its output and of its inputs."""
    return (lowering.written_bytes + lowering.read_bytes)[lowering.structure.kind_of_node]


def _workspace(lowering: Lowering) -> FloatArray:
    """Return, a node, the scratch memory of its kernel."""
    convolution = lowering.operator_class == OperatorClass.CONVOLUTION
    wanted = WORKSPACE_FACTOR * (lowering.read_bytes + lowering.written_bytes + lowering.parameter_bytes)
    workspace: FloatArray = np.where(convolution, np.minimum(wanted, MAXIMUM_WORKSPACE_BYTES), 0.0)
    return workspace[lowering.structure.kind_of_node]
