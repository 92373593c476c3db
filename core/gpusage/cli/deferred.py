"""A command in two modules: its signature, which `--help` shows, and its work, which is imported when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import click


def run_by(place: str) -> Callable[[Callable[[], None]], Callable[..., Any]]:
    """Return a decorator for a command's signature: a function with a docstring alone, which options decorate.

    Args:
        place: The function that does the work, ``module:function``; its parameters are the command's, by name.
    """
    module, _, name = place.partition(":")

    def decorate(signature: Callable[[], None]) -> Callable[..., Any]:
        @wraps(signature)
        def run(*arguments: Any, **options: Any) -> Any:  # those of any command
            return getattr(importlib.import_module(module), name)(*arguments, **options)

        vars(run)["place"] = place
        return run

    return decorate


def place_of(command: click.Command) -> str | None:
    """Return where *command* is implemented, ``module:function``; ``None`` if next to its signature."""
    place: str | None = getattr(command.callback, "place", None)
    return place
