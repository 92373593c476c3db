"""The work of `gpusage gate`: it runs the command in its own process, under the gate's runner."""

from __future__ import annotations

import os
import subprocess

import click

from gpusage.gate.command import through_gate
from gpusage.gate.run import GPU_VARIABLE, SERVE_VARIABLE

PROBE_TIMEOUT_S = 20


def gate(command: tuple[str, ...], gpu: str | None, *, serve: bool) -> None:
    """Run *command* with its side of the gate; as it is where its Python has no gpusage."""
    words = through_gate(command)
    if not _has_gate(words[0]):
        click.echo(f"gpusage gate: not used: {words[0]} cannot import gpusage. Install it there.", err=True)
        words = command

    # Variables of an outer gate must not reach this one.
    variables = {SERVE_VARIABLE: "1" if serve else "", GPU_VARIABLE: gpu or ""}
    environment = {name: value for name, value in os.environ.items() if name not in variables}
    environment |= {name: value for name, value in variables.items() if value}
    try:
        os.execvpe(words[0], words, environment)  # noqa: S606 - no shell, on purpose: it is the user's own command
    except OSError as error:
        message = f"Command {words[0]!r} must be a program that can be run; got {error.strerror}. Check its name."
        raise click.ClickException(message) from error


def _has_gate(python: str) -> bool:
    """Return whether *python* can import the gate; a missing interpreter is reported when it is run."""
    try:
        answer = subprocess.run(
            [python, "-c", "import gpusage.gate"], capture_output=True, check=False, timeout=PROBE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return False
    except OSError:
        return True

    return answer.returncode == 0
