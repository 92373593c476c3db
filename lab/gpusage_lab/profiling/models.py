"""Builds a named model with random weights on a device, and inputs of a batch size; runs in the worker alone.

``timm:``, ``torchvision:`` and ``hf:`` are the names that `gpusage predict` takes; ``builtin:`` are the kinds of
network that these libraries lack. Nothing is downloaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gpusage.graphs.named import huggingface
from gpusage.graphs.torch.libraries import import_library
from gpusage_hooks.errors import GraphError
from gpusage_lab.networks import layers, not_in_libraries, workloads

Module = Any
"""A torch.nn.Module; torch has no types where it is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputKind:
    """One input of a model.

    Attributes:
        sizes: Of one sample.
        tokens: Values are whole numbers below this; ``None`` for floating-point numbers.
    """

    sizes: tuple[int, ...]
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A model on its device, and what it is called with."""

    module: Module
    inputs: Mapping[str, InputKind]
    by_name: bool

    def batch(self, size: int, device: str, dtype: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:  # a torch.dtype
        """Return arguments for *size* random samples."""
        torch = import_library("torch")
        tensors = {
            name: torch.randn((size, *kind.sizes), device=device, dtype=dtype)
            if kind.tokens is None
            else torch.randint(0, kind.tokens, (size, *kind.sizes), device=device)
            for name, kind in self.inputs.items()
        }
        return ((), tensors) if self.by_name else (tuple(tensors.values()), {})


Recipe = tuple[Callable[[], Module], tuple[InputKind, ...]]


def _image(side: int) -> InputKind:
    return InputKind(sizes=(3, side, side))


BUILT_IN: Mapping[str, Recipe] = MappingProxyType(
    {
        "tiny-mlp": (lambda: layers.perceptron((16, 32, 4)), (InputKind(sizes=(16,)),)),
        "tiny-cnn": (not_in_libraries.tiny_convolutions, (_image(16),)),
        "tiny-lstm": (
            lambda: layers.recurrent_language_model(64, width=16, layers=1),
            (InputKind(sizes=(8,), tokens=64),),
        ),
        "mlp": (lambda: layers.perceptron((1024, *[4096] * 4, 1000)), (InputKind(sizes=(1024,)),)),
        "lstm-lm": (workloads.language_model, (InputKind(sizes=(35,), tokens=workloads.WIKITEXT2_TOKENS),)),
        "lstm-large": (
            lambda: layers.recurrent_language_model(33_278, width=1500, layers=2),
            (InputKind(sizes=(35,), tokens=33_278),),
        ),
        "transformer": (
            workloads.translator,
            tuple(InputKind(sizes=(workloads.SENTENCE_LENGTH,), tokens=tokens) for tokens in workloads.MULTI30K_TOKENS),
        ),
        "autoencoder": (workloads.autoencoder, (InputKind(sizes=(workloads.ML20M_ITEMS,)),)),
        "cyclegan": (layers.cyclegan_step, (_image(256),) * 2),
        "dcgan": (layers.dcgan_step, (_image(64),)),
        "a3c": (lambda: layers.actor_critic(workloads.FRAMES), (InputKind(sizes=(workloads.FRAMES, 1, 80, 80)),)),
        "neumf": (layers.collaborative_filter, (InputKind(sizes=(), tokens=3_706), InputKind(sizes=(), tokens=3_706))),
        "pointnet": (layers.point_network, (InputKind(sizes=(3, 2500)),)),
        "resnet18-cifar": (workloads.resnet18_for_cifar, (_image(32),)),
        "unet": (not_in_libraries.u_net, (_image(256),)),
        "gcn": (not_in_libraries.graph_convolutions, (InputKind(sizes=(512, 128)),)),
        "click-model": (
            not_in_libraries.click_model,
            (InputKind(sizes=(13,)), InputKind(sizes=(26,), tokens=not_in_libraries.ROWS_OF_A_TABLE)),
        ),
    }
)
"""Networks of ``builtin:``; their batch is the first dimension."""


def build(name: str, shape: Sequence[tuple[str, tuple[int, ...]]], device: str) -> Built:
    """Return the model that *name* means, on *device*.

    Raises:
        GraphError: There is none of this name, or its library is not installed.
    """
    library, _, model = name.partition(":")
    makers = {"timm": _timm, "torchvision": _torchvision, "hf": _huggingface, "builtin": _built_in}
    if library not in makers:
        message = f"Workload '{name}' must be of {', '.join(makers)}; got '{library}'. Name one such as timm:resnet50."
        raise GraphError(message)
    with warnings.catch_warnings(), import_library("torch").device(device):
        warnings.simplefilter("ignore")
        return makers[library](model, dict(shape))


def _built_in(name: str, _: Mapping[str, Sequence[int]]) -> Built:
    if name not in BUILT_IN:
        message = f"Workload 'builtin:{name}' must be one of {', '.join(BUILT_IN)}. Name one of these."
        raise GraphError(message)
    make, kinds = BUILT_IN[name]
    return Built(module=make(), inputs={f"input{place}": kind for place, kind in enumerate(kinds)}, by_name=False)


def _timm(name: str, shape: Mapping[str, Sequence[int]]) -> Built:
    timm = import_library("timm")
    configuration = timm.get_pretrained_cfg(name, allow_unregistered=True)
    default = tuple(configuration.input_size) if configuration is not None else (3, 224, 224)
    sizes = tuple(shape.get("input", default))
    options = {} if sizes == default else {"img_size": sizes[1:]}
    try:
        module = timm.create_model(name, pretrained=False, **options)
    except TypeError:  # most networks take any size and know no such option
        module = timm.create_model(name, pretrained=False)
    return Built(module=module, inputs={"x": InputKind(sizes=sizes)}, by_name=False)


def _torchvision(name: str, shape: Mapping[str, Sequence[int]]) -> Built:
    models = import_library("torchvision").models
    options: dict[str, Any] = {"weights": None}
    if "weights_backbone" in models.get_model_builder(name).__annotations__:
        options["weights_backbone"] = None
    sizes = tuple(shape.get("input", (3, 299, 299) if name == "inception_v3" else (3, 224, 224)))
    return Built(module=models.get_model(name, **options), inputs={"x": InputKind(sizes=sizes)}, by_name=False)


def _huggingface(name: str, shape: Mapping[str, Sequence[int]]) -> Built:
    known = huggingface.known_models()  # the same model as `gpusage predict hf:NAME` reads
    if name not in known:
        message = f"Workload 'hf:{name}' must be one of the {len(known)} that gpusage knows; got another. See predict."
        raise GraphError(message)
    module = huggingface.build_model(known[name], f"hf:{name}")
    examples = huggingface.example_inputs(module, shape)
    tokens = int(getattr(module.config, "vocab_size", 0) or 1000)
    inputs = {
        label: InputKind(sizes=tuple(value.shape[1:]), tokens=None if value.is_floating_point() else tokens)
        for label, value in examples.items()
    }
    return Built(module=module, inputs=inputs, by_name=True)
