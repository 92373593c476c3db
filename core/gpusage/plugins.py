"""The one typed facade over pluggy: which plugins there are, and how they are asked."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache, wraps
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as installed_entry_points
from types import MappingProxyType, ModuleType
from typing import Any

import pluggy

from gpusage_hooks import specs
from gpusage_hooks.errors import PluginError

ENTRY_POINT_GROUP = "gpusage"
BUILT_IN: tuple[str, ...] = (
    "gpusage.devices.catalogue",
    "gpusage.graphs.card.file",
    "gpusage.graphs.named.reader",
    "gpusage.graphs.onnx.reader",
    "gpusage.graphs.torch.pt2",
    "gpusage.policies.eligibility",
    "gpusage.policies.fit",
    "gpusage.policies.generation",
    "gpusage.policies.sharing",
    "gpusage.policies.slo",
    "gpusage.predictors.activity",
    "gpusage.predictors.colocation",
    "gpusage.predictors.memory",
    "gpusage.predictors.slowdown",
    "gpusage.predictors.step_time",
)
DEFERRED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys((name for name in BUILT_IN if name.startswith("gpusage.graphs.")), "read_model"),
        **{name: f"predict_{name.rpartition('.')[2]}" for name in BUILT_IN if name.startswith("gpusage.predictors.")},
    }
)
"""Built-in plugins that are imported when their one hook is first called: large, and most commands need few of them."""


def load_plugins(*, entry_points: bool = True) -> pluggy.PluginManager:
    """Return a manager with the built-in plugins and, where asked, the installed ones.

    Raises:
        PluginError: A plugin implements a hook that does not exist, or cannot be imported.
    """
    manager = pluggy.PluginManager("gpusage")
    manager.add_hookspecs(specs)
    for name in BUILT_IN:
        manager.register(_deferred(name, DEFERRED[name]) if name in DEFERRED else importlib.import_module(name), name)
    try:
        for point in _installed() if entry_points else ():
            if not manager.has_plugin(point.name):  # of two packages with one name the first is heard
                manager.register(point.load(), point.name)
        manager.check_pending()
    except (pluggy.PluginValidationError, ImportError) as error:
        raise plugin_error(error) from error
    return manager


def plugin_error(error: Exception) -> PluginError:
    """Return *error*, which a plugin caused while it was loaded, as one sentence."""
    plugin: Any = getattr(error, "plugin", None)
    name = getattr(plugin, "__name__", None) or str(plugin or "unknown")
    message = f"Plugin {name!r} must load and implement only hooks of API 1; got: {error}. Update or uninstall it."
    return PluginError(message, plugin=name, hook="load")


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """Return what other packages announce; looking at each of them takes a while."""
    return tuple(installed_entry_points(group=ENTRY_POINT_GROUP))


def _deferred(module: str, hook: str) -> ModuleType:
    """Return what stands in for *module* until *hook* is called."""
    specified: Callable[..., Any] = getattr(specs, hook)

    @wraps(specified)
    def call(*arguments: Any) -> Any:  # noqa: ANN401 - those of any hook
        return getattr(importlib.import_module(module), hook)(*arguments)

    substitute = ModuleType(module)
    setattr(substitute, hook, specs.hookimpl(trylast=True)(call))
    return substitute
