"""The facade over pluggy."""

from __future__ import annotations

import importlib
import inspect
import types
from importlib.metadata import EntryPoint

import pytest

from gpusage import plugins
from gpusage_hooks import checks, hookimpl, specs
from gpusage_hooks.errors import PluginError


def test_built_in_and_installed_plugins_load() -> None:
    """What is installed here implements only hooks that exist."""
    assert plugins.load_plugins().hook.read_model is not None


def test_a_misspelt_hook_is_refused_with_the_plugins_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo in a site's plugin fails at start-up, not silently at the first job."""
    site = types.ModuleType("site_plugin")
    site.decide_fitt = hookimpl(lambda: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(plugins, "BUILT_IN", ("site_plugin",))
    monkeypatch.setitem(__import__("sys").modules, "site_plugin", site)
    with pytest.raises(PluginError, match="site_plugin"):
        plugins.load_plugins(entry_points=False)


def test_of_two_packages_that_announce_one_name_the_first_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one must not keep the daemon from starting."""
    modules = ("gpusage_slurm.plugin", "gpusage_yarn.plugin")
    points = tuple(EntryPoint("limits", module, plugins.ENTRY_POINT_GROUP) for module in modules)
    monkeypatch.setattr(plugins, "_installed", lambda: points)
    assert plugins.load_plugins().get_plugin("limits").__name__ == modules[0]


@pytest.mark.parametrize("module", sorted(plugins.DEFERRED))
def test_what_stands_in_for_a_plugin_is_all_of_it(module: str) -> None:
    """One hook, whose arguments are handed on in the hook's own order."""
    hook = plugins.DEFERRED[module]
    plugin = importlib.import_module(module)
    assert list(checks.implemented(plugin)) == [hook]
    assert list(inspect.signature(getattr(plugin, hook)).parameters) == list(
        inspect.signature(getattr(specs, hook)).parameters
    )
