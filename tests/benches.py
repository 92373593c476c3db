"""The scripts of bench/ as modules, so that their functions can be tested."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from sources import ROOT


def load_bench(name: str) -> ModuleType:
    """Return the script ``bench/NAME.py`` as a module of that name; bench/ itself is no package."""
    specification = importlib.util.spec_from_file_location(name, ROOT / "bench" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dataclasses look the module of a class up
    specification.loader.exec_module(module)
    return module
