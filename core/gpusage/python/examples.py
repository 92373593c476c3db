"""Example inputs of a module, in any of the forms that people hand over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpusage.python.arguments import require


class Examples(NamedTuple):
    """What a module is called with."""

    positional: tuple[Any, ...]
    named: Mapping[str, Any]

    @property
    def is_empty(self) -> bool:
        """Return whether there is none."""
        return not self.positional and not self.named


def read_examples(value: Any) -> Examples:  # tensors, and torch may not be installed
    """Return what a module is called with, of one input, several in a tuple or a list, or some by name.

    One tensor is one input, however many samples it has; iterated over, it would become that many inputs.

    Raises:
        RequestError: A name is not a text.
    """
    if value is None:
        return Examples((), {})
    if isinstance(value, (tuple, list)):
        return Examples(tuple(value), {})
    if not isinstance(value, Mapping):
        return Examples((value,), {})
    right = all(isinstance(name, str) for name in value)
    require("Argument 'example_inputs'", "have texts as names", [*value], right=right)
    return Examples((), dict(value))
