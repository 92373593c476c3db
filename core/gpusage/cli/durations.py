"""Long times as people write them: ``90s``, ``25m``, ``8h``, ``2d``; a bare number is seconds."""

from __future__ import annotations

import re

import click

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?([a-z]*)")


def duration_s(text: str) -> float:
    """Return the seconds of *text*.

    Raises:
        ValueError: It is no time of at least 0.
    """
    match = _DURATION.fullmatch(text.strip())
    if not match or match[2] not in _SECONDS:
        message = f"a time such as 90s, 25m, 8h or 2d; got {text!r}"
        raise ValueError(message)
    return float(match[1]) * _SECONDS[match[2]]


def read_duration(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """Return the seconds of an option; ``None`` where it was not given."""
    try:
        return None if text is None else duration_s(text)
    except ValueError as error:
        message = f"must be {error}."
        raise click.BadParameter(message) from error
