"""A line on the terminal of whoever waits."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

AFTER_S = 2.0
"""What takes less needs no word."""


@contextmanager
def progress(activity: str) -> Iterator[None]:
    """Print *activity* on a terminal's standard error if it takes longer than `AFTER_S`: a thread's, as libraries work.

    Programs that read standard error are told nothing.
    """
    timer = threading.Timer(AFTER_S, click.echo, [f"{activity} ..."], {"err": True})
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
