"""Python runs this as it starts in a job that shows gpusage its model: this folder is the first of its PYTHONPATH.

The site's or the user's own `sitecustomize` runs next, as if this file were not there. Nothing else happens until the
program imports PyTorch; then `observer.py` beside it is loaded by its path, under no name. Every Python of the job runs
this file, so that it imports nothing that Python has not imported by itself, and even Python 2 must be able to read it:
no annotations.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _is_of_signal(error):
    """Return whether a handler of a signal raised *error*, which happened to come while we looked.

    Python gives a handler the frame that it interrupts, which it may forget. Control-C has no frame, nor has what
    another thread raises, or a handler in C: of these only a built-in error with no sign of its own passes for ours.
    """
    frame, trace = None, error.__traceback__
    try:
        signals = sys.modules["_signal"]
        handlers = [signals.getsignal(number) for number in range(1, signals.NSIG)]
        # A method may be of what is no function, as of a cache: it has no code.
        functions = [each.__func__ if type(each) is type(_Finder().find_spec) else each for each in handlers]
        codes = [each.__code__ for each in functions if type(each) is type(_is_of_signal)]
        while trace is not None:
            interrupted, frame, trace = frame, trace.tb_frame, trace.tb_next
            for local in frame.f_locals.values():
                if interrupted and any(each is interrupted for each in (local if type(local) is tuple else (local,))):
                    return True
            if interrupted and frame.f_code in codes:
                return True
        is_ours = frame is not None and os.path.dirname(frame.f_code.co_filename) == _FOLDER
        is_theirs = type(error).__module__ != "builtins" or (isinstance(error, OSError) and error.errno is None)
        return isinstance(error, KeyboardInterrupt) or (is_ours and is_theirs)
    except Exception:  # the program forbids such looks
        return False


def _watched_class(finder):
    """Return the class of a spec that tells of its module's import by what the import system sets before and after."""
    bootstrap, external = sys.modules["_frozen_importlib"], sys.modules["_frozen_importlib_external"]
    observer = type(sys)("observer")

    class Watched(bootstrap.ModuleSpec):
        """No frame of ours is around the import, so none is in its tracebacks."""

        begin = None

        @property
        def _initializing(self):
            return self.__dict__.get("_initializing", False)

        @_initializing.setter
        def _initializing(self, is_begin):
            self.__dict__["_initializing"] = is_begin
            try:
                self._observe(is_begin)
            except BaseException as error:  # the program must not notice; a handler of its signals may have raised
                if _is_of_signal(error):
                    raise

        def _observe(self, is_begin):
            if is_begin:
                # Some libraries look for PyTorch and do not import it, so the finder stays until now.
                sys.meta_path.remove(finder)
                path = os.path.join(_FOLDER, "observer.py")
                external.SourceFileLoader("observer", path).exec_module(observer)
                self.begin = observer.observe(os.environ["GPUSAGE_LEARN"], _FOLDER, _is_of_signal)
                return
            self.__class__ = bootstrap.ModuleSpec
            begin = self.__dict__.pop("begin", None)
            if begin and self.name in sys.modules:
                begin(sys.modules[self.name])

    return Watched


class _Finder(object):
    """Finds PyTorch by the other finders, and lets its spec be watched."""

    def find_spec(self, name, path=None, target=None):
        try:
            # Those before this one have found nothing.
            for other in sys.meta_path[sys.meta_path.index(self) + 1 :] if name == "torch" else ():
                find = getattr(other, "find_spec", None)  # old ones have none
                spec = find(name, path, target) if find else None
                if spec is not None:
                    if type(spec) is sys.modules["_frozen_importlib"].ModuleSpec:
                        spec.__class__ = _watched_class(self)
                    return spec
        except BaseException as error:  # Python asks the finder that raised once more, with no frame of ours
            if _is_of_signal(error):
                raise
        return None


def _run_next():
    """Run the `sitecustomize` that would have run without this folder; without one, be none either.

    Raises:
        ImportError: There is none. Python takes this file for none, and keeps nothing of it.
    """
    # Our folder is off the path now, so the same name finds the next one. Python 2 clears a module that nobody holds.
    ours = sys.modules.pop(__name__)
    __import__(__name__)
    del ours


sys.path[:] = [each for each in sys.path if os.path.normpath(each) != _FOLDER]  # asks for no working folder
sys.path_importer_cache.pop(_FOLDER, None)
if sys.version_info >= (3, 8) and os.environ.get("GPUSAGE_LEARN") and os.environ.get("RANK", "0") == "0":
    sys.meta_path.insert(0, _Finder())
_run_next()
