"""The nine MLPerf jobs of Takayama et al., on a P100 and on a V100.

The figures of the paper's tables are facts, typed in here; nothing was fitted on them.
"""

from __future__ import annotations

from typing import NamedTuple

from gpusage_hooks.types import Mode, Optimizer

OLD, NEW = "p100-pcie-16gb", "v100-pcie-16gb"
"""By the clocks and peaks that the paper lists."""


class MlperfJob(NamedTuple):
    """A job of the paper: hours on either GPU (Skylake host), mean utilization of the V100 in percent, its graph."""

    name: str
    what: str
    old: str
    new: str
    utilization: float
    key: str
    batch_size: int
    optimizer: Optimizer = "adam"
    mode: Mode = "train"


JOBS = (
    MlperfJob("IC", "ResNet-50", "4:33:04", "3:01:13", 95.4, "gavel:resnet50@224", 64, "momentum"),
    MlperfJob("SSD", "SSD300, ResNet-34", "3:12:18", "3:09:12", 59.8, "mlperf:ssd@300", 32, "momentum"),
    MlperfJob("OD", "Mask R-CNN", "2:57:51", "2:23:26", 74.5, "mlperf:mask_rcnn@800", 2, "momentum"),
    MlperfJob("RM", "NCF", "1:09:07", "1:09:34", 44.3, "mlperf:ncf@1", 2048),
    MlperfJob("SA", "bag-of-words CNN", "1:48:14", "1:22:50", 82.0, "mlperf:seq2cnn@256", 128),
    MlperfJob("RT", "GNMT", "4:05:28", "2:48:18", 95.5, "mlperf:gnmt@32", 128),
    MlperfJob("TL", "Transformer, big", "4:29:21", "2:59:55", 83.9, "mlperf:transformer@32", 128),
    MlperfJob("SR", "Deep Speech 2", "15:07:34", "10:53:32", 65.1, "mlperf:deepspeech2@1200", 8, "momentum"),
    MlperfJob("RF", "Minigo, self-play", "6:08:37", "5:46:00", 62.7, "mlperf:minigo@9", 8, "none", "infer"),
)
"""Batch sizes of MLPerf's reference scripts for one GPU; ResNet-50's fits the paper's steps and time. All in fp32."""
