"""Routed experts are counted by the tokens that they get, by hand for a layer of Mixtral; scans are said."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import gpusage
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.work.lowering import forward_flop, weight_memory_bytes
from gpusage_hooks.types import Decoding, ModelGraph, Workload

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

LENGTH = 128


def read(kind: str, **sizes: int) -> ModelGraph:
    """Return one layer of the language model *kind*, which reads 128 tokens."""
    config = getattr(transformers, f"{kind}Config")(num_hidden_layers=1, vocab_size=32000, use_cache=False, **sizes)
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
        return gpusage.read_model(model, {"input_ids": torch.empty(2, LENGTH, dtype=torch.int64)})


def test_each_token_of_mixtral_goes_through_two_of_eight_experts() -> None:
    graph = read("Mixtral")  # its sizes are those of 8x7B: 4096 wide, 8 of 32 heads for keys, experts of 14336
    # embeddings and logits, attention, router, eight experts of three matrices, three normalizations
    attention, router, expert = 2 * 4096**2 + 2 * 4096 * 1024, 8 * 4096, 3 * 4096 * 14336
    assert graph.parameter_count == 2 * 32000 * 4096 + attention + router + 8 * expert + 3 * 4096
    # a token: two experts, not eight; logits; scores and values of 128 keys
    by_token = 2 * (attention + router + 2 * expert + 32000 * 4096) + 4 * LENGTH * 4096
    assert forward_flop(graph) == pytest.approx(LENGTH * by_token, rel=0.005)
    need = gpusage.predict(graph, gpu="h100", mode="infer")
    assert not need.familiar
    assert any("GroupedMatMul" in note for note in need.notes)


@pytest.mark.parametrize(
    ("batch_size", "experts"),
    [
        (1, 2.0),  # one token reads the two experts that it goes to
        (2, 8 * (1 - 0.75**2)),  # each of eight is missed by both with (3/4)^2: 3.5 are read
        (64, 8.0),
    ],
)
def test_a_pass_over_few_tokens_reads_the_experts_that_they_reach(batch_size: int, experts: float) -> None:
    graph = read("Mixtral")
    generation = Decoding(prompt_tokens=64, new_tokens=64)
    run = Workload(batch_size=batch_size, mode="infer", precision="bf16", generate=generation)
    answer = WorkloadAnalysis(graph, run).decoding
    assert answer is not None
    for lowering, read_experts in ((answer.prompt, 8.0), (answer.token, experts)):
        grouped = [node.op_type == "GroupedMatMul" for node in lowering.structure.kinds]
        read_bytes = lowering.parameter_bytes @ (lowering.structure.counts * grouped)
        assert read_bytes == pytest.approx(read_experts * 3 * 4096 * 14336 * 2, rel=1e-6)
    assert weight_memory_bytes(answer.prompt, "bf16") == 2 * graph.parameter_count  # all are in memory


def test_a_saved_program_has_the_experts_of_its_module(tmp_path: Path) -> None:
    """Outside of bfloat16 transformers writes the product of all experts as an operator of its own."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.MixtralConfig(num_hidden_layers=1, vocab_size=1000, use_cache=False, **sizes)
    model, tokens = transformers.MixtralForCausalLM(config).eval(), torch.zeros((2, 16), dtype=torch.int64)
    batch = {"input_ids": {0: torch.export.Dim("batch", min=2, max=64)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, (), {"input_ids": tokens}, dynamic_shapes=batch, strict=False)
        torch.export.save(program, tmp_path / "mixtral.pt2")
    module, saved = gpusage.read_model(model, {"input_ids": tokens}), gpusage.read_model(tmp_path / "mixtral.pt2")
    assert not saved.unknown_op_types
    assert saved.parameter_count == module.parameter_count
    assert forward_flop(saved) == pytest.approx(forward_flop(module), rel=0.01)


def test_scans_of_mamba_are_said_and_not_familiar() -> None:
    graph = read("Mamba", hidden_size=64)
    assert graph.unknown_op_types == (("selective_scan", 1),)
    assert "scans over the sequence" in graph.notes[-1]
    assert not gpusage.predict(graph, gpu="h100", mode="infer").familiar


def test_what_a_library_logs_of_its_kernels_is_kept_from_the_user(tmp_path: Path) -> None:
    configuration = {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(configuration))
    words = [sys.executable, "-m", "gpusage.cli", "predict", str(tmp_path), "--mode", "infer", "--gpu", "a100"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == ""
