"""Masks of attention in saved programs: what an exporter writes out, and what is an input's own."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import pytest

import gpusage
from gpusage_hooks.types import ModelGraph

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BATCH = torch.export.Dim("batch", min=2, max=64)


class Attention(torch.nn.Module):
    """One attention of four tokens, with the mask that it is given, else to no later token."""

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return what the tokens attend to."""
        places = torch.arange(4)
        allowed = places[:, None] >= places[None] if mask is None else mask > 0
        return torch.nn.functional.scaled_dot_product_attention(tokens, tokens, tokens, attn_mask=allowed)


def saved(folder: Path, *inputs: torch.Tensor) -> ModelGraph:
    """Return the attention as its saved program is read."""
    sizes = tuple({0: BATCH} for _ in inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(Attention(), inputs, dynamic_shapes=sizes), folder / "attention.pt2")
    return gpusage.read_model(folder / "attention.pt2")


def test_a_mask_of_positions_alone_is_no_work_as_attention_knows_which_tokens_are_later(tmp_path: Path) -> None:
    graph = saved(tmp_path, torch.zeros(2, 2, 4, 8))
    assert Counter(node.op_type for node in graph.nodes) == {"Transpose": 1, "MatMul": 2, "Softmax": 1}


def test_a_mask_that_follows_from_an_input_is_added_to_the_scores(tmp_path: Path) -> None:
    graph = saved(tmp_path, torch.zeros(2, 2, 4, 8), torch.ones(2, 1, 4, 4))
    assert {"Greater", "Add"} <= {node.op_type for node in graph.nodes}


def test_a_saved_decoder_has_the_operators_of_its_module(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(vocab_size=1000, use_cache=False, **sizes)
    model, tokens = transformers.LlamaForCausalLM(config).eval(), torch.zeros((2, 16), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = {"input_ids": {0: BATCH}}
        program = torch.export.export(model, (), {"input_ids": tokens}, dynamic_shapes=batch, strict=False)
        torch.export.save(program, tmp_path / "llama.pt2")
    module, program_graph = gpusage.read_model(model, {"input_ids": tokens}), gpusage.read_model(tmp_path / "llama.pt2")
    assert Counter(program_graph.nodes) == Counter(module.nodes)
