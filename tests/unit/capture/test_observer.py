"""What the observer takes for a wrapper of a library, and what for the user's own module."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.torch


def test_a_wrapper_is_a_class_of_a_library_or_one_derived_from_it_around_one_module() -> None:
    from gpusage.capture.inside.observer import unwrapped

    model = nn.Linear(2, 2)
    derived = type("Mine", (nn.DataParallel,), {})
    assert unwrapped(nn.DataParallel(torch.compile(derived(model)))) is model
    with_head = nn.DataParallel(model)
    with_head.head = nn.Linear(2, 2)
    assert unwrapped(with_head) is with_head


@pytest.mark.parametrize("name", ["DistributedDataParallel", "DeepSpeedEngine", "OptimizedModule"])
@pytest.mark.parametrize("child", ["module", "_orig_mod", "layer"])
def test_a_module_of_the_users_with_a_wrapper_s_name_is_a_model_itself(name: str, child: str) -> None:
    from gpusage.capture.inside.observer import unwrapped

    own = type(name, (nn.Module,), {})()
    setattr(own, child, nn.Linear(2, 2))
    assert unwrapped(own) is own


def test_modules_and_weights_are_pytorch_s_each_once_whatever_a_class_says() -> None:
    from gpusage.capture.inside.observer import parts_of, weights_of

    tied = nn.Linear(2, 2)
    model = nn.Sequential(tied, nn.Sequential(nn.ReLU(), tied, nn.Linear(2, 3)))
    expected = [*model.modules()], [*model.parameters()]
    hidden = type("Hidden", (nn.Sequential,), {"modules": lambda _: [], "parameters": lambda *_: []})
    model.__class__ = model[1].__class__ = hidden
    model.register_parameter("absent", None)
    model.register_module("nothing", None)
    parts, weights = [*parts_of(model)], [*weights_of(model)]
    assert all(one is other for one, other in zip(parts, expected[0], strict=True))
    assert all(one is other for one, other in zip(weights, expected[1], strict=True))
