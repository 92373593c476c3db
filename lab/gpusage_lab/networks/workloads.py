"""Graphs of the jobs that Gavel and Lucid measured: the sizes of their training scripts, without their weights.

A graph stands for one training step's forward passes: CycleGAN's has all its generators' and discriminators' calls,
A3C's the 20 frames that an update looks at.

Source:
    stanford-futuredata/gavel, workloads/pytorch, and S-Lab-System-Group/Lucid, workloads: the sizes alone; the models
    themselves are those of the papers, built from torch's and torchvision's own layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpusage.graphs.torch.libraries import build_on_meta, import_library
from gpusage.graphs.torch.module import graph_from_module
from gpusage_hooks.types import ModelGraph
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.networks import layers

Recipe = Callable[[], ModelGraph]
Module = Any
"""A torch.nn.Module; torch is imported only where a graph is made."""

CIFAR_CLASSES = 10
WIKITEXT2_TOKENS = 33_278
MULTI30K_TOKENS = (2_911, 3_149)
"""Words seen five times, German and English."""
SENTENCE_LENGTH = 32
"""About the longest sentence of a batch, to which the others are padded."""
ML20M_ITEMS = 20_108
FRAMES = 20


def gavel_models(_: DataFolder) -> dict[str, Recipe]:
    """Return Gavel's seven models."""
    return {
        "gavel:resnet18@32": partial(_image, "gavel:resnet18", resnet18_for_cifar, 32),
        "gavel:resnet50@224": partial(_image, "gavel:resnet50", partial(_torchvision, "resnet50"), 224),
        "gavel:lm@35": partial(_tokens, "gavel:lm", language_model, (35,)),
        "gavel:transformer@32": partial(_tokens, "gavel:transformer", translator, (SENTENCE_LENGTH,) * 2),
        "gavel:recommendation@20108": partial(_floats, "gavel:recommendation", autoencoder, (ML20M_ITEMS,)),
        "gavel:cyclegan@256": partial(_floats, "gavel:cyclegan", layers.cyclegan_step, (3, 256, 256), 2),
        "gavel:a3c@80": partial(_floats, "gavel:a3c", partial(layers.actor_critic, FRAMES), (FRAMES, 1, 80, 80)),
    }


def lucid_models(_: DataFolder) -> dict[str, Recipe]:
    """Return Lucid's models that are not Gavel's; evaluation only, as its licence says."""
    return {
        "lucid:mobilenet_v2@32": partial(_image, "lucid:mobilenet_v2", mobilenet_for_cifar, 32),
        "lucid:efficientnet@32": partial(_image, "lucid:efficientnet", efficientnet_for_cifar, 32),
        "lucid:vgg@32": partial(_image, "lucid:vgg", vgg_for_cifar, 32),
        "lucid:mobilenet_v3@224": partial(
            _image, "lucid:mobilenet_v3", partial(_torchvision, "mobilenet_v3_small"), 224
        ),
        "lucid:dcgan@64": partial(_floats, "lucid:dcgan", layers.dcgan_step, (3, 64, 64)),
        "lucid:neumf@1": partial(_tokens, "lucid:neumf", layers.collaborative_filter, (), 2),
        "lucid:pointnet@2500": partial(_floats, "lucid:pointnet", layers.point_network, (3, 2500)),
        "lucid:ppo@8": partial(_floats, "lucid:ppo", partial(layers.perceptron, (8, 64, 64, 4)), (8,)),
        "lucid:td3@24": partial(_floats, "lucid:td3", partial(layers.perceptron, (28, 400, 300, 1)), (28,)),
        "lucid:bert@384": _bert,
    }


def resnet18_for_cifar() -> Module:
    """Return ResNet-18 with a stem for images of 32 x 32: one 3 x 3 convolution, no pooling."""
    torch, model = import_library("torch"), _torchvision("resnet18", CIFAR_CLASSES)
    model.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = torch.nn.Identity()
    return model


def mobilenet_for_cifar() -> Module:
    """Return MobileNetV2 whose first three steps keep the image's size."""
    model = _torchvision("mobilenet_v2", CIFAR_CLASSES)
    model.features[0][0].stride = (1, 1)
    model.features[2].conv[1][0].stride = (1, 1)
    return model


def efficientnet_for_cifar() -> Module:
    """Return EfficientNet-B0 whose stem keeps the image's size."""
    model = _torchvision("efficientnet_b0", CIFAR_CLASSES)
    model.features[0][0].stride = (1, 1)
    return model


def vgg_for_cifar() -> Module:
    """Return VGG-11 with batch normalisation and one linear layer at its end."""
    torch, model = import_library("torch"), _torchvision("vgg11_bn", CIFAR_CLASSES)
    return torch.nn.Sequential(model.features, torch.nn.Flatten(), torch.nn.Linear(512, CIFAR_CLASSES))


def language_model() -> Module:
    """Return the two-layer LSTM of 200 units over Wikitext-2's words."""
    return layers.recurrent_language_model(WIKITEXT2_TOKENS, width=200, layers=2)


def translator() -> Module:
    """Return the Transformer of Vaswani et al., base size, over Multi30k's words."""
    return layers.sequence_to_sequence(*MULTI30K_TOKENS, width=512, heads=8, inner=2048, layers=6)


def autoencoder() -> Module:
    """Return the autoencoder of one hidden layer over ML-20M's items."""
    torch = import_library("torch")
    hidden = 200
    return torch.nn.Sequential(
        torch.nn.Dropout(0.5),
        torch.nn.Linear(ML20M_ITEMS, hidden),
        torch.nn.Tanh(),
        torch.nn.Linear(hidden, ML20M_ITEMS),
    )


def _torchvision(name: str, classes: int = 1000) -> Module:
    return getattr(import_library("torchvision").models, name)(weights=None, num_classes=classes)


def _image(name: str, build: Callable[[], Module], side: int) -> ModelGraph:
    return _floats(name, build, (3, side, side))


def _floats(name: str, build: Callable[[], Module], shape: Sequence[int], count: int = 1) -> ModelGraph:
    torch = import_library("torch")
    inputs = tuple(torch.empty((2, *shape), device="meta") for _ in range(count))
    return graph_from_module(build_on_meta(build, name), inputs, name=name.partition(":")[2], origin=name)


def _tokens(name: str, build: Callable[[], Module], lengths: Sequence[int], count: int = 0) -> ModelGraph:
    """Return the graph of a model of one sequence for each of *lengths*, or of *count* single tokens."""
    torch = import_library("torch")
    shapes: list[tuple[int, ...]] = [(2, length) for length in lengths] or [(2,)] * count
    inputs = tuple(torch.empty(shape, dtype=torch.int64, device="meta") for shape in shapes)
    return graph_from_module(build_on_meta(build, name), inputs, name=name.partition(":")[2], origin=name)


def _bert() -> ModelGraph:
    transformers, torch = import_library("transformers"), import_library("torch")
    model = build_on_meta(lambda: transformers.BertForQuestionAnswering(transformers.BertConfig()), "lucid:bert")
    model.warn_if_padding_and_no_attention_mask = lambda *_: None
    words = {"input_ids": torch.empty((2, 384), dtype=torch.int64, device="meta")}
    return graph_from_module(model, (), keywords=words, name="bert", origin="lucid:bert")
