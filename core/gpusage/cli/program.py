"""The program `gpusage`: its commands, which are imported when they are called, and how it ends.

Every end is one sentence on standard error and an exit status that shows whose fault it is:

0   done
1   the input is at fault, or the answer is no
2   the command line is at fault
70  our own bug, the only case with a traceback
130 Ctrl-C, and 141 where the reader of our output went away: as the shell has them

A command is a signature, which `--help` shows, and an action, which `run_by` imports when the command runs: a login
node waits for `gpusage --help` and for `gpusage job-card` (docs/decisions/packaging.md).
"""

from __future__ import annotations

import difflib
import errno
import importlib
import json
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from gpusage.boundary.printable_text import one_line, with_end
from gpusage_hooks.errors import GpuUsageError

if TYPE_CHECKING:
    from gpusage.plugins.hooks import Hooks

INPUT, USAGE, BUG, INTERRUPTED, PIPE_CLOSED = 1, 2, 70, 130, 141
REPORT = "This is a bug of gpusage; please report it with the lines above, as CONTRIBUTING.md says"
EXAMPLE = """\b
Example:
  gpusage predict examples/models/resnet50.onnx --batch 64 --gpu v100 --gpu h100

\b
Shell completion (zsh_source, fish_source likewise):
  eval "$(_GPUSAGE_COMPLETE=bash_source gpusage)"
"""
_OF_AN_EXTRA = re.compile(r"([\w.-]+)[^;]*;\s*extra == ['\"]([\w-]+)['\"]")
# Where the two have different names.
_EXTRA_OF_COMMAND = {"evaluate": "train"}


class BuiltIn(NamedTuple):
    """One built-in command: its signature, ``module:name``, and its line in the list; without a line it is hidden."""

    signature: str
    summary: str = ""


_MODELS, _JOBS = "gpusage.cli.model_commands", "gpusage.cli.job_commands"
# In the order of the list that --help prints.
BUILT_IN: Mapping[str, BuiltIn] = {
    "predict": BuiltIn(f"{_MODELS}:predict", "What models need on GPUs: time, memory, utilization."),
    "colocate": BuiltIn(f"{_MODELS}:colocate", "How jobs on one GPU slow each other down."),
    "validate": BuiltIn(f"{_JOBS}:validate", "What gpusage would do to job scripts, and why."),
    "card": BuiltIn(f"{_MODELS}:card", "Describe models compactly, without their weights."),
    "gpus": BuiltIn(f"{_MODELS}:gpus", "List the GPU catalogue, with sources."),
    "gate": BuiltIn(f"{_MODELS}:gate", "Run training so that it leaves room for inference beside it."),
    "capture": BuiltIn(f"{_MODELS}:capture", "Run a training script up to its first step to find its model and keys."),
    "calibrate": BuiltIn(f"{_MODELS}:calibrate", "Measure how fast this node's host launches kernels."),
    "decisions": BuiltIn(f"{_JOBS}:decisions", "What gpusage did to jobs, why, and what they used."),
    "report": BuiltIn(f"{_JOBS}:report", "What was decided, what jobs used, what that freed."),
    "status": BuiltIn(f"{_JOBS}:status", "What gpusaged on this host observes and decided."),
    "plugins": BuiltIn(f"{_JOBS}:plugins", "List the plugins, their hooks, and what is wrong with them."),
    "job-card": BuiltIn("gpusage.cli.cards.job_card:job_card"),
}


DESK_WHEEL = "gpusage-desk"
DESK_COMMANDS = frozenset({"plan", "simulate", "train", "evaluate", "profile"})
DESK_SUBCOMMANDS = frozenset({"sandbox"})
"""Commands that the second wheel brings, and those that it adds to the groups of workload managers."""


def run_by(action: str) -> Callable[[Callable[[], None]], Callable[..., Any]]:
    """Return a decorator for a command's signature: a function with a docstring alone, which options decorate.

    Args:
        action: As ``module:function``; its parameters are the command's, by name.
    """
    module, _, name = action.partition(":")

    def decorate(signature: Callable[[], None]) -> Callable[..., Any]:
        @wraps(signature)
        def run(*arguments: Any, **options: Any) -> Any:  # of any command
            return getattr(importlib.import_module(module), name)(*arguments, **options)

        vars(run)["action"] = action
        return run

    return decorate


class LazyGroup(click.Group):
    """Knows its commands by name, and loads plugins only for a command that is not built in."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all commands, a plugin's included; a broken plugin only gives a warning."""
        return [*BUILT_IN, *sorted(set(plugin_commands(ctx)) - set(BUILT_IN))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name."""
        if cmd_name not in BUILT_IN:
            return plugin_commands(ctx).get(cmd_name)
        signature, summary = BUILT_IN[cmd_name]
        module, _, attribute = signature.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        # The list shows this line without the import; the command's own help must not differ.
        command.short_help = summary
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands as click does, but without an import of the built-in ones."""
        ours = {name: command.summary for name, command in BUILT_IN.items() if command.summary}
        others = plugin_commands(ctx)
        added = sorted(name for name in set(others) - set(BUILT_IN) if not others[name].hidden)

        limit = formatter.width - 6 - max(map(len, (*ours, *added)))  # click's own margin
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

        # The plugin `slurm` adds the command `slurm`. Its own commands do not wait for the imports of other
        # plugins, which may add some to the same group.
        if name not in BUILT_IN:
            namesakes = [each for each in _commands(_hooks().commands_of(name)) if each.name == name]
            for namesake in namesakes[:1]:
                if not isinstance(namesake, click.Group) or (rest and rest[0] in namesake.commands):
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
            discard_output()
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
        # Click would print errors and exit by itself; ours have a sentence and a status of their own.
        extra["standalone_mode"] = False
        run = super().main
        sys.exit(exit_status(lambda: run(arguments, prog_name or "gpusage", *rest, **extra), arguments))


@click.group(name="gpusage", cls=LazyGroup, epilog=EXAMPLE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gpusage")
def main() -> None:
    """Predict what deep-learning jobs need from a GPU, before they run."""


def plugin_commands(ctx: click.Context) -> Mapping[str, click.Command]:
    """Return the commands that plugins add, by name, asking them once a run; groups of one name become one."""
    memory = ctx.find_root().meta
    key = "gpusage.plugin_commands"
    if key not in memory:
        by_name: dict[str, list[click.Command]] = {}
        for command in _commands(_hooks().add_commands()):
            by_name.setdefault(command.name or "", []).append(command)
        memory[key] = {name: _merged(namesakes) for name, namesakes in by_name.items()}

    commands: Mapping[str, click.Command] = memory[key]
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
    from importlib.metadata import version

    # A name for pip would be anybody's to register: the sentence names the file that is made with this version.
    wheel = f"{DESK_WHEEL.replace('-', '_')}-{version('gpusage')}-py3-none-any.whl"
    message = f"Command {' '.join(command)!r} must come from {DESK_WHEEL}, which is not installed. Install {wheel}"
    return click.UsageError(f"{message} beside gpusage")


def _commands(answer: Iterable[object]) -> list[click.Command]:
    """Return the commands in a plugin's answer; anything else is left out."""
    return [item for item in answer if isinstance(item, click.Command)]


def _hooks() -> Hooks:
    from gpusage.plugins.loading import load_hooks  # built-in commands ask no plugin for help

    return load_hooks()


def exit_status(command: Callable[[], Any], arguments: Sequence[str]) -> int:
    """Run *command* and return its exit status; a failure is reported on standard error.

    Args:
        command: A click command in non-standalone mode.
        arguments: Of the command line: with ``--json`` among them, a failure is reported on standard output, too.
    """
    try:
        status = command()
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # since click 8.2
            error.show()
            return USAGE
        message = with_end(error.format_message().rstrip())
        message = f"{message} Try '{error.ctx.command_path} --help'." if error.ctx else message
        return report_failure("usage", message, USAGE, arguments)
    except click.ClickException as error:
        return report_failure("input", error.format_message(), INPUT, arguments)
    except click.Abort as error:
        # Click takes every EOFError for Ctrl-D, also that of a module that a full disk cut short.
        return _report_bug(error.__cause__, arguments) if isinstance(error.__cause__, EOFError) else INTERRUPTED
    except GpuUsageError as error:
        return report_failure(error.code, str(error), INPUT, arguments)
    except OSError as error:
        # A full disk is the user's to cure; any other error of the system that comes here is our bug.
        if error.errno != errno.ENOSPC:
            return _report_bug(error, arguments)
        discard_output()
        return report_failure(
            "input", "Output must be written in full; got: no space left. Free some, or write elsewhere.", INPUT, ()
        )
    except ModuleNotFoundError as error:
        return _report_missing_module(error, arguments)
    except Exception as error:  # the last one to hear of it
        return _report_bug(error, arguments)

    return status if isinstance(status, int) else 0


def _report_missing_module(error: ModuleNotFoundError, arguments: Sequence[str]) -> int:
    """Report a missing module: say which extra brings it, and if none does, that it is our own bug."""
    from importlib.metadata import requires  # takes as long as click

    package = (error.name or "").partition(".")[0]
    library = {"sklearn": "scikit-learn"}.get(package, package)  # the name that it is installed by
    command = next((word for word in arguments if not word.startswith("-")), "")

    # The command's own extra comes first, else the smallest one that brings the library.
    pairs = [each.groups() for line in requires("gpusage") or () if (each := _OF_AN_EXTRA.match(line))]
    extra: str | None = _EXTRA_OF_COMMAND.get(command, command)
    if (library, extra) not in pairs:
        sizes = Counter(extra for _, extra in pairs)
        extra = min((extra for name, extra in pairs if name == library), key=sizes.__getitem__, default=None)
    if extra is None:
        return _report_bug(error, arguments)
    rule = f"Library {library} must be there for this command; got: not installed."
    return report_failure("input", f"{rule} Install gpusage with its extra [{extra}].", INPUT, arguments)


def _report_bug(error: Exception, arguments: Sequence[str]) -> int:
    """Report our own bug, with the traceback."""
    traceback.print_exception(error)
    return report_failure("internal", f"{REPORT}: {type(error).__name__}: {error}", BUG, arguments)


def report_failure(code: str, message: str, status: int, arguments: Sequence[str]) -> int:
    """Report one failure, as a document too if ``--json`` is an option among *arguments*; return *status*."""
    sentence = one_line(message)
    click.echo(f"gpusage: error: {sentence}", err=True)

    words = list(arguments)
    options = words[: words.index("--")] if "--" in words else words  # behind it stand another program's
    if "--json" in options:
        click.echo(json.dumps({"error": {"code": code, "message": sentence}}, indent=2))
    return status


def discard_output() -> None:
    """Send the rest of standard output nowhere, so that Python's own exit prints no second error."""
    # Python flushes standard output when it exits, and would fail once more.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
