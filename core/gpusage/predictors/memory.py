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

DEVIATION = {"train": 0.10, "infer": 0.12}
STATE_BYTES = {"none": 0.0, "sgd": 0.0, "momentum": 4.0, "adam": 8.0, "adamw": 8.0, "adafactor": 0.1}
"""The optimizer's state, bytes a weight: the moments in fp32; Adafactor keeps sums of rows and columns."""
CONTEXT_BYTES = {
    "kepler": 250 * MIB,
    "pascal": 300 * MIB,
    "volta": 400 * MIB,
    "turing": 380 * MIB,
    "ampere": 480 * MIB,
    "ada": 480 * MIB,
    "hopper": 560 * MIB,
    "blackwell": 600 * MIB,
}
"""CUDA context with the kernels of PyTorch, cuBLAS and cuDNN that are loaded, as nvidia-smi shows them."""
DEFAULT_CONTEXT_BYTES = 600 * MIB
ALLOCATOR_FACTOR = 1.06
"""The caching allocator rounds blocks up and cannot join all that is free."""
MAXIMUM_WORKSPACE_BYTES = 1024 * MIB
"""cuDNN's search tries no algorithm that wants more."""
WORKSPACE_FACTOR = 1.0
"""Scratch memory of a convolution for each byte that it reads and writes."""
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
        low=tensor_bytes / factor + 0.8 * context_bytes,
        high=tensor_bytes * factor + 1.2 * context_bytes,
    )


@lru_cache(maxsize=512)
def _tensor_bytes(key: Identity[Lowering], precision: str, optimizer: str) -> float:
    """Return what the allocator holds at the peak, workspace included."""
    lowering = key.value
    if lowering.train:
        walk, resident = _training_peak(lowering, precision), _resident(lowering, precision, optimizer)
    else:
        walk, resident = _inference_peak(lowering), float(lowering.parameter_count * FLOAT_BYTES[precision])
    return float(ALLOCATOR_FACTOR * (walk + resident))


def _resident(lowering: Lowering, precision: str, optimizer: str) -> float:
    """Return weights and state in fp32 and, in mixed precision, the copies of 2 bytes that autocast keeps."""
    copies = 2.0 if FLOAT_BYTES[precision] < FLOAT_BYTES["fp32"] else 0.0
    return lowering.parameter_count * (4.0 + STATE_BYTES[optimizer] + copies)


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
