"""ViT-B/16, Whisper and a level of Stable Diffusion's UNet, and what settings change of them, worked out by hand."""

from __future__ import annotations

from functools import lru_cache

import pytest

import gpusage
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.work.lowering import forward_flop, weight_memory_bytes
from gpusage_hooks.types import ModelGraph, Workload

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


@lru_cache(maxsize=4)
def read(name: str) -> ModelGraph:
    """Return a named model; Whisper with 64 tokens of text."""
    return gpusage.read_model(name, shape={"decoder_seq": 64} if "whisper" in name else {})


def layer(width: int, inner: int) -> int:
    """Return the weights of a transformer's products: four of the attention, two of the perceptron."""
    return 4 * width**2 + 2 * width * inner


def test_a_vision_transformer_has_197_tokens_through_12_layers() -> None:
    graph, tokens = read("timm:vit_base_patch16_224"), 14 * 14 + 1
    blocks = tokens * 12 * (layer(768, 3072) + 2 * tokens * 768)  # scores and values: a product with each token
    patches, classes = 196 * 768 * 3 * 16 * 16, 768 * 1000
    assert forward_flop(graph) == pytest.approx(2 * (blocks + patches + classes), rel=0.01)
    norms, biases = 25 * 2 * 768, 12 * (3 * 768 + 768 + 3072 + 768) + 768 + 1000
    places = 768 + tokens * 768  # the class token, and an embedding of each place
    assert graph.parameter_count == 12 * layer(768, 3072) + 768 * 768 + classes + norms + biases + places

    need = gpusage.explain(graph, gpu="a100", batch_size=8, optimizer="adamw", precision="bf16")
    parts = {part.name: part.memory_bytes for part in need.memory if part.name in ("parameters", "optimizer")}
    assert parts == {"parameters": 4 * graph.parameter_count, "optimizer": 8 * graph.parameter_count}


def test_checkpoints_compute_the_layers_of_a_vision_transformer_once_more() -> None:
    graph = read("timm:vit_base_patch16_224")
    plain, twice = (WorkloadAnalysis(graph, Workload(batch_size=8, checkpointing=on)) for on in (False, True))
    more = float(twice.kernels.flop @ twice.kernels.counts) - float(plain.kernels.flop @ plain.kernels.counts)
    # eleven or twelve layers: what stands around blocks may be a part of the first or last
    one = 8 * 197 * 2 * (layer(768, 3072) + 2 * 197 * 768)
    assert 11 * one <= more <= 12.2 * one


def test_whisper_hears_1500_frames_and_writes_beside_them() -> None:
    graph, frames, tokens, width = read("hf:whisper-tiny"), 1500, 64, 384
    ears = 3000 * 3 * 80 * width + frames * 3 * width * width  # the second convolution halves the length
    encoder = frames * 4 * (layer(width, 1536) + 2 * frames * width)
    itself = tokens * (layer(width, 1536) + 2 * tokens * width)
    cross_flop = (2 * tokens + 2 * frames) * width**2 + tokens * 2 * frames * width  # keys and values of each frame
    words = tokens * width * 51_865
    assert forward_flop(graph) == pytest.approx(2 * (ears + encoder + 4 * (itself + cross_flop) + words), rel=0.02)

    # in 8 bits: all weights but of the words, which make the outputs, of embedded places, norms and biases
    narrow = 3 * 80 * width + 3 * width**2 + 8 * layer(width, 1536) + 4 * 4 * width**2
    lowering = WorkloadAnalysis(graph, Workload(mode="infer", precision="int8")).lowering
    assert weight_memory_bytes(lowering, "int8") == pytest.approx(2 * graph.parameter_count - narrow, rel=0.001)


class Level(torch.nn.Module):
    """The first level of Stable Diffusion 1.5's UNet: a residual block, and a transformer beside 77 words."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.GroupNorm(32, 320) for _ in range(3))
        self.convolutions = torch.nn.ModuleList(torch.nn.Conv2d(320, 320, 3, padding=1) for _ in range(2))
        self.time = torch.nn.Linear(1280, 320)
        self.ends = torch.nn.ModuleList(torch.nn.Conv2d(320, 320, 1) for _ in range(2))
        self.queries = torch.nn.ModuleList(torch.nn.Linear(320, 320, bias=False) for _ in range(2))
        self.keys = torch.nn.ModuleList(torch.nn.Linear(width, 640, bias=False) for width in (320, 768))
        self.outs = torch.nn.ModuleList(torch.nn.Linear(320, 320) for _ in range(2))
        self.wide, self.narrow = torch.nn.Linear(320, 2560), torch.nn.Linear(1280, 320)

    def forward(self, image: torch.Tensor, time: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Return the next image."""
        silu = torch.nn.functional.silu
        hidden = self.convolutions[0](silu(self.norms[0](image))) + self.time(silu(time))[:, :, None, None]
        image = image + self.convolutions[1](silu(self.norms[1](hidden)))
        tokens = self.ends[0](self.norms[2](image)).flatten(2).transpose(1, 2)
        tokens = tokens + self._attend(0, tokens, tokens)
        tokens = tokens + self._attend(1, tokens, words)
        value, gate = self.wide(tokens).chunk(2, dim=-1)
        tokens = tokens + self.narrow(value * torch.nn.functional.gelu(gate))
        return image + self.ends[1](tokens.transpose(1, 2).reshape(image.shape))

    def _attend(self, place: int, tokens: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        key, value = self.keys[place](other).chunk(2, dim=-1)
        heads = [part.unflatten(-1, (8, 40)).transpose(1, 2) for part in (self.queries[place](tokens), key, value)]
        mixed: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(*heads)
        return self.outs[place](mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def test_a_level_of_the_unet_is_convolutions_and_attention_of_4096_places() -> None:
    inputs = {"image": torch.empty(2, 320, 64, 64), "time": torch.empty(2, 1280), "words": torch.empty(2, 77, 768)}
    graph = gpusage.read_model(Level(), inputs)
    places, width = 64 * 64, 320
    residual = places * 2 * 9 * width**2 + 1280 * width
    ends = places * 2 * width**2
    itself = places * 4 * width**2 + 2 * places**2 * width
    cross_flop = places * 2 * width**2 + 77 * 2 * 768 * width + 2 * places * 77 * width
    perceptron = places * (width * 2560 + 1280 * width)
    products = residual + ends + itself + cross_flop + perceptron
    assert forward_flop(graph) == pytest.approx(2 * products, rel=0.02)  # and what is done to single numbers

    # the fourfold width of the middle (2560 numbers a place) is the greatest tensor: 4096 x 2560 x 2 bytes of a sample
    run = Workload(batch_size=2, mode="infer", precision="bf16-pure")
    lowering = WorkloadAnalysis(graph, run).lowering
    assert lowering.output_bytes.max() == 2 * places * 2560 * 2
    assert weight_memory_bytes(lowering, run.precision) == 2 * graph.parameter_count
    # in 8 bits convolutions count a byte as well: two of 3 x 3, two of 1 x 1, and the products
    eight = WorkloadAnalysis(graph, Workload(mode="infer", precision="int8")).lowering
    saved = (2 * 9 + 2 + 2 + 2 + 2) * width**2 + (1280 + 2 * 768 + 2560 + 1280) * width
    assert 2 * graph.parameter_count - weight_memory_bytes(eight, "int8") == pytest.approx(saved, rel=0.001)  # biases
