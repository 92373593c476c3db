"""The contract, checked on every plugin that comes with gpusage, as its author would check any other."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from gpusage.plugins.loading import BUILT_IN
from gpusage_hooks import checks, specs

ADAPTERS = ("gpusage_slurm.plugin", "gpusage_yarn.plugin")
MODELS = sorted((Path(__file__).resolve().parents[2] / "examples/models").glob("*.onnx"))
HOOKS = sorted(name for name in vars(specs) if hasattr(getattr(specs, name), "gpusage_spec"))


@pytest.mark.parametrize("name", [*BUILT_IN, *ADAPTERS])
def test_a_built_in_plugin_keeps_the_contract(name: str) -> None:
    assert checks.check_plugin(importlib.import_module(name)), "a plugin without hooks has no business in the list"


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_plugin_is_asked_last(name: str) -> None:
    """Without `trylast` a site's plugin that was registered first would lose."""
    hooks = checks.implemented(importlib.import_module(name))
    assert [hook for hook, function in hooks.items() if not function.gpusage_impl["trylast"]] == []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.stem)
def test_the_reader_and_the_predictor_keep_the_contract_on_a_real_model(model: Path) -> None:
    reader = importlib.import_module("gpusage.graphs.reader")
    checks.check_reader(reader.read_model, sources=[str(model)])
    graph = reader.read_model(source=str(model), shape={})
    checks.check_predictor(importlib.import_module("gpusage.predictors.needs").predict_needs, graph=graph)


def test_there_are_real_models_to_check() -> None:
    assert len(MODELS) >= 12


def broken(suffix: str, folder: Path) -> list[str]:
    """Return the paths of files that have a reader's suffix and are no model."""
    texts = {"empty": b"", "text": b"not a model", "zeros": bytes(4096), "list": b"[]", "cut": b"\x08\x07\x12\x04"}
    for name, content in texts.items():
        (folder / f"{name}{suffix}").write_bytes(content)
    return [str(folder / f"{name}{suffix}") for name in texts] + [str(folder / f"missing{suffix}")]


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".card.json"])
def test_the_reader_refuses_what_is_no_model_in_one_line(suffix: str, tmp_path: Path) -> None:
    reader = importlib.import_module("gpusage.graphs.reader")
    checks.check_reader(reader.read_model, broken=broken(suffix, tmp_path))


def test_every_hook_has_a_check() -> None:
    assert sorted(checks.CHECKS) == HOOKS
