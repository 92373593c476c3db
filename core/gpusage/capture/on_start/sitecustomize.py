"""Python runs this as it starts in a job that shows gpusage its model: this folder is the first of its PYTHONPATH.

The site's or the user's own `sitecustomize` runs next, as if this file were not there. Nothing else happens until the
program imports PyTorch, and then only if it is the first of its processes. Every Python of the job runs this file, so
that it imports little, and even Python 2 must be able to read it: no annotations.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PACKAGES_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(_FOLDER)))
_CHECKOUT = os.path.dirname(_PACKAGES_FOLDER)


class _Loader(object):
    """Loads PyTorch as its own loader does; then the observation begins."""

    def __init__(self, finder, loader):
        self._finder, self._loader = finder, loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        # Nothing of ours stays, so that the program finds Python as it expects it.
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            _observe()
        except Exception:  # the program must not notice
            pass


class _TorchFinder(object):
    """Finds PyTorch by the other finders. Some libraries look for it and do not import it, so it stays until then."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)  # old ones have none
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(self, spec.loader)
                return spec
        return None


class _PackageFinder(object):
    """Finds our packages where Python finds none of that name."""

    def find_spec(self, name, _path=None, _target=None):
        if name not in ("gpusage", "gpusage_hooks", "pluggy"):
            return None
        import importlib.util

        for root in (_PACKAGES_FOLDER, os.path.join(_CHECKOUT, "hooks")):
            start = os.path.join(root, name, "__init__.py")
            if os.path.exists(start):
                folders = [os.path.dirname(start)]
                return importlib.util.spec_from_file_location(name, start, submodule_search_locations=folders)
        return None


def _observe():
    finder = _PackageFinder()
    sys.meta_path.append(finder)
    from gpusage.capture.inside.first_run import observe

    observe(os.environ["GPUSAGE_LEARN"], lambda: sys.meta_path.remove(finder))


def _run_next():
    """Run the `sitecustomize` that would have run without this folder."""
    # Our folder is off the path now, so the same name finds the next one.
    ours = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if getattr(error, "name", __name__) != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _FOLDER]
# The first process of a container becomes the parent of every orphan, and would find our fork as a child.
_IS_FIRST = os.environ.get("RANK", "0") == "0" and os.getpid() != 1
if sys.version_info >= (3, 8) and os.environ.get("GPUSAGE_LEARN") and _IS_FIRST:
    sys.meta_path.insert(0, _TorchFinder())
_run_next()
