"""Libraries that a program imports, each changed then: packages of a few lines stand for those that CI lacks."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
DEEPSPEED = """
from types import SimpleNamespace
class DeepSpeedEngine: save_checkpoint = None
comm, zero, ops = SimpleNamespace(), SimpleNamespace(), SimpleNamespace(adam=SimpleNamespace())
"""


@pytest.fixture
def deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a DeepSpeed that has no more than what we change of it, changed."""
    from gpusage.capture.inside.libraries import make_libraries_light  # needs PyTorch
    from gpusage.capture.inside.light import LeftOut

    (tmp_path / "deepspeed.py").write_text(DEEPSPEED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setitem(sys.modules, "deepspeed", None)  # so that it is as before at the end
    del sys.modules["deepspeed"]
    make_libraries_light(LeftOut(), lambda _: None)
    return import_module("deepspeed")


def test_a_library_is_changed_once_the_program_imports_it_and_no_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpusage.capture.inside.libraries import LibraryFinder  # needs PyTorch

    changed: list[str] = []

    def change(module: ModuleType) -> None:
        changed.append(f"{module.__name__} {module.value}")

    finder: Any = LibraryFinder({"toy_library": change, "toy_missing": change})
    (tmp_path / "toy_library.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert find_spec("toy_library") is not None
    assert find_spec("toy_missing") is None
    assert not changed
    assert import_module("toy_library") is import_module("toy_library")
    with pytest.raises(ModuleNotFoundError, match="toy_missing"):
        import_module("toy_missing")
    assert changed == ["toy_library 1"]


@pytest.mark.parametrize(
    ("batches", "updates"),
    [
        ({"gradient_accumulation_steps": 3}, [3, 6]),
        ({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 8}, [2, 4, 6]),
        ({}, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_deepspeed_updates_the_weights_after_the_last_pass_of_an_accumulation(
    deepspeed: Any, batches: dict[str, int], updates: list[int]
) -> None:
    model = torch.nn.Linear(4, 2)
    config = {**batches, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
    engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    passes: list[int] = []
    updated: list[int] = []
    optimizer.register_step_post_hook(lambda *_: updated.append(len(passes)))
    for number in range(6):
        passes.append(number)
        engine.backward(engine(torch.ones(8, 4)).sum())
        engine.step()
        assert engine.is_gradient_accumulation_boundary() == (model.weight.grad is None)
    assert updated == updates
    assert type(optimizer).__name__ == "AdamW"
    assert engine.save_checkpoint("folder") is None


def test_deepspeed_s_optimizers_take_weights_by_the_names_of_the_real_ones(deepspeed: Any) -> None:
    weights = [torch.nn.Parameter(torch.ones(2))]
    adam = deepspeed.ops.adam
    for optimizer in (
        adam.DeepSpeedCPUAdam(model_params=weights, lr=0.1),
        adam.FusedAdam(params=weights),
        adam.FusedAdam(weights, 0.1),
    ):
        assert optimizer.param_groups[0]["params"] == weights
