"""The options of `gpusage predict --serve`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from gpusage_hooks.errors import RequestError
from gpusage_hooks.job_values import Duration, Number, Text

Function = TypeVar("Function", bound=Callable[..., Any])


def _value_of(kind: Text, key: str) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """Return what reads an option's text as *kind* does."""

    def read(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
        try:
            return None if text is None else float(kind.parse(key, text.removesuffix("/s") if key == "rate" else text))
        except RequestError as error:
            raise click.BadParameter(str(error)) from error

    return read


_OPTIONS = (
    click.option(
        "--serve",
        "serves",
        is_flag=True,
        help="Show what each GPU serves of a language model: answers side by side, tokens/s per user and per GPU, the "
        "first token, and what a million tokens cost; needs --generate. The engine is vllm unless --engine names one.",
    ),
    click.option(
        "--rate",
        "requests_per_s",
        metavar="N/s",
        callback=_value_of(Number("requests per second above 0", "5"), "rate"),
        help="With --serve: compute how many GPUs, or which share of one, serve this many requests per second.",
    ),
    click.option(
        "--p99",
        "first_token_s",
        metavar="TIME",
        callback=_value_of(Duration("200ms"), "p99"),
        help="With --rate: the time, such as 200ms, within which 99 of 100 requests have their first token.",
    ),
)


def serve_options(function: Function) -> Function:
    """Add ``--serve``, ``--rate`` and ``--p99``."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def check(run: Mapping[str, Any]) -> None:
    """Refuse ``--rate`` without ``--serve``, and ``--p99`` without ``--rate``.

    Raises:
        UsageError: One stands alone.
    """
    if run["requests_per_s"] is not None and not run["serves"]:
        message = "Option --rate needs --serve; got it alone. Add --serve."
        raise click.UsageError(message)
    if run["first_token_s"] is not None and run["requests_per_s"] is None:
        message = "Option --p99 needs --rate; got it alone. Add --rate 5/s."
        raise click.UsageError(message)
