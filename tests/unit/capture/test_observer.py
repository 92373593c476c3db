"""What the observer takes for a wrapper of a library, and what for the user's own module."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.torch


def named(name: str, **children: object) -> object:
    """Return a module of a class of this name."""
    module = type(name, (nn.Module,), {})()
    for child, value in children.items():
        setattr(module, child, value)
    return module


def test_a_wrapper_holds_one_module_and_no_weights_of_its_own() -> None:
    from gpusage.capture.inside.observer import unwrapped

    model = nn.Linear(2, 2)
    assert unwrapped(named("DistributedDataParallel", module=torch.compile(model))) is model


@pytest.mark.parametrize("name", ["DistributedDataParallel", "DeepSpeedEngine", "Mine"])
def test_a_module_of_the_users_with_a_wrapper_s_name_keeps_its_other_weights(name: str) -> None:
    from gpusage.capture.inside.observer import unwrapped

    own = named(name, module=nn.Linear(2, 2), _orig_mod=nn.Linear(2, 2), head=nn.Linear(2, 2))
    assert unwrapped(own) is own
