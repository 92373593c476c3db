"""Commands whose work stands in another module: it is there, and takes what the command gives."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import click
import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage.cli.program import run_by


@dataclass(frozen=True)
class Typed:
    """A command as a user types it."""

    words: str
    command: click.Command


def commands(command: click.Command, words: str, context: click.Context) -> Iterator[Typed]:
    """Yield *command* with all commands below it."""
    yield Typed(words, command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, f"{words} {name}", context)


def action_of(command: click.Command) -> str | None:
    """Return the action of *command*, ``module:function``; ``None`` if it stands with its signature."""
    action: str | None = getattr(command.callback, "action", None)
    return action


DEFERRED = [typed for typed in commands(main, "gpusage", click.Context(main)) if action_of(typed.command)]


@pytest.mark.parametrize("typed", DEFERRED, ids=lambda typed: typed.words)
def test_the_work_of_a_command_takes_its_options(typed: Typed) -> None:
    module, _, name = (action_of(typed.command) or "").partition(":")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    options = {option.name for option in typed.command.params if option.expose_value}
    taken = {each.name for each in parameters.values() if each.annotation not in ("click.Context", click.Context)}
    named = taken - {each.name for each in parameters.values() if each.kind is each.VAR_KEYWORD}
    assert named <= options
    assert named == options or taken != named, "no parameter takes the other options"


def test_most_commands_are_deferred() -> None:
    assert len(DEFERRED) >= 5


def echo(word: str) -> None:
    """Print *word*."""
    click.echo(f"work: {word}")


def test_a_command_is_run_by_the_function_that_it_names() -> None:
    @click.command()
    @click.argument("word")
    @run_by(f"{__name__}:echo")
    def command() -> None:
        """Say a word."""

    result = CliRunner().invoke(command, ["hello"])
    assert (result.output, command.help) == ("work: hello\n", "Say a word.")
