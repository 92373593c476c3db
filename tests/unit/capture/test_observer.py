"""What the observer takes for a wrapper of a library, and what for the user's own module."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.torch


def test_a_wrapper_is_a_class_of_ours_around_one_module_and_nothing_else() -> None:
    from gpusage.capture.inside.observer import Wrapper, unwrapped

    model = nn.Linear(2, 2)
    derived = type("Mine", (Wrapper,), {})
    assert unwrapped(Wrapper(derived(model))) is model
    with_head, own = Wrapper(model), type("DistributedDataParallel", (nn.Module,), {})()
    with_head.head, own.module = nn.Linear(2, 2), nn.Linear(2, 2)
    assert unwrapped(with_head) is with_head
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
