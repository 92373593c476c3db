"""Gavel's and Lucid's jobs by the names in the data: which graph of the zoo, which optimizer."""

from __future__ import annotations

from typing import NamedTuple

from gpusage_hooks.types import Optimizer, Workload


class Job(NamedTuple):
    """A graph's key in the zoo, and how the job trains it."""

    key: str
    optimizer: Optimizer


GAVEL = {
    "ResNet-18": Job("gavel:resnet18@32", "momentum"),
    "ResNet-50": Job("gavel:resnet50@224", "momentum"),
    "LM": Job("gavel:lm@35", "sgd"),
    "Transformer": Job("gavel:transformer@32", "adam"),
    "Recommendation": Job("gavel:recommendation@20108", "adam"),
    "CycleGAN": Job("gavel:cyclegan@256", "adam"),
    "A3C": Job("gavel:a3c@80", "adam"),
}
LUCID = {
    "BERT": Job("lucid:bert@384", "adamw"),
    "DCGAN": Job("lucid:dcgan@64", "adam"),
    "EfficientNet": Job("lucid:efficientnet@32", "momentum"),
    "LSTM": Job("gavel:lm@35", "sgd"),
    "MobileNetV2": Job("lucid:mobilenet_v2@32", "momentum"),
    "MobileNetV3": Job("lucid:mobilenet_v3@224", "sgd"),
    "NeuMF": Job("lucid:neumf@1", "momentum"),
    "PPO": Job("lucid:ppo@8", "adam"),
    "PointNet": Job("lucid:pointnet@2500", "adam"),
    "ResNet18": Job("gavel:resnet18@32", "momentum"),
    "ResNet50": Job("gavel:resnet50@224", "sgd"),
    "TD3": Job("lucid:td3@24", "adam"),
    "Transformer": Job("gavel:transformer@32", "adam"),
    "VGG": Job("lucid:vgg@32", "momentum"),
}


def workload(job: Job, batch_size: float, *, half: bool = False) -> Workload:
    """Return the training workload; a batch that the data leaves out is 1."""
    batch = int(batch_size) if batch_size == batch_size else 1  # noqa: PLR0124 - NaN is not itself
    return Workload(batch_size=batch, precision="fp16" if half else "fp32", optimizer=job.optimizer)
