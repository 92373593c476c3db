"""DeepBench's matrix products as steps of one kernel: single precision, and half where there are tensor cores.

The times are those of ``results/train/DeepBench_NV_*.xlsx``, of a loop with one launch behind the other, so that hardly
anything of the host is in them. Its convolutions are not learned from: they take the fastest of cuDNN's algorithms,
which frameworks rarely do, and Ardagna's experiment (`seeds.ardagna_layers`) tests on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.devices.precisions import has_matrix_units
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Gpu, Precision
from gpusage_lab.learning.step_flat import Sample
from gpusage_lab.learning.step_operators import one_kernel
from gpusage_lab.measurements.tables import DataFolder

FILE = "deepbench_gemm.csv"
DEVICES: Mapping[str, str] = {
    "1080Ti": "gtx-1080-ti",
    "P100": "p100-pcie-16gb",
    "T4": "t4",
    "V100": "v100-sxm2-16gb",
}
"""Not M40 and two TITAN X, which the catalogue lacks. V100 reaches 105 % of the PCIe board's peak."""
PRECISIONS: Mapping[str, tuple[Precision, float]] = {"fp32": ("fp32", 4.0), "fp16_mixed": ("fp16", 2.0)}
"""By DeepBench's name: ours, and bytes per element."""
HOST_SHARE = 0.01
"""Of the host's time for a step: nearly none, and above 0 as its logarithm is fitted."""


def product_samples(data: DataFolder) -> list[Sample]:
    """Return the products of the GPUs in `DEVICES`; P100's half precision, without tensor cores, is left out."""
    samples: list[Sample] = []
    for row in data.read(FILE).itertuples():
        if row.gpu in DEVICES:
            gpu = builtin_catalogue().find(DEVICES[row.gpu])
            precision, element_bytes = PRECISIONS[row.precision]
            if precision == "fp32" or has_matrix_units(gpu):
                samples.append(_sample(row, gpu, precision, element_bytes))
    return samples


def _sample(row: Any, gpu: Gpu, precision: Precision, element_bytes: float) -> Sample:  # a row of pandas
    outputs = float(row.m * row.n)
    traffic = element_bytes * (row.m * row.k + row.k * row.n + outputs)
    work = (OperatorClass.PRODUCT, 2.0 * outputs * row.k, traffic, outputs, float(row.k), float(row.m))
    return Sample(
        kernels=one_kernel(work, host_share=HOST_SHARE, matrix_units=float(precision != "fp32")),
        gpu=gpu,
        precision=precision,
        measured_s=row.time_ms / 1e3,
        campaign=f"deepbench {gpu.name}",
    )
