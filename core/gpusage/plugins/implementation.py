"""One plugin's function for one hook: how it is called, who is to blame where it fails, and errors in one sentence.

Invariants:

1. What comes with gpusage is called as it is: tests check its answers, and its faults are our own bugs.
2. What anyone else wrote answers as the contract says or raises a `GpuUsageError`; anything else becomes a
   `PluginError` that names plugin and hook.
3. What it prints goes to standard error: a command's own output is read by others.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TextIO

from gpusage_hooks.answers import check_answer
from gpusage_hooks.errors import GpuUsageError, PluginError


def output_aside() -> contextlib.redirect_stdout[TextIO]:
    """Return the context in which the output of others' code goes to standard error."""
    return contextlib.redirect_stdout(sys.stderr)


def is_interrupt(error: BaseException) -> bool:
    """Return whether *error* is the user's Ctrl-C, which only the main thread gets."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """One plugin's function for one hook.

    Attributes:
        plugin: The plugin's name.
        arguments: Those of the hook's arguments that the function takes, in its own order.
        is_ours: It comes with gpusage.
    """

    plugin: str
    hook: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    is_ours: bool

    def call(self, question: Mapping[str, object]) -> Any:  # whatever the hook answers
        """Return the answer to *question*, the hook's arguments by name.

        Raises:
            GpuUsageError: As the hook says.
            PluginError: The plugin fails in another way, or breaks the contract.
        """
        arguments = [question[name] for name in self.arguments]
        if self.is_ours:
            return self.function(*arguments)

        # A plugin of others may end with any error, even SystemExit: none of them may end gpusaged.
        try:
            with output_aside():
                answer = self.function(*arguments)
        except GpuUsageError:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            rule = f"raise nothing but a GpuUsageError; it raised {describe_error(error)}"
            raise self._fault(rule) from error

        # Checking its answer runs code of its own, too: a property.
        try:
            check_answer(self.hook, question, answer)
        except AssertionError as error:
            rule = f"answer as the contract says: {str(error).removesuffix('.')}"
            raise self._fault(rule) from error
        except BaseException as error:
            if is_interrupt(error):
                raise
            rule = f"answer as the contract says; checking its answer raised {describe_error(error)}"
            raise self._fault(rule) from error
        return answer

    def _fault(self, rule: str) -> PluginError:
        message = f"Plugin {self.plugin!r}, hook {self.hook!r}, must {rule}. Update or uninstall it."
        return PluginError(message, plugin=self.plugin, hook=self.hook)


def sentence(error: BaseException) -> str:
    """Return *error* as a sentence: our errors have their own, any other as `describe_error` has it."""
    return _words(error) if isinstance(error, GpuUsageError) else describe_error(error)


def describe_error(error: BaseException) -> str:
    """Return the kind of *error*, its words, and where it was raised, on a line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    words = " ".join(_words(error).split())
    return f"{type(error).__name__}{f': {words}' if words else ''} ({PurePath(where.filename).name}:{where.lineno})"


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a plugin's own kind of error may say nothing at all
        return ""
