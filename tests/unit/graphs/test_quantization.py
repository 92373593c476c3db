"""A model's configuration says how wide its published weights are; inference counts them so unless told otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpusage
from gpusage.cli.options import read_request
from gpusage.decisions.prediction import request_with_model_settings
from gpusage.graphs.card.text import compact_json, parse_graph, to_document
from gpusage.graphs.quantization import weight_precision
from gpusage_hooks.comment import parse_model
from gpusage_hooks.errors import GraphError
from graphs import perceptron_graph


@pytest.mark.parametrize(
    ("configuration", "precision"),
    [
        # as published models have them
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, "int4"),
        ({"quant_method": "gptq", "bits": 4, "desc_act": False}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "gptq", "bits": 3}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, "nf4"),
        ({"quant_method": "bitsandbytes", "_load_in_8bit": True, "_load_in_4bit": False}, "bnb-int8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "fbgemm_fp8", "bits": 8}, "fp8"),
        ({"format": "float-quantized", "config_groups": {"g": {"weights": {"num_bits": 8}}}}, "fp8"),
        ({"format": "int-quantized", "config_groups": {"g": {"weights": {"num_bits": 8}}}}, "w8a8"),
        ({"format": "pack-quantized", "config_groups": {"g": {"weights": {"num_bits": 8}}}}, "int8"),
        ({"quant_method": "mxfp4"}, "int4"),
        ({"quant_method": "quanto", "weights": "int4", "activations": None}, "int4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4}, "input_activations": {"num_bits": 8}}},
            },
            "int4",
        ),
        # of several widths, the widest: the narrow one of a few layers made a share too small for the others
        ({"config_groups": {"a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": 8}}}}, "int8"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*down.*": {"bits": 8}}}, "int8"),
        ({"config_groups": {"a": {"weights": {"num_bits": 8}}}, "kv_cache_scheme": {"num_bits": 4}}, "int8"),
        ({"config_groups": {"a": {"weights": {"num_bits": 4}}, "kv_cache_scheme": {"num_bits": 8}}}, "int4"),
        (
            {"quant_method": "hqq", "w": {"weight_quant_params": {"nbits": 4}, "scale_quant_params": {"nbits": 8}}},
            "int4",
        ),
        ({"quant_method": "exl2"}, None),
        ({"quant_method": "gptq", "bits": 16}, None),
        ({"bits": True}, None),
        ({}, None),
    ],
)
def test_methods_say_their_width_each_in_their_own_way(configuration: dict[str, Any], precision: str | None) -> None:
    assert weight_precision(configuration) == precision


def test_a_configuration_may_nest_as_deeply_as_it_likes() -> None:
    configuration: dict[str, Any] = {"bits": 4}
    for _ in range(100_000):
        configuration = {"x": configuration}
    assert weight_precision(configuration) == "int4"


def quantised(folder: Path, **quantisation: object) -> str:
    """Return a folder with a small Llama whose weights are quantised."""
    sizes = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 2, "num_attention_heads": 8}
    configuration = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, **sizes}
    (folder / "config.json").write_text(json.dumps({**configuration, "quantization_config": quantisation}))
    return str(folder)


@pytest.mark.torch
def test_inference_counts_quantised_weights_unless_a_precision_is_named(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    graph = gpusage.read_model(quantised(tmp_path, quant_method="awq", bits=4))
    assert any(
        "weights are quantised (its configuration: awq): inference counts them as int4" in n for n in graph.notes
    )
    as_it_is = gpusage.predict(graph, gpu="a100", mode="infer")
    assert as_it_is == gpusage.predict(graph, gpu="a100", mode="infer", precision="int4")
    assert not as_it_is.familiar
    named = gpusage.predict(graph, gpu="a100", mode="infer", precision="fp16")
    assert named.memory_bytes.value > as_it_is.memory_bytes.value
    assert "The model's weights are quantised, int4, but count as floats in fp16." in named.notes
    trained = gpusage.predict(graph, gpu="a100")
    assert not trained.familiar
    assert "The model's weights are quantised, int4, but count as floats in fp32." in trained.notes

    request = parse_model("m,mode=infer,batch=2")
    assert request_with_model_settings(request, graph).workload.precision == "int4"
    assert request_with_model_settings(request, graph).assumed == ("precision=int4",)
    reported = read_request("m", {"mode": "infer", "precision": "fp32"})
    assert request_with_model_settings(reported, graph) == reported
    card = parse_graph(compact_json(to_document(graph)).encode(), "Card")
    assert card.precision == "int4"


@pytest.mark.torch
def test_a_width_that_nothing_says_is_not_familiar(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    need = gpusage.predict(quantised(tmp_path, quant_method="exl2"), gpu="a100", mode="infer")
    assert not need.familiar
    assert "Operators unknown to the predictors: exl2 weights (1)." in need.notes


def test_the_share_that_a_module_trains_travels_in_its_card_and_a_named_share_wins() -> None:
    graph = replace(perceptron_graph(), trainable=0.02)
    document = to_document(graph)
    card = parse_graph(compact_json(document).encode(), "Card")
    assert card.trainable == 0.02
    assert request_with_model_settings(parse_model("m"), card).workload.trainable == 0.02
    assert request_with_model_settings(parse_model("m,trainable=1"), card).workload.trainable == 1.0
    assert request_with_model_settings(parse_model("m,mode=infer"), card).workload.trainable == 1.0
    for own in ({"trainable": 0}, {"trainable": "all"}, {"precision": "fp64"}):
        with pytest.raises(GraphError, match="must be as 'gpusage card' writes it"):
            parse_graph(compact_json({**document, **own}).encode(), "Card")
