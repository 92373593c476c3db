"""Normalizations of timm's benchmark that ran in half precision: those of campaigns with its option ``--fast-norm``.

Mixed precision casts what a normalization reads to 4 bytes. With the option, timm's own layers cast it to 2 bytes, and
normalize that; PyTorch's layers, which some of its models have, stay as they are. The tables do not name the option.
What a GroupNorm takes beside a BatchNorm shows it: 2.2 to 2.7 times as long without, 1.2 times with the option.

Source:
    timm 1.0.9 and 1.0.31: ``layers/fast_norm.py``, and the class of each normalization in each of its models.
"""

from __future__ import annotations

from dataclasses import replace

from gpusage_hooks.types import ModelGraph

GPUS = ("rtx-3090", "rtx-4090", "rtx-pro-6000-max-q")
FIRST_RELEASE = 113
"""Of torch, from which on the files of these GPUs ran with the option."""
_OF_PYTORCH = (
    *("cait", "crossvit", "csatv2", "edgenext", "efficientformer", "efficientvit_mit", "inception_next", "mlp_mixer"),
    *("mobilevit", "pit", "sequencer", "swin_transformer", "swin_transformer_v2", "swin_transformer_v2_cr", "tiny_vit"),
    *("tnt", "twins", "vision_transformer_relpos", "volo", "xcit"),
)
"""Modules of timm most of whose layer normalizations are PyTorch's."""
_OF_PYTORCH_BEFORE_2025 = ("deit", "metaformer", "vision_transformer", "vision_transformer_hybrid")
"""More of them before torch 2.9 was measured."""
_TORCH_2_9 = 291


def with_fast_norm(graph: ModelGraph, module: str, release: int) -> ModelGraph:
    """Return *graph*, a model of timm's *module*, as *release* of torch computed it with ``--fast-norm``."""
    older = _OF_PYTORCH_BEFORE_2025 if release < _TORCH_2_9 else ()
    names = ["GroupNormalization", "RMSNormalization"]
    if module not in _OF_PYTORCH and module not in older:
        names.append("LayerNormalization")
    nodes = [replace(node, op_type=f"{node.op_type}InHalf") if node.op_type in names else node for node in graph.nodes]
    return replace(graph, nodes=tuple(nodes))
