"""Asking a hook as pluggy does, and what holds for every hook's answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from gpusage_hooks import specs
from gpusage_hooks.conformance import mismatch
from gpusage_hooks.errors import GpuUsageError

Hook = Callable[..., Any]


def sound_answer(hook: str, function: Hook, **question: Any) -> Any:  # noqa: ANN401 - whatever the hook answers
    """Return the answer to *question* after what holds for every hook: its type, purity, and untouched arguments."""
    before = repr(question)
    answer = ask(hook, function, **question)
    conforms(answer, get_type_hints(getattr(specs, hook))["return"], f"the answer of {hook}")
    require(ask(hook, function, **question) == answer, f"{hook} must answer the same question alike; it does not")
    require(repr(question) == before, f"{hook} must leave its arguments as they are; it changed one")
    return answer


def ask(hook: str, function: Hook, **question: Any) -> Any:  # noqa: ANN401 - whatever the hook answers
    """Return the answer to *question*, which is sound, so that nothing may be raised."""
    try:
        return call(function, **question)
    except GpuUsageError as error:
        message = f"{hook} must answer sound values; it refused them with {type(error).__name__}: {error}"
        raise AssertionError(message) from error
    except Exception as error:
        message = f"{hook} must raise nothing but GpuUsageError; it raised {type(error).__name__}: {error}"
        raise AssertionError(message) from error


def call(function: Hook, **question: Any) -> Any:  # noqa: ANN401 - whatever the hook answers
    """Call *function* as pluggy does, with the arguments that it names."""
    taken = inspect.signature(function).parameters
    return function(**{name: value for name, value in question.items() if name in taken})


def conforms(value: object, hint: Any, path: str) -> None:  # noqa: ANN401 - any annotation
    """Require *value*, found at *path*, to be what *hint* says, all the way down."""
    clause = mismatch(value, hint, path)
    require(clause is None, clause or "")


def require(holds: bool, rule: str) -> None:  # noqa: FBT001 - reads like assert, and stays when Python runs with -O
    """Raise `AssertionError` with *rule*, a sentence without its full stop, unless it *holds*."""
    if not holds:
        raise AssertionError(rule + ".")
