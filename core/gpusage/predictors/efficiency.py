"""How much of a GPU's peak each class of operator reaches: data, and nothing else.

The figures were fitted by least squares of the logarithmic error, with a hand's help, on public measurements whose
licences allow it (MIT, Apache-2.0): timm's benchmark results (RTX 3090, 4090, 5090), pytorch-gpu-benchmark (TITAN Xp,
TITAN RTX, RTX 2080 Ti, A100) and NeuSight's model latencies (P4 to H100). Another version of them will be learned.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from gpusage.predictors.operators import OperatorClass

FloatArray = npt.NDArray[np.float64]


class ComputePath(IntEnum):
    """Which units of a GPU do the arithmetic; the number is the index of a column."""

    CUDA_CORES = 0
    TF32 = 1
    HALF = 2


_COMPUTE: dict[OperatorClass, tuple[float, float, float]] = {
    OperatorClass.CONVOLUTION: (0.66, 0.50, 0.62),
    OperatorClass.GROUPED_CONVOLUTION: (0.12, 0.12, 0.12),
    OperatorClass.PRODUCT: (0.78, 0.65, 0.66),
    OperatorClass.BATCHED_PRODUCT: (0.60, 0.45, 0.40),
    OperatorClass.ATTENTION: (0.50, 0.35, 0.35),
    OperatorClass.RECURRENT: (0.50, 0.40, 0.35),
    OperatorClass.BATCH_NORMALIZATION: (0.30, 0.30, 0.30),
    OperatorClass.NORMALIZATION: (0.30, 0.30, 0.30),
    OperatorClass.REDUCTION: (0.30, 0.30, 0.30),
    OperatorClass.ELEMENTWISE: (0.30, 0.30, 0.30),
    OperatorClass.GATHER: (0.30, 0.30, 0.30),
    OperatorClass.COPY: (0.30, 0.30, 0.30),
    OperatorClass.VIEW: (1.00, 1.00, 1.00),
    OperatorClass.UNKNOWN: (0.30, 0.30, 0.30),
    OperatorClass.OPTIMIZER: (0.30, 0.30, 0.30),
    OperatorClass.LOSS: (0.30, 0.30, 0.30),
}
"""Share of the peak arithmetic rate of a large kernel, by `ComputePath`."""

_MEMORY: dict[OperatorClass, float] = {
    OperatorClass.CONVOLUTION: 0.70,
    OperatorClass.GROUPED_CONVOLUTION: 0.45,
    OperatorClass.PRODUCT: 0.73,
    OperatorClass.BATCHED_PRODUCT: 0.68,
    OperatorClass.ATTENTION: 0.60,
    OperatorClass.RECURRENT: 0.50,
    OperatorClass.BATCH_NORMALIZATION: 0.75,
    OperatorClass.NORMALIZATION: 0.69,
    OperatorClass.REDUCTION: 0.65,
    OperatorClass.ELEMENTWISE: 0.56,
    OperatorClass.GATHER: 0.50,
    OperatorClass.COPY: 0.65,
    OperatorClass.VIEW: 1.00,
    OperatorClass.UNKNOWN: 0.50,
    OperatorClass.OPTIMIZER: 0.80,
    OperatorClass.LOSS: 0.60,
}
"""Share of the peak bandwidth of a large kernel."""

_OUTPUTS_PER_BLOCK: dict[OperatorClass, float] = {
    OperatorClass.CONVOLUTION: 4096,
    OperatorClass.GROUPED_CONVOLUTION: 1024,
    OperatorClass.PRODUCT: 8192,
    OperatorClass.BATCHED_PRODUCT: 4096,
    OperatorClass.ATTENTION: 4096,
    OperatorClass.RECURRENT: 4096,
}
"""Outputs that one thread block computes; `DEFAULT_OUTPUTS_PER_BLOCK` elsewhere."""

DEFAULT_OUTPUTS_PER_BLOCK = 1024.0
FILL = 0.5
"""A kernel of one block for each SM reaches 1 / (1 + FILL) of its class's efficiency."""
KERNEL_LATENCY_S = 2.5e-6
"""What a kernel takes however small it is."""
FORWARD_LAUNCH_S = 25e-6
"""What PyTorch takes on the host for one forward operation; servers were seen to differ by a factor of 2."""
BACKWARD_LAUNCH_S = 30e-6
"""What autograd takes on the host to launch one kernel."""
OPTIMIZER_LAUNCH_S = 1.5e-6
"""What a fused optimizer takes on the host for each weight tensor."""
STEP_S = 60e-6
"""What a step takes on the host whatever the model: the loss is read, the optimizer is called."""
OVERLAP = 4.0
"""Host and GPU work side by side: a step takes the OVERLAP-norm of the two times, near their maximum."""


def _column(table: dict[OperatorClass, float], default: float) -> FloatArray:
    return np.array([table.get(operator_class, default) for operator_class in OperatorClass])


COMPUTE: FloatArray = np.array([_COMPUTE[operator_class] for operator_class in OperatorClass])
"""Shape (classes, paths)."""
MEMORY: FloatArray = _column(_MEMORY, 1.0)
OUTPUTS_PER_BLOCK: FloatArray = _column(_OUTPUTS_PER_BLOCK, DEFAULT_OUTPUTS_PER_BLOCK)
HOST_S: FloatArray = np.array([STEP_S, FORWARD_LAUNCH_S, BACKWARD_LAUNCH_S, OPTIMIZER_LAUNCH_S])
"""Seconds of the host, in the order of `Kernels.host_counts`."""
