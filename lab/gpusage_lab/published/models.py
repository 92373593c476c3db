"""Which graph stands for a published model: its key in the zoo, and how its card is made.

A language model is built from the sizes of its configuration; its weights are never needed. A key says at which length,
and whether its attention is written out (``eager``), as frameworks had it before fused attention.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpusage.graphs.named import huggingface
from gpusage.graphs.named.image_libraries import build as build_image_model
from gpusage.graphs.torch.libraries import build_on_meta, import_library
from gpusage.graphs.torch.module import graph_from_module
from gpusage_hooks.types import ModelGraph
from gpusage_lab.networks.mlperf import detector_on

PREFIX = "published:"
DECODER_LENGTH = 128
"""At which a decoder that generates is read: `generate` sets its own lengths."""
IMAGE_MODELS: Mapping[str, str] = {
    "resnext101-32x4d": "timm:resnext101_32x4d",
    "se-resnext101-32x4d": "timm:seresnext101_32x4d",
    "efficientnet-b0": "timm:efficientnet_b0",
    "efficientnet-b4": "timm:efficientnet_b4",
    "efficientnet v1-b4": "timm:efficientnet_b4",
    "efficientnet v2-s": "timm:tf_efficientnetv2_s",
    "swin-v2-tiny": "timm:swinv2_tiny_window8_256",
    "vit-b_16 384": "timm:vit_base_patch16_384",
    "efficientnet_b0": "torchvision:efficientnet_b0",
    "efficientnet_b1": "torchvision:efficientnet_b1",
    "efficientnet_b2": "torchvision:efficientnet_b2",
    "efficientnet_b3": "torchvision:efficientnet_b3",
    "resnet18": "torchvision:resnet18",
    "resnet101": "torchvision:resnet101",
    "ssd300 v1.1 (resnet-50)": "builtin:ssd300-resnet50",
}
"""By the published name in small letters; what follows in brackets is left out where it is a setting."""


def _decoder(kind: str, name: str, sizes: tuple[int, ...], **others: Any) -> Mapping[str, Any]:  # JSON's
    """Return a configuration: hidden size, layers, heads, heads of keys, width of the MLP, words."""
    hidden, layers, heads, key_heads, width, words = sizes
    return {
        "model_type": kind,
        "architectures": [f"{name}ForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "intermediate_size": width,
        "vocab_size": words,
        **others,
    }


def _llama(*sizes: int, **others: Any) -> Mapping[str, Any]:  # JSON's
    return _decoder("llama", "Llama", sizes, **others)


def _qwen2(*sizes: int, **others: Any) -> Mapping[str, Any]:  # JSON's
    return _decoder("qwen2", "Qwen2", sizes, **others)


def _qwen3(*sizes: int, **others: Any) -> Mapping[str, Any]:  # JSON's
    return _decoder("qwen3", "Qwen3", sizes, head_dim=128, **others)


def _qwen3_experts(*sizes: int, width: int) -> Mapping[str, Any]:  # JSON's
    experts = {"moe_intermediate_size": width, "num_experts": 128, "num_experts_per_tok": 8}
    return _decoder("qwen3_moe", "Qwen3Moe", sizes, head_dim=128, **experts)


def _gpt2(hidden: int, layers: int, heads: int, words: int = 50304) -> Mapping[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "vocab_size": words,
        "n_positions": 0,
    }


def _encoder(kind: str, architecture: str, *sizes: int, **others: Any) -> Mapping[str, Any]:  # JSON's
    hidden, layers, heads, width, words = sizes
    return {
        "model_type": kind,
        "architectures": [architecture],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": width,
        "vocab_size": words,
        "max_position_embeddings": 512,
        **others,
    }


_DEBERTA: Mapping[str, Any] = {
    "relative_attention": True,
    "position_buckets": 256,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
_TIED: Mapping[str, Any] = {"tie_word_embeddings": True}
TEXT_MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama-2-7b": _llama(4096, 32, 32, 32, 11008, 32000),
    "llama-2-13b": _llama(5120, 40, 40, 40, 13824, 32000),
    "llama-2-70b": _llama(8192, 80, 64, 8, 28672, 32000),
    "llama-3-8b": _llama(4096, 32, 32, 8, 14336, 128256),
    "llama-3-70b": _llama(8192, 80, 64, 8, 28672, 128256),
    "llama-3.1-405b": _llama(16384, 126, 128, 8, 53248, 128256),
    "llama-3.2-1b": _llama(2048, 16, 32, 8, 8192, 128256, **_TIED),
    "llama-3.2-3b": _llama(3072, 28, 24, 8, 8192, 128256, **_TIED),
    "tinyllama-1.1b": _llama(2048, 22, 32, 4, 5632, 32000),
    "codellama-34b": _llama(8192, 48, 64, 8, 22016, 32000),
    "yi-6b": _llama(4096, 32, 32, 4, 11008, 64000),
    "yi-34b": _llama(7168, 60, 56, 8, 20480, 64000),
    "baichuan2-7b": _llama(4096, 32, 32, 32, 11008, 125696),
    "qwen-1.8b": _qwen2(2048, 24, 16, 16, 5504, 151936),
    "qwen-7b": _qwen2(4096, 32, 32, 32, 11008, 151936),
    "qwen-14b": _qwen2(5120, 40, 40, 40, 13696, 152064),
    "qwen-72b": _qwen2(8192, 80, 64, 64, 24576, 152064),
    "qwen2-7b": _qwen2(3584, 28, 28, 4, 18944, 152064),
    "qwen2-72b": _qwen2(8192, 80, 64, 8, 29568, 152064),
    "qwen2.5-0.5b": _qwen2(896, 24, 14, 2, 4864, 151936, **_TIED),
    "qwen2.5-3b": _qwen2(2048, 36, 16, 2, 11008, 151936, **_TIED),
    "qwen2-57b-a14b": {
        **_decoder("qwen2_moe", "Qwen2Moe", (3584, 28, 28, 4, 18944, 151936)),
        "moe_intermediate_size": 2560,
        "shared_expert_intermediate_size": 20480,
        "num_experts": 64,
        "num_experts_per_tok": 8,
    },
    "qwen3-0.6b": _qwen3(1024, 28, 16, 8, 3072, 151936, **_TIED),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 8, 6144, 151936, **_TIED),
    "qwen3-4b": _qwen3(2560, 36, 32, 8, 9728, 151936, **_TIED),
    "qwen3-8b": _qwen3(4096, 36, 32, 8, 12288, 151936),
    "qwen3-14b": _qwen3(5120, 40, 40, 8, 17408, 151936),
    "qwen3-32b": _qwen3(5120, 64, 64, 8, 25600, 151936),
    "qwen3-30b-a3b": _qwen3_experts(2048, 48, 32, 4, 6144, 151936, width=768),
    "qwen3-235b-a22b": _qwen3_experts(4096, 94, 64, 4, 12288, 151936, width=1536),
    "mistral-7b": _decoder("mistral", "Mistral", (4096, 32, 32, 8, 14336, 32000), sliding_window=None),
    "mixtral-8x7b": _decoder("mixtral", "Mixtral", (4096, 32, 32, 8, 14336, 32000), num_local_experts=8),
    "gemma-2b": _decoder("gemma", "Gemma", (2048, 18, 8, 1, 16384, 256000), head_dim=256),
    "gemma-7b": _decoder("gemma", "Gemma", (3072, 28, 16, 16, 24576, 256000), head_dim=256),
    "phi-1.5": _decoder("phi", "Phi", (2048, 24, 32, 32, 8192, 51200), partial_rotary_factor=0.5),
    "gpt-j-6b": {
        "model_type": "gptj",
        "architectures": ["GPTJForCausalLM"],
        "n_embd": 4096,
        "n_layer": 28,
        "n_head": 16,
        "vocab_size": 50400,
        "rotary_dim": 64,
        "n_positions": 2048,
    },
    "falcon-7b": {
        "model_type": "falcon",
        "architectures": ["FalconForCausalLM"],
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "vocab_size": 65024,
    },
    "pythia-410m": {
        **_encoder("gpt_neox", "GPTNeoXForCausalLM", 1024, 24, 16, 4096, 50304),
        "max_position_embeddings": 2048,
    },
    "biogpt": {**_encoder("biogpt", "BioGptForCausalLM", 1024, 24, 16, 4096, 42384), "max_position_embeddings": 1024},
    "opt-350m": {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "hidden_size": 1024,
        "ffn_dim": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "word_embed_proj_dim": 512,
        "vocab_size": 50272,
        "do_layer_norm_before": False,
        "max_position_embeddings": 2048,
    },
    "mpt-7b": _gpt2(4096, 32, 32, 50368),
    "gpt2-124m": _gpt2(768, 12, 12),
    "gpt2-350m": _gpt2(1024, 24, 16),
    "gpt3-760m": _gpt2(1536, 24, 16),
    "gpt3-1.3b": _gpt2(2048, 24, 16),
    "bert-base": _encoder("bert", "BertForQuestionAnswering", 768, 12, 12, 3072, 30522),
    "bert-large": _encoder("bert", "BertForQuestionAnswering", 1024, 24, 16, 4096, 30522),
    "electra-base": _encoder("electra", "ElectraForQuestionAnswering", 768, 12, 12, 3072, 30522, embedding_size=768),
    "deberta-v3-xsmall": _encoder("deberta-v2", "DebertaV2Model", 384, 12, 6, 1536, 128100, **_DEBERTA),
    "deberta-v3-large": _encoder("deberta-v2", "DebertaV2Model", 1024, 24, 16, 4096, 128100, **_DEBERTA),
}
"""Configurations as the models' own files have them; what counts is which products they have and how large they are.

MPT is as llm-foundry trains it, with learned positions: GPT-2's blocks. Qwen's first models have the layers of Qwen2.
"""
_NAMES: tuple[tuple[str, str], ...] = (
    (r"codellama.?34b", "codellama-34b"),
    (r"tinyllama", "tinyllama-1.1b"),
    (r"llama.?2.?7b", "llama-2-7b"),
    (r"llama.?2.?13b", "llama-2-13b"),
    (r"llama.?2.?70b", "llama-2-70b"),
    (r"llama.?3\.2.?1b", "llama-3.2-1b"),
    (r"llama.?3\.2.?3b", "llama-3.2-3b"),
    (r"llama.?3(\.[13])?.?8b", "llama-3-8b"),
    (r"llama.?3(\.[13])?.?70b", "llama-3-70b"),
    (r"llama.?3\.1.?405b", "llama-3.1-405b"),
    (r"yi.?6b", "yi-6b"),
    (r"yi.?34b", "yi-34b"),
    (r"baichuan2.?7b", "baichuan2-7b"),
    (r"qwen2-57b", "qwen2-57b-a14b"),
    (r"qwen2(\.5)?-7b", "qwen2-7b"),
    (r"qwen2(\.5)?-72b", "qwen2-72b"),
    (r"qwen2\.5-(0\.5|3)b", r"qwen2.5-\1b"),
    (r"qwen3-(0\.6|1\.7|4|8|14|32)b$", r"qwen3-\1b"),
    (r"qwen3_30b_a3b", "qwen3-30b-a3b"),
    (r"qwen3_235b_a22b", "qwen3-235b-a22b"),
    (r"qwen-(1\.8|7|14|72)b", r"qwen-\1b"),
    (r"mixtral", "mixtral-8x7b"),
    (r"mistral.?7b", "mistral-7b"),
    (r"gemma-(2|7)b$", r"gemma-\1b"),
    (r"phi.?1\.5", "phi-1.5"),
    (r"gpt.?j", "gpt-j-6b"),
    (r"falcon.?7b", "falcon-7b"),
    (r"pythia-410m", "pythia-410m"),
    (r"biogpt", "biogpt"),
    (r"opt-350m", "opt-350m"),
    (r"mpt 7b", "mpt-7b"),
    (r"gpt2 124m|gpt3 125m", "gpt2-124m"),
    (r"gpt2 350m|gpt3-355m", "gpt2-350m"),
    (r"gpt3-(760m|1\.3b)", r"gpt3-\1"),
    (r"bert-base \(squad\)", "bert-base"),
    (r"bert.large$", "bert-large"),
    (r"electra-base \(squad\)", "electra-base"),
    (r"deberta-v3-(xsmall|large)", r"deberta-v3-\1"),
    (r"deberta (512|2048)$", "deberta-v3-xsmall"),
)


def megatron_model(name: str, hint: str) -> str | None:
    """Return the name of a GPT of Megatron, which has its sizes; ``None`` where one of them is unknown."""
    if "Megatron" not in hint:
        return None
    sizes = [re.search(rf"{word}=(\d+)", hint) for word in ("layers", "hidden", "heads")]
    layers, hidden, heads = (int(size[1]) if size else 0 for size in sizes)
    if name.endswith("176B"):  # BLOOM
        layers, hidden = 70, 14336
    if name == "GPT 52B":  # experiments/gpt2-meg of the source
        return "megatron-64x8192x32x50304"
    return f"megatron-{layers}x{hidden}x{heads}x250880" if layers and hidden and heads else None


def text_settings(model: str) -> Mapping[str, Any]:  # JSON's
    """Return the configuration of a text model."""
    if model in TEXT_MODELS:
        return TEXT_MODELS[model]
    layers, hidden, heads, words = map(int, model.removeprefix("megatron-").split("x"))
    return _gpt2(hidden, layers, heads, words)


def text_model(name: str) -> str | None:
    """Return the model of `TEXT_MODELS` that *name* is, as publishers write it; ``None`` for none."""
    for pattern, model in _NAMES:
        match = re.search(pattern, name.lower())
        if match:
            return match.expand(model)
    return None


def embedding_share(model: str) -> float:
    """Return the part of a decoder's weights that its embeddings in and out have."""
    sizes = TEXT_MODELS[model]
    words, hidden, width = (float(sizes[name]) for name in ("vocab_size", "hidden_size", "intermediate_size"))
    embeddings = 2.0 * words * hidden
    layers = float(sizes["num_hidden_layers"])
    return embeddings / (embeddings + layers * hidden * (4.0 * hidden + 3.0 * width))


def image_model(name: str) -> str | None:
    """Return the model of a library that *name* is, ``None`` for none."""
    return IMAGE_MODELS.get(name.lower())


def text_key(model: str, length: int, *, is_eager: bool) -> str:
    """Return the zoo's key of a text model at a sequence length."""
    return f"{PREFIX}{model}{'-eager' if is_eager else ''}@{length}"


def image_key(model: str, sides: tuple[int, ...], *, is_eager: bool) -> str:
    """Return the zoo's key of an image model; only timm's ViT differs where it is eager, as its Swin V2 always is."""
    suffix = "-eager" if is_eager and model.startswith("timm:vit_") else ""
    return f"{PREFIX}{model}{suffix}@{'x'.join(map(str, sides))}"


def build(key: str) -> ModelGraph:
    """Return the graph that *key* names; this needs PyTorch and the model's library.

    Raises:
        GraphError: A library is not there, or cannot build the model.
    """
    name, _, sizes = key.removeprefix(PREFIX).rpartition("@")
    numbers = tuple(int(size) for size in sizes.split("x"))
    library, colon, model = name.partition(":")
    if library == "builtin":
        return _detector(name, numbers)
    if not colon:
        return _text_graph(name, numbers[0])
    if not model.endswith("-eager"):
        return build_image_model(library, model, {"input": (3, *numbers)})
    layers = import_library("timm.layers")
    layers.set_fused_attn(False)
    try:
        return build_image_model(library, model.removesuffix("-eager"), {"input": (3, *numbers)})
    finally:
        layers.set_fused_attn(True)


def _detector(name: str, sides: tuple[int, ...]) -> ModelGraph:
    """Return the graph of NVIDIA's SSD300: ResNet-50, added layers with normalizations."""

    def make() -> Any:  # a torch.nn.Module
        whole = import_library("torchvision").models.resnet50(weights=None)
        strided = (whole.layer3[0].conv2, whole.layer3[0].downsample[0])
        return detector_on(whole, strided, 1024, is_normalized=True)

    pixels = import_library("torch").empty((2, 3, *sides), device="meta")
    return graph_from_module(build_on_meta(make, name), (pixels,), name="ssd300-resnet50", origin=name)


def _text_graph(name: str, length: int) -> ModelGraph:
    model = name.removesuffix("-eager")
    settings = {**text_settings(model), **({"attn_implementation": "eager"} if name.endswith("-eager") else {})}
    for limit in {"n_positions", "max_position_embeddings"} & settings.keys():
        settings[limit] = max(int(settings[limit]), length)
    module = build_on_meta(lambda: huggingface.build_model(settings, name), name)
    inputs = huggingface.example_inputs(module, {"seq": (length,)})
    return graph_from_module(module, (), keywords=inputs, name=model, origin=f"{PREFIX}{model}")
