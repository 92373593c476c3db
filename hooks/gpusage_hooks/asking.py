"""Asking a hook as pluggy does, and what holds for every hook's answer."""

from __future__ import annotations

import inspect
from typing import Any

from gpusage_hooks.answers import check_answer
from gpusage_hooks.conformance import require
from gpusage_hooks.declared import Hook
from gpusage_hooks.errors import GpuUsageError


def sound_answer(hook: str, function: Hook, **question: Any) -> Any:  # whatever the hook answers
    """Return the answer to *question* after what holds for every hook: soundness, purity, and untouched arguments."""
    before = repr(question)
    answer = ask(hook, function, **question)
    check_answer(hook, question, answer)
    require(ask(hook, function, **question) == answer, f"{hook} must answer the same question alike; it does not")
    require(repr(question) == before, f"{hook} must leave its arguments as they are; it changed one")
    return answer


def ask(hook: str, function: Hook, **question: Any) -> Any:  # whatever the hook answers
    """Return the answer to *question*, which is sound, so that nothing may be raised."""
    try:
        return call(function, **question)
    except GpuUsageError as error:
        message = f"{hook} must answer sound values; it refused them with {type(error).__name__}: {error}"
        raise AssertionError(message) from error
    except Exception as error:
        message = f"{hook} must raise nothing but GpuUsageError; it raised {type(error).__name__}: {error}"
        raise AssertionError(message) from error


def call(function: Hook, **question: Any) -> Any:  # whatever the hook answers
    """Call *function* as pluggy does, with the arguments that it names."""
    taken = inspect.signature(function).parameters
    return function(**{name: value for name, value in question.items() if name in taken})
