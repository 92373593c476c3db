"""The main command group: it imports built-in commands when they are called, and loads plugins for theirs."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Container, Iterable, Mapping, MutableMapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from gpusage.cli.failure import PIPE_CLOSED, exit_status, output_goes_nowhere

if TYPE_CHECKING:
    from gpusage.plugins.hooks import Hooks


class BuiltIn(NamedTuple):
    """One built-in command: where it stands, ``module:name``, and its line in the list; without one it is hidden."""

    place: str
    summary: str = ""


BUILT_IN: Mapping[str, BuiltIn] = MappingProxyType(
    {
        "predict": BuiltIn(
            "gpusage.cli.commands.predict:command", "What models need on GPUs: time, memory, utilization."
        ),
        "colocate": BuiltIn("gpusage.cli.commands.colocate:command", "How jobs on one GPU slow each other down."),
        "validate": BuiltIn("gpusage.cli.commands.validate:command", "What gpusage would do to job scripts, and why."),
        "card": BuiltIn("gpusage.cli.commands.card:command", "Describe models compactly, without their weights."),
        "gpus": BuiltIn("gpusage.cli.commands.gpus:command", "List the GPU catalogue, with sources."),
        "gate": BuiltIn(
            "gpusage.cli.commands.gate:command", "Run training so that it leaves room for inference beside it."
        ),
        "capture": BuiltIn(
            "gpusage.cli.commands.capture:command",
            "Run a training script up to its first step to find its model and keys.",
        ),
        "decisions": BuiltIn(
            "gpusage.cli.commands.decisions:command", "What gpusage did to jobs, why, and what they used."
        ),
        "report": BuiltIn("gpusage.cli.commands.report:command", "What was decided, what jobs used, what that saved."),
        "status": BuiltIn("gpusage.cli.commands.status:command", "What gpusaged on this host observes and decided."),
        "plugins": BuiltIn(
            "gpusage.cli.commands.plugins:command", "List the plugins, their hooks, and what is wrong with them."
        ),
        "job-card": BuiltIn("gpusage.cli.cards.job_card:job_card"),
    }
)


DESK_WHEEL = "gpusage-desk"
DESK_COMMANDS = frozenset({"plan", "simulate", "train", "evaluate", "profile"})
DESK_SUBCOMMANDS = frozenset({"sandbox"})
"""Commands that the second wheel brings, and those that it adds to the groups of workload managers."""


class LazyGroup(click.Group):
    """Knows its commands by name, and loads plugins only where no built-in command is meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all commands, those of plugins included; a broken plugin is only mentioned."""
        return [*BUILT_IN, *sorted(set(plugin_commands(ctx)) - set(BUILT_IN))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name; plugins are loaded only for a name that is not built in."""
        if cmd_name not in BUILT_IN:
            return plugin_commands(ctx).get(cmd_name)
        module, _, attribute = BUILT_IN[cmd_name].place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        command.short_help = BUILT_IN[cmd_name].summary
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands as click does, but without an import of those that are built in."""
        ours = {name: command.summary for name, command in BUILT_IN.items() if command.summary}
        others = plugin_commands(ctx)
        added = sorted(name for name in set(others) - set(BUILT_IN) if not others[name].hidden)
        limit = formatter.width - 6 - max(map(len, (*ours, *added)))
        rows = [*ours.items(), *((name, others[name].get_short_help_str(limit)) for name in added)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that *args* begin with, or name the nearest one, or the wheel that brings it."""
        name, rest = args[0], args[1:]
        if name.startswith("-"):
            return super().resolve_command(ctx, args)

        # A manager's own commands do not wait for those that other plugins add to its group.
        namesake = None if name in BUILT_IN else namesake_command(name)
        own: Container[str] = namesake.commands if isinstance(namesake, click.Group) else rest
        if namesake is not None and (not rest or rest[0] in own):
            return name, namesake, rest

        command = self.get_command(ctx, name)
        if command is None:
            if name in DESK_COMMANDS:
                raise _missing_wheel(name)
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f"Did you mean {near[0]!r}?" if near else "'gpusage --help' lists them."
            message = f"Command {name!r} must be a command of gpusage; there is none of this name. {hint}"
            raise click.UsageError(message)
        if isinstance(command, click.Group) and rest and rest[0] in DESK_SUBCOMMANDS - command.commands.keys():
            raise _missing_wheel(name, rest[0])
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:  # whatever the command returns
        """Run the command; where the reader of our output has left, stop without a word."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            output_goes_nowhere()
            ctx.exit(PIPE_CLOSED)
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *rest: Any,  # the signature is click's
        **extra: Any,
    ) -> NoReturn:
        """Run a command line, and leave with the exit status that its outcome has."""
        arguments = list(sys.argv[1:] if args is None else args)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # or numpy starts a thread a core of a large login node
        extra["standalone_mode"] = False
        run = super().main
        sys.exit(exit_status(lambda: run(arguments, prog_name or "gpusage", *rest, **extra), arguments))


def namesake_command(name: str) -> click.Command | None:
    """Return the command *name* of the plugin *name*, without loading the commands of other plugins."""
    commands = _commands(_hooks().commands_of(name))
    return next((command for command in commands if command.name == name), None)


def plugin_commands(ctx: click.Context) -> Mapping[str, click.Command]:
    """Return the commands that plugins add, by name, asking them once a run; groups of one name become one."""

    def ask() -> dict[str, click.Command]:
        by_name: dict[str, list[click.Command]] = {}
        for command in _commands(_hooks().add_commands()):
            by_name.setdefault(command.name or "", []).append(command)
        return {name: _merged(commands) for name, commands in by_name.items()}

    commands: Mapping[str, click.Command] = _once(ctx, "gpusage.plugin_commands", ask)
    return commands


def _merged(commands: Sequence[click.Command]) -> click.Command:
    """Return the first of *commands* of one name; of groups, the described one with the subcommands of all."""
    groups = [command for command in commands if isinstance(command, click.Group)]
    if len(groups) < len(commands) or len(groups) == 1:
        return commands[0]
    whole = copy(next((group for group in groups if group.help), groups[0]))
    # The first answer wins, as everywhere: a site's own plugin answers before ours.
    whole.commands = {name: each for group in reversed(groups) for name, each in group.commands.items()}
    return whole


def _missing_wheel(*command: str) -> click.UsageError:
    name = " ".join(command)
    return click.UsageError(
        f"Command {name!r} must come from {DESK_WHEEL}, which is not installed. Install it: pip install {DESK_WHEEL}"
    )


def _commands(answer: Iterable[object]) -> list[click.Command]:
    """Return the commands in a plugin's answer; what is none is left out."""
    return [item for item in answer if isinstance(item, click.Command)]


def _hooks() -> Hooks:
    from gpusage.plugins.loading import load_hooks  # built-in commands ask no plugin for help

    return load_hooks()


def _once(ctx: click.Context, name: str, make: Callable[[], Any]) -> Any:  # whatever is made
    memory: MutableMapping[str, Any] = ctx.find_root().meta
    if name not in memory:
        memory[name] = make()
    return memory[name]
