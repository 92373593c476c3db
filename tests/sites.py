"""Plugins of a site, made up for one test, that are announced by an entry point as anyone's are."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

from gpusage.plugins import loading
from gpusage_hooks import hookimpl


def announced(name: str = "site", **attributes: object) -> EntryPoint:
    """Return the entry point of a made-up module that has *attributes*, functions among them as hooks."""
    module = types.ModuleType(f"made_up_{name}")
    for attribute, value in attributes.items():
        setattr(module, attribute, as_hook(value) if callable(value) else value)
    sys.modules[module.__name__] = module
    return EntryPoint(name, module.__name__, loading.ENTRY_POINT_GROUP)


def as_hook(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function* with a hook's mark, which it may have already."""
    return function if hasattr(function, "gpusage_impl") else hookimpl(function)
