"""A folder that is no model says what it holds, and what to give in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gpusage
from gpusage_hooks.errors import GraphError


@pytest.mark.parametrize(
    ("files", "expected", "instead"),
    [
        (["model.safetensors"], "weights alone, 'model.safetensors'", "Put the model's config.json beside them"),
        (["model-00001-of-00002.safetensors", "model.safetensors.index.json"], "weights alone", "config.json"),
        (["adapter_config.json", "adapter_model.safetensors"], "adapters alone", "Name the model that they adapt"),
        (["model_index.json"], "a pipeline of several models", "its unet or transformer"),
        (["modules.json"], "modules of sentence-transformers", "0_Transformer"),
        (["llama.Q4_K_M.gguf"], "weights for llama.cpp", "hf:NAME"),
        (["saved_model.pb"], "a SavedModel of TensorFlow", "tf2onnx"),
        (["decoder.onnx"], "'decoder.onnx'", "Give the file itself: '"),
        ([], "got none", "Give a folder that has one"),
    ],
    ids=lambda one: one[0] if isinstance(one, list) and one else None,
)
def test_a_folder_without_a_configuration_is_told_by_what_it_holds(
    tmp_path: Path, files: list[str], expected: str, instead: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(GraphError, match=r"must hold a model's config\.json; got [^.]+") as refused:
        gpusage.read_model(str(tmp_path))
    assert expected in str(refused.value)
    assert instead in str(refused.value)


@pytest.mark.torch
def test_a_folder_of_timm_is_told_its_name(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet50"}))
    with pytest.raises(GraphError, match=r"Write timm:resnet50\.$"):
        gpusage.read_model(str(tmp_path))
