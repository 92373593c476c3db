"""Commands inside a sandbox: run to their end, or in this process's place."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from gpusage_hooks.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What a command finds around it.

    Attributes:
        environment: All of it.
        folder: Where it starts.
        logs: Where a refusal says to look.
        complaint_characters: How much of the end of a complaint is shown; all of it where ``None``.
    """

    environment: Mapping[str, str]
    folder: Path
    logs: Path
    complaint_characters: int | None = None

    def run(self, command: Sequence[str], *, check: bool, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run *command* and return its output.

        Raises:
            RequestError: It failed, and *check* is true; or it took longer than *timeout_s*.
        """
        try:
            done = subprocess.run(
                command,
                check=False,
                capture_output=True,
                text=True,
                errors="replace",
                cwd=self.folder,
                env=dict(self.environment),
                timeout=timeout_s,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            message = (
                f"Command {' '.join(command)!r} must end within {timeout_s:g} s; it did not. Look into {self.logs}."
            )
            raise RequestError(message) from error
        if check and done.returncode != 0:
            complaint = " ".join((done.stderr or done.stdout).split())
            shown = complaint[-self.complaint_characters :] if self.complaint_characters else complaint
            outcome = shown or f"exit status {done.returncode}"
            message = f"Command {' '.join(command)!r} must succeed; got: {outcome}. Look into {self.logs}."
            raise RequestError(message)
        return done


def enter(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Put *command*, or the user's own shell where there is none, in this process's place.

    Raises:
        click.ClickException: It is no program.
    """
    arguments = list(command) or [os.environ.get("SHELL") or "/bin/sh"]
    try:
        os.execvpe(arguments[0], arguments, environment)  # noqa: S606 - the user's own command, in the user's place
    except OSError as error:
        message = f"Command {arguments[0]!r} must be a program; got: {error.strerror}."
        raise click.ClickException(message) from error
