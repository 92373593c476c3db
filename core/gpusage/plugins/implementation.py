"""One plugin's function for one hook: how it is called, and who is to blame where it fails.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from gpusage.plugins.error_text import describe_error
from gpusage_hooks.answers import check_answer
from gpusage_hooks.errors import GpuUsageError, PluginError


def output_aside() -> contextlib.redirect_stdout[TextIO]:
    """Return the context in which what others' code prints goes to standard error."""
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
        return self.function(*arguments) if self.is_ours else self._call_checked(arguments, question)

    def _call_checked(self, arguments: list[object], question: Mapping[str, object]) -> Any:
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
        try:
            check_answer(self.hook, question, answer)
        except AssertionError as error:
            rule = f"answer as the contract says: {str(error).removesuffix('.')}"
            raise self._fault(rule) from error
        except BaseException as error:  # what it answered runs code of its own, a property
            if is_interrupt(error):
                raise
            rule = f"answer as the contract says; checking its answer raised {describe_error(error)}"
            raise self._fault(rule) from error
        return answer

    def _fault(self, rule: str) -> PluginError:
        message = f"Plugin {self.plugin!r}, hook {self.hook!r}, must {rule}. Update or uninstall it."
        return PluginError(message, plugin=self.plugin, hook=self.hook)
