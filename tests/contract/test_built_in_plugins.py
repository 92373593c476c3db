"""The contract, checked on every plugin that comes with gpusage, as its author would check any other."""

from __future__ import annotations

import importlib

import pytest

from gpusage.plugins import BUILT_IN
from gpusage_hooks import checks, specs

ADAPTERS = ("gpusage_slurm.plugin",)
HOOKS = sorted(name for name in vars(specs) if hasattr(getattr(specs, name), "gpusage_spec"))


@pytest.mark.parametrize("name", [*BUILT_IN, *ADAPTERS])
def test_a_built_in_plugin_keeps_the_contract(name: str) -> None:
    assert checks.check_plugin(importlib.import_module(name)), "a plugin without hooks has no business in the list"


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_plugin_is_asked_last(name: str) -> None:
    """Without `trylast` a site's plugin that was registered first would lose."""
    hooks = checks.implemented(importlib.import_module(name))
    assert [hook for hook, function in hooks.items() if not function.gpusage_impl["trylast"]] == []


def test_every_hook_has_a_check() -> None:
    assert sorted(checks.CHECKS) == HOOKS
