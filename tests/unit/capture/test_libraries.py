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
class DeepSpeedEngine:
    def save_checkpoint(self): raise OSError
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


class Asking:
    """A finder that asks all others for a module, by the one call that there is for it."""

    def __init__(self) -> None:
        self.is_asking = False

    def find_spec(self, name: str, *_: object) -> Any:
        """Return what the others found."""
        if self.is_asking or name != "toy_twice":
            return None
        self.is_asking = True
        return find_spec(name)


def test_a_library_is_changed_once_where_another_finder_asks_all_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpusage.capture.inside.libraries import LibraryFinder  # needs PyTorch

    changed: list[ModuleType] = []
    finder: Any = LibraryFinder({"toy_twice": changed.append})
    (tmp_path / "toy_twice.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [finder, Asking(), *sys.meta_path])
    library = import_module("toy_twice")
    assert changed == [library]


@pytest.mark.parametrize(
    ("batches", "updates"),
    [
        ({"gradient_accumulation_steps": 3}, [3, 6]),
        ({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 8}, [2, 4, 6]),
        ({"train_batch_size": 16}, [1, 2, 3, 4, 5, 6]),
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
    assert not engine.save_checkpoint("folder")
    assert engine.in_features == 4


@pytest.mark.parametrize(
    ("batches", "part", "steps"),
    [
        ({"train_batch_size": 32}, 8, 1),
        ({"train_batch_size": 32, "gradient_accumulation_steps": 2}, 4, 2),
        ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2}, 2, 4),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}, 2, 4),
        ({"train_micro_batch_size_per_gpu": 8}, 8, 1),
    ],
)
def test_of_deepspeed_s_batch_sizes_those_of_a_configuration_give_the_others(
    deepspeed: Any, batches: dict[str, int], part: int, steps: int
) -> None:
    """The words that its own tutorial has: the loader and a schedule come from `initialize`."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        model, samples = torch.nn.Linear(4, 2), torch.utils.data.TensorDataset(torch.ones(32, 4))
        optimizer = {"type": "Adam", "params": {"lr": 1e-3}}
        config = {**batches, "optimizer": optimizer, "scheduler": {"type": "WarmupLR", "params": {}}}
        engine, _, loader, schedule = deepspeed.initialize(model=model, training_data=samples, config=config)
        assert engine.train_micro_batch_size_per_gpu() == loader.batch_size == part
        assert engine.gradient_accumulation_steps() == steps
        assert engine.train_batch_size() == 32
        assert engine.get_lr() == schedule.get_last_lr() == [1e-3]
    finally:
        torch.distributed.destroy_process_group()


def test_deepspeed_s_optimizers_take_weights_by_the_names_of_the_real_ones(deepspeed: Any) -> None:
    weights = [torch.nn.Parameter(torch.ones(2))]
    adam = deepspeed.ops.adam
    for optimizer in (
        adam.DeepSpeedCPUAdam(model_params=weights, lr=0.1),
        adam.FusedAdam(params=weights),
        adam.FusedAdam(weights, 0.1),
    ):
        assert optimizer.param_groups[0]["params"] == weights
