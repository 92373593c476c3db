"""The plugins that core consists of, the large ones deferred until they are needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import wraps
from types import MappingProxyType, ModuleType
from typing import Any

from gpusage_hooks import specs

BUILT_IN: tuple[str, ...] = (
    "gpusage.devices.catalogue",
    "gpusage.graphs.card.file",
    "gpusage.graphs.named.reader",
    "gpusage.graphs.onnx.reader",
    "gpusage.graphs.torch.pt2",
    "gpusage.policies.stages",
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


def built_in_plugin(name: str) -> ModuleType:
    """Return the built-in plugin *name*, or what stands in for it until its one hook is called."""
    return _deferred(name, DEFERRED[name]) if name in DEFERRED else importlib.import_module(name)


def _deferred(module: str, hook: str) -> ModuleType:
    specified: Callable[..., Any] = getattr(specs, hook)

    @wraps(specified)
    def call(*arguments: Any) -> Any:  # noqa: ANN401 - those of any hook
        return getattr(importlib.import_module(module), hook)(*arguments)

    substitute = ModuleType(module)
    setattr(substitute, hook, specs.hookimpl(trylast=True)(call))
    return substitute
