"""Python runs this as it starts in a job that shows gpusage its model: this folder is the first of its PYTHONPATH.

The site's or the user's own `sitecustomize` runs next, as if this file were not there. Nothing else happens until the
program imports PyTorch. Python 3.8 and later read it; it imports nothing of ours before that.
"""

import importlib.util
import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_LEARN = "GPUSAGE_LEARN"
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_FOLDER)))


class _Loader:
    """Loads PyTorch as its own loader does; then the observation begins."""

    def __init__(self, finder, loader):
        self._finder, self._loader = finder, loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        with suppress(Exception):  # the program must not notice
            _observe()


class _TorchFinder:
    """Finds PyTorch by the other finders. Some libraries look for it and do not import it, so it stays until then."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(self, spec.loader)
                return spec
        return None


class _OwnFinder:
    """Finds our packages where Python finds none of that name."""

    def find_spec(self, name, path=None, target=None):
        if name not in ("gpusage", "gpusage_hooks", "pluggy"):
            return None
        for root in (_ROOT, os.path.join(os.path.dirname(_ROOT), "hooks")):  # installed, or in a checkout
            start = os.path.join(root, name, "__init__.py")
            if os.path.exists(start):
                folders = [os.path.dirname(start)]
                return importlib.util.spec_from_file_location(name, start, submodule_search_locations=folders)
        return None


def _observe():
    finder = _OwnFinder()
    sys.meta_path.append(finder)
    from gpusage.capture.inside.first_run import observe

    observe(os.environ.get(_LEARN, ""), lambda: sys.meta_path.remove(finder))


def _run_next():
    """Run the `sitecustomize` that would have run without this folder."""
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _FOLDER]
if os.environ.get(_LEARN) and os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":
    sys.meta_path.insert(0, _TorchFinder())
_run_next()
