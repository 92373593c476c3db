"""The plugins that core consists of, the large ones deferred until they are needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
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
    "gpusage.predictors.colocation",
    "gpusage.predictors.known",
    "gpusage.predictors.needs",
    "gpusage.predictors.slowdown",
    "gpusage.node.sampler.nvml",
)
DEFERRED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys((name for name in BUILT_IN if name.startswith("gpusage.graphs.")), ("read_model",)),
        "gpusage.predictors.colocation": ("predict_colocation",),
        "gpusage.predictors.needs": ("predict_needs",),
        "gpusage.predictors.slowdown": ("predict_slowdown",),
        "gpusage.node.sampler.nvml": ("read_gpu",),
    }
)
"""Built-in plugins that are imported when one of these hooks is first called: large, and most commands need few."""


def built_in_plugin(name: str) -> ModuleType:
    """Return the built-in plugin *name*, or what stands in for it until one of its hooks is called."""
    return _deferred(name, DEFERRED[name]) if name in DEFERRED else importlib.import_module(name)


def _deferred(module: str, hooks: Sequence[str]) -> ModuleType:
    substitute = ModuleType(module)
    for hook in hooks:
        setattr(substitute, hook, specs.hookimpl(trylast=True)(_importing(module, hook)))
    return substitute


def _importing(module: str, hook: str) -> Callable[..., Any]:
    specified: Callable[..., Any] = getattr(specs, hook)

    @wraps(specified)
    def call(*arguments: Any) -> Any:  # those of any hook
        return getattr(importlib.import_module(module), hook)(*arguments)

    return call
