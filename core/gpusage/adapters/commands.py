"""Signatures of commands: options, durations, and the name of the action that runs."""

from __future__ import annotations

from gpusage.cli import options
from gpusage.cli.deferred import run_by
from gpusage.cli.options import json_option, read_duration

__all__ = [
    "json_option",
    "options",
    "read_duration",
    "run_by",
]
