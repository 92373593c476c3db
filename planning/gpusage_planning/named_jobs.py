"""Jobs by the names in the data: Gavel's, Lucid's, and the nine of MLPerf that Takayama et al. ran."""

from __future__ import annotations

from typing import NamedTuple

from gpusage_hooks.types import Mode, Optimizer, Workload


class NamedJob(NamedTuple):
    """A graph's key in the zoo, and how the job trains it."""

    key: str
    optimizer: Optimizer


GAVEL = {
    "ResNet-18": NamedJob("gavel:resnet18@32", "momentum"),
    "ResNet-50": NamedJob("gavel:resnet50@224", "momentum"),
    "LM": NamedJob("gavel:lm@35", "sgd"),
    "Transformer": NamedJob("gavel:transformer@32", "adam"),
    "Recommendation": NamedJob("gavel:recommendation@20108", "adam"),
    "CycleGAN": NamedJob("gavel:cyclegan@256", "adam"),
    "A3C": NamedJob("gavel:a3c@80", "adam"),
}
LUCID = {
    "BERT": NamedJob("lucid:bert@384", "adamw"),
    "DCGAN": NamedJob("lucid:dcgan@64", "adam"),
    "EfficientNet": NamedJob("lucid:efficientnet@32", "momentum"),
    "LSTM": NamedJob("gavel:lm@35", "sgd"),
    "MobileNetV2": NamedJob("lucid:mobilenet_v2@32", "momentum"),
    "MobileNetV3": NamedJob("lucid:mobilenet_v3@224", "sgd"),
    "NeuMF": NamedJob("lucid:neumf@1", "momentum"),
    "PPO": NamedJob("lucid:ppo@8", "adam"),
    "PointNet": NamedJob("lucid:pointnet@2500", "adam"),
    "ResNet18": NamedJob("gavel:resnet18@32", "momentum"),
    "ResNet50": NamedJob("gavel:resnet50@224", "sgd"),
    "TD3": NamedJob("lucid:td3@24", "adam"),
    "Transformer": NamedJob("gavel:transformer@32", "adam"),
    "VGG": NamedJob("lucid:vgg@32", "momentum"),
}


def workload(job: NamedJob, batch_size: float, *, half: bool = False) -> Workload:
    """Return the training workload; a batch that the data leaves out is 1."""
    batch = int(batch_size) if batch_size == batch_size else 1  # noqa: PLR0124 - NaN is not itself
    return Workload(batch_size=batch, precision="fp16" if half else "fp32", optimizer=job.optimizer)


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
"""The figures of the paper's tables are facts, typed in here; nothing was fitted on them.

Batch sizes of MLPerf's reference scripts for one GPU; ResNet-50's fits the paper's steps and time. All in fp32."""
