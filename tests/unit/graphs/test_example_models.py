"""The example models: small, without weights, with published figures, the same graph from ONNX and from PyTorch."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import onnx
import pytest

from gpusage.graphs.card import text as card
from gpusage.graphs.onnx.reader import read_model
from gpusage.predictors.work.lowering import forward_flop
from gpusage_hooks.types import ModelGraph

FOLDER = Path(__file__).parents[3] / "examples" / "models"
MODELS = sorted(path.stem for path in FOLDER.glob("*.onnx"))
PUBLISHED = {
    # millions of parameters, multiply-adds of one sample in billions; torchvision's and timm's tables where they list
    # the model, else counted by hand beside
    "resnet18": (11.69, 1.81),
    "resnet50": (25.56, 4.09),
    "vgg16": (138.36, 15.47),
    "mobilenet_v3_large": (5.48, 0.22),
    "efficientnet_b0": (5.29, 0.39),
    "densenet121": (7.98, 2.83),
    "vit_b_16": (86.57, 17.56),
    "swin_t": (28.29, 4.49),
    "convnext_tiny": (28.59, 4.46),
    # four steps of two 3x3 convolutions down and up, 64 to 1024 channels at 256 x 256; Ronneberger's net, padded
    "unet": (31.04, 48.2),
    # 12 layers x 7.08 M and a head of 24.03 M products a token, 128 tokens; attention 12 x 2 x 128 x 128 x 768
    "bert_base": (109.51, 14.25),
    "distilbert_base": (66.99, 8.66),  # as BERT, 6 layers
    "gpt2": (124.44, 68.1),  # (12 x 7.08 M + 38.6 M) x 512 tokens; attention 12 x 2 x 512 x 512 x 768
    "t5_small": (
        60.51,
        8.04,
    ),  # 128 tokens in, 128 out: 6 x 3.15 M, 6 x 4.19 M and 16.4 M products a token, and attention
    "lstm_lm": (66.03, 3.26),  # (2 x 8 x 1500^2 + 1500 x 10^4) x 64 tokens
    "dlrm": (167.09, 0.00074),  # its weights are tables, of which one row each is read
}


def graph_of(name: str) -> ModelGraph:
    graph = read_model(str(FOLDER / f"{name}.onnx"), {})
    assert graph is not None
    return graph


def test_every_example_has_published_figures() -> None:
    assert sorted(PUBLISHED) == MODELS
    assert len(MODELS) >= 12


@pytest.mark.parametrize("name", MODELS)
def test_an_example_is_small_and_has_no_weights(name: str) -> None:
    path = FOLDER / f"{name}.onnx"
    assert path.stat().st_size < 300 * 1024
    weights = onnx.load(str(path), load_external_data=False).graph.initializer
    assert max(len(weight.raw_data) for weight in weights) <= 8 * 128
    assert not any(
        entry.value for weight in weights for entry in weight.external_data if (FOLDER / entry.value).exists()
    )


@pytest.mark.parametrize("name", MODELS)
def test_an_example_has_its_published_figures_at_any_batch(name: str) -> None:
    graph = graph_of(name)
    parameters, multiply_adds = PUBLISHED[name]
    assert graph.parameter_count / 1e6 == pytest.approx(parameters, rel=0.012)
    # the whole forward pass, activations and norms too, of which nets of thin convolutions have the most
    thin = name in {"mobilenet_v3_large", "efficientnet_b0"}
    assert forward_flop(graph) / 2e9 == pytest.approx(multiply_adds, rel=0.10 if thin else 0.02)
    assert graph.fixed_batch_size is None
    assert graph.unknown_op_types == ()
    assert all(shape[0] == -1 for _, shape in graph.inputs)


@pytest.mark.parametrize("name", MODELS)
def test_the_card_of_an_example_fits_and_brings_the_graph_back(name: str) -> None:
    graph = graph_of(name)
    text = card.encode(graph)
    assert len(text) <= 4096
    back = card.decode(text)
    assert (back.nodes, back.producers, back.parameter_count) == (graph.nodes, graph.producers, graph.parameter_count)


@pytest.fixture(scope="module")
def export() -> ModuleType:
    """Return ``examples/export.py``, which knows how each example was built."""
    for library in ("torch", "torchvision", "timm", "transformers"):
        pytest.importorskip(library)
    sys.path.insert(0, str(FOLDER.parent))
    try:
        return importlib.import_module("export")
    finally:
        sys.path.pop(0)


@pytest.mark.torch
@pytest.mark.parametrize("name", MODELS)
def test_the_live_module_gives_the_same_work_as_the_file(name: str, export: ModuleType) -> None:
    from gpusage.graphs.torch.libraries import build_on_meta  # after the skip
    from gpusage.graphs.torch.module import graph_from_module  # after the skip

    example = export.EXAMPLES[name]
    live = graph_from_module(build_on_meta(example.build, name), (), keywords=example.inputs(), name=name)
    file = graph_of(name)
    assert forward_flop(live) == pytest.approx(forward_flop(file), rel=0.01)
    assert live.parameter_count == pytest.approx(file.parameter_count, rel=0.012)
    assert live.inputs == file.inputs
    assert live.unknown_op_types == ()
    assert len(card.encode(live)) <= card.MAXIMUM_CARD_BYTES
