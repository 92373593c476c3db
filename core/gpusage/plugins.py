"""The one typed facade over pluggy: which plugins there are, and how they are asked."""

from __future__ import annotations

import importlib
from typing import Any

import pluggy

from gpusage_hooks import specs
from gpusage_hooks.errors import PluginError

ENTRY_POINT_GROUP = "gpusage"
BUILT_IN: tuple[str, ...] = (
    "gpusage.devices.catalogue",
    "gpusage.graphs.card",
    "gpusage.graphs.named",
    "gpusage.graphs.onnx",
    "gpusage.graphs.pt2",
    "gpusage.policies.eligibility",
    "gpusage.policies.fit",
    "gpusage.policies.generation",
    "gpusage.policies.sharing",
    "gpusage.policies.slo",
    "gpusage.predictors.activity",
    "gpusage.predictors.colocation",
    "gpusage.predictors.memory",
    "gpusage.predictors.step_time",
)


def load_plugins(*, entry_points: bool = True) -> pluggy.PluginManager:
    """Return a manager with the built-in plugins and, where asked, the installed ones.

    Raises:
        PluginError: A plugin implements a hook that does not exist, or cannot be imported.
    """
    manager = pluggy.PluginManager("gpusage")
    manager.add_hookspecs(specs)
    for name in BUILT_IN:
        manager.register(importlib.import_module(name), name)
    try:
        if entry_points:
            manager.load_setuptools_entrypoints(ENTRY_POINT_GROUP)
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
