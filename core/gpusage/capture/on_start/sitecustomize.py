"""Python runs this as it starts in a job that shows gpusage its model: this folder is the first of its PYTHONPATH.

The site's or the user's own `sitecustomize` runs next, as if this file were not there. Nothing else happens until the
program imports PyTorch, and then only if it is the first of its processes. Python 3.8 and later can read this file. It
imports nothing that takes time: every Python of the job runs it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PACKAGES_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(_FOLDER)))
_CHECKOUT = os.path.dirname(_PACKAGES_FOLDER)


class _Loader:
    """Loads PyTorch as its own loader does; then the observation begins."""

    def __init__(self, finder: _TorchFinder, loader: Any) -> None:
        self._finder, self._loader = finder, loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        with suppress(Exception):  # the program must not notice
            _observe()


class _TorchFinder:
    """Finds PyTorch by the other finders. Some libraries look for it and do not import it, so it stays until then."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        for finder in sys.meta_path:
            spec: Any = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(self, spec.loader)
                return spec
        return None


class _PackageFinder:
    """Finds our packages where Python finds none of that name."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name not in ("gpusage", "gpusage_hooks", "pluggy"):
            return None
        for root in (_PACKAGES_FOLDER, os.path.join(_CHECKOUT, "hooks")):
            start = os.path.join(root, name, "__init__.py")
            if os.path.exists(start):
                folders = [os.path.dirname(start)]
                return importlib.util.spec_from_file_location(name, start, submodule_search_locations=folders)
        return None


def _observe() -> None:
    finder = _PackageFinder()
    sys.meta_path.append(finder)
    from gpusage.capture.inside.first_run import observe

    observe(os.environ["GPUSAGE_LEARN"], lambda: sys.meta_path.remove(finder))


def _run_next() -> None:
    """Run the `sitecustomize` that would have run without this folder."""
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _FOLDER]
if os.environ.get("GPUSAGE_LEARN") and os.environ.get("RANK", "0") == "0":
    sys.meta_path.insert(0, _TorchFinder())
_run_next()
