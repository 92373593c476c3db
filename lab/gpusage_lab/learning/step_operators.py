"""Operators measured alone, as steps of one kernel: NeuSight's in fp32, and DeepBench's matrix products.

**NeuSight**, forward, each launched alone. TF32 was off, which the source does not say: its A100 runs convolutions at
0.7 to 2.1 times the peak of FP32 (Winograd), as its GPUs without TF32 do, and TF32 has eight times that peak. So no
kernel of these has matrix units. A fixed part of each operator and GPU is drawn, spread evenly over the measured times;
the rest adds nothing new. AMD's GPUs are left out: the catalogue has none.

**DeepBench**, in single precision, and in half where there are tensor cores. The times are those of
``results/train/DeepBench_NV_*.xlsx``, of a loop with one launch behind the other, so that hardly anything of the host
is in them. Its convolutions take the fastest of cuDNN's algorithms, which frameworks rarely do: they are not fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.devices.precisions import has_matrix_units
from gpusage.predictors.times.kernels import OUTPUTS_PER_BLOCK, Kernels
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Gpu, Precision
from gpusage_lab.learning.step_flat import Sample
from gpusage_lab.measurements.tables import DataFolder

DEVICES = {
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm5-80gb",
    "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA L4": "l4",
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "Tesla P4": "p4",
    "Tesla T4": "t4",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
}
ROWS = {"bmm": 350, "linear": 350, "conv": 400, "ln": 120, "softmax": 120}
DEFAULT_ROWS = 40
"""Drawn for each operator and GPU."""
FP32 = 4.0
"""Bytes of a number."""
HOST_SHARE = 0.3
"""Of the host's time for a step: an operator by itself is launched, and little else."""
LONG_S, MORE_ROWS = 2e-3, 16.0
"""An operator that takes this long has filled its GPU: on so many times its rows it takes so many times as long."""
Work = tuple[OperatorClass, float, float, float, float, float]
"""Class, FLOP, traffic in bytes, outputs, inner length, width."""


def operator_samples(data: DataFolder) -> list[Sample]:
    """Return the drawn operators, each with a host of its own GPU; long ones once more, on more rows."""
    table = data.read("neusight_ops.csv.gz")
    table = table[table.device.isin(list(DEVICES)) & (table.latency_ms > 0)]
    samples: list[Sample] = []
    for (device, op), group in table.groupby(["device", "op"], sort=True):
        gpu = builtin_catalogue().find(DEVICES[device])
        ordered = group.sort_values("latency_ms", kind="stable")
        count = min(ROWS.get(op, DEFAULT_ROWS), len(ordered))
        drawn = ordered.iloc[np.linspace(0, len(ordered) - 1, count).astype(int)]
        samples += _samples(drawn, op, gpu)
    return [*samples, *(_with_more_rows(sample) for sample in samples if sample.measured_s > LONG_S)]


def _with_more_rows(sample: Sample) -> Sample:
    """Return a long operator on more rows, which nobody measured: a larger batch costs no efficiency."""
    kernels = sample.kernels
    more = replace(
        kernels,
        flop=kernels.flop * MORE_ROWS,
        traffic_bytes=kernels.traffic_bytes * MORE_ROWS,
        blocks=kernels.blocks * MORE_ROWS,
    )
    return replace(sample, kernels=more, measured_s=sample.measured_s * MORE_ROWS)


def _samples(drawn: Any, op: str, gpu: Gpu) -> Iterator[Sample]:  # a pandas DataFrame
    work = WORK.get(op, _elementwise(3.0 if op in ("add", "div", "mul", "pow") else 2.0))
    for row in drawn.itertuples():
        yield Sample(
            kernels=one_kernel(work(row), host_share=HOST_SHARE),
            gpu=gpu,
            precision="fp32",
            measured_s=row.latency_ms / 1e3,
            campaign=f"neusight operators {gpu.name}",
        )


def one_kernel(work: Work, *, host_share: float, matrix_units: float = 0.0) -> Kernels:
    """Return the step of one forward kernel; *host_share* is of the host's time for a step."""
    operator_class, flop, traffic, outputs, inner, width = work
    return Kernels(
        operator_class=np.array([operator_class], dtype=np.int64),
        flop=np.array([flop]),
        traffic_bytes=np.array([traffic]),
        blocks=np.maximum(np.array([outputs]) / OUTPUTS_PER_BLOCK[operator_class], 1.0),
        launches=np.ones(1),
        dependent_loads=np.zeros(1),
        counts=np.ones(1),
        matrix_units=np.array([matrix_units]),
        inner=np.array([inner]),
        width=np.array([width]),
        backward=np.zeros(1),
        host_counts=np.array([host_share, 0.0, 0.0, 0.0]),
    )


def _bmm(row: Any) -> Work:  # a row of pandas
    b, m, n, k = row.b, row.m, row.n, row.k
    traffic = FP32 * b * (m * k + k * n + m * n)
    return OperatorClass.BATCHED_PRODUCT, 2.0 * b * m * n * k, traffic, b * m * n, k, n


def _linear(row: Any) -> Work:
    m, n, k = row.b * row.m, row.n, row.k
    return OperatorClass.PRODUCT, 2.0 * m * n * k, FP32 * (m * k + k * n + n + m * n), m * n, k, n


def _convolution(row: Any) -> Work:
    side = (row.in_size + 2 * row.pad - row.kernel) // row.stride + 1
    outputs = row.b * row.c_out * side * side
    inner = row.c_in * row.kernel**2
    read = row.b * row.c_in * row.in_size**2 + inner * row.c_out
    return OperatorClass.CONVOLUTION, 2.0 * outputs * inner, FP32 * (read + outputs), outputs, inner, row.c_out


def _rows(operator_class: OperatorClass, flop: float) -> Callable[[Any], Work]:
    def work(row: Any) -> Work:
        outputs = float(row.b * row.h)
        return operator_class, flop * outputs, 2.0 * FP32 * outputs, outputs, 1.0, float(row.h)

    return work


def _elementwise(tensors: float) -> Callable[[Any], Work]:
    def work(row: Any) -> Work:
        outputs = float(row.b * row.h)
        return OperatorClass.ELEMENTWISE, outputs, tensors * FP32 * outputs, outputs, 1.0, 1.0

    return work


WORK: dict[str, Callable[[Any], Work]] = {
    "bmm": _bmm,
    "linear": _linear,
    "conv": _convolution,
    "ln": _rows(OperatorClass.NORMALIZATION, 8.0),
    "softmax": _rows(OperatorClass.REDUCTION, 5.0),
}


FILE = "deepbench_gemm.csv"
PRODUCT_GPUS: Mapping[str, str] = {
    "1080Ti": "gtx-1080-ti",
    "P100": "p100-pcie-16gb",
    "T4": "t4",
    "V100": "v100-sxm2-16gb",
}
"""Not M40 and two TITAN X, which the catalogue lacks. V100 reaches 105 % of the PCIe board's peak."""
PRECISIONS: Mapping[str, tuple[Precision, float]] = {"fp32": ("fp32", 4.0), "fp16_mixed": ("fp16", 2.0)}
"""By DeepBench's name: ours, and bytes per element."""
PRODUCT_HOST_SHARE = 0.01
"""Of the host's time for a step: nearly none, and above 0 as its logarithm is fitted."""


def product_samples(data: DataFolder) -> list[Sample]:
    """Return the products of the GPUs in `PRODUCT_GPUS`; P100's half precision, without tensor cores, is left out."""
    samples: list[Sample] = []
    for row in data.read(FILE).itertuples():
        if row.gpu in PRODUCT_GPUS:
            gpu = builtin_catalogue().find(PRODUCT_GPUS[row.gpu])
            precision, element_bytes = PRECISIONS[row.precision]
            if precision == "fp32" or has_matrix_units(gpu):
                samples.append(_sample(row, gpu, precision, element_bytes))
    return samples


def _sample(row: Any, gpu: Gpu, precision: Precision, element_bytes: float) -> Sample:  # a row of pandas
    outputs = float(row.m * row.n)
    traffic = element_bytes * (row.m * row.k + row.k * row.n + outputs)
    work = (OperatorClass.PRODUCT, 2.0 * outputs * row.k, traffic, outputs, float(row.k), float(row.m))
    return Sample(
        kernels=one_kernel(work, host_share=PRODUCT_HOST_SHARE, matrix_units=float(precision != "fp32")),
        gpu=gpu,
        precision=precision,
        measured_s=row.time_ms / 1e3,
        campaign=f"deepbench {gpu.name}",
    )
