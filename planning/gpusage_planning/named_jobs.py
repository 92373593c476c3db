"""Gavel's and Lucid's jobs by the names in the data: which graph of the zoo, which optimizer."""

from __future__ import annotations

from typing import NamedTuple

from gpusage_hooks.types import Optimizer, Workload


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
