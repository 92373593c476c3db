"""The plugins that core consists of, each imported when its hook is first called: most commands need few of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import wraps
from types import MappingProxyType, ModuleType
from typing import Any

from gpusage_hooks import specs

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "gpusage.devices.catalogue": "describe_gpus",
        "gpusage.graphs.card.file": "read_model",
        "gpusage.graphs.named.reader": "read_model",
        "gpusage.graphs.onnx.reader": "read_model",
        "gpusage.graphs.torch.pt2": "read_model",
        "gpusage.policies.stages": "decide",
        "gpusage.predictors.colocation": "predict_colocation",
        "gpusage.predictors.known": "find_observed_figures",
        "gpusage.predictors.needs": "predict_needs",
        "gpusage.predictors.slowdown": "predict_slowdown",
        "gpusage.node.sampler.nvml": "read_gpu",
    }
)
"""The hook that each of them implements."""


def built_in_plugin(name: str) -> ModuleType:
    """Return what stands in for the built-in plugin *name* until its hook is called."""
    hook = BUILT_IN[name]
    substitute = ModuleType(name)
    setattr(substitute, hook, specs.hookimpl(trylast=True)(_importing(name, hook)))
    return substitute


def _importing(module: str, hook: str) -> Callable[..., Any]:
    specified: Callable[..., Any] = getattr(specs, hook)

    @wraps(specified)
    def call(*arguments: Any) -> Any:  # those of any hook
        return getattr(importlib.import_module(module), hook)(*arguments)

    return call
