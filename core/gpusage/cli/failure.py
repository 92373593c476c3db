"""How a command fails: with one sentence on standard error, and an exit status that shows whose fault it is.

0   done
1   the input is at fault, or the answer is no
2   the command line is at fault
70  our own bug, the only case with a traceback
130 Ctrl-C, and 141 where the reader of our output went away: as the shell has them
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import click

from gpusage.boundary.printable_text import one_line, with_end
from gpusage_hooks.errors import GpuUsageError

INPUT, USAGE, BUG, INTERRUPTED, PIPE_CLOSED = 1, 2, 70, 130, 141
_OF_AN_EXTRA = re.compile(r"([\w.-]+)[^;]*;\s*extra == ['\"]([\w-]+)['\"]")

_EXTRA_OF_COMMAND = {"evaluate": "train"}
"""Where they are not of one name."""
REPORT = "This is a bug of gpusage; please report it with the lines above, as CONTRIBUTING.md says"


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
        return report_failure("usage", usage_sentence(error), USAGE, arguments)
    except click.ClickException as error:
        return report_failure("input", error.format_message(), INPUT, arguments)
    except click.Abort as error:  # click takes every EOFError for Ctrl-D, that of a module cut short by a full disk too
        return report_bug(error.__cause__, arguments) if isinstance(error.__cause__, EOFError) else INTERRUPTED
    except GpuUsageError as error:
        return report_failure(error.code, str(error), INPUT, arguments)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return report_bug(error, arguments)
        output_goes_nowhere()
        return report_failure(
            "input", "Output must be written in full; got: no space left. Free some, or write elsewhere.", INPUT, ()
        )
    except Exception as error:  # the last one to hear of it
        return (
            report_missing_module(error, arguments)
            if isinstance(error, ModuleNotFoundError)
            else report_bug(error, arguments)
        )
    return status if isinstance(status, int) else 0


def report_missing_module(error: ModuleNotFoundError, arguments: Sequence[str]) -> int:
    """Report a module that is not there: one of an extra of ours, or else our own bug."""
    library = library_of(error.name or "")
    extra = extra_with(library, next((word for word in arguments if not word.startswith("-")), ""))
    return report_missing_library(library, extra, arguments) if extra else report_bug(error, arguments)


def report_missing_library(library: str, extra: str, arguments: Sequence[str]) -> int:
    """Report that a library is not installed, and which extra of ours brings it."""
    rule = f"Library {library} must be there for this command; got: not installed."
    return report_failure("input", f"{rule} Install gpusage with its extra [{extra}].", INPUT, arguments)


def report_bug(error: Exception, arguments: Sequence[str]) -> int:
    """Report our own bug, with the traceback."""
    traceback.print_exception(error)
    return report_failure("internal", f"{REPORT}: {type(error).__name__}: {error}", BUG, arguments)


def report_failure(code: str, message: str, status: int, arguments: Sequence[str]) -> int:
    """Report one failure, and return *status*."""
    sentence = one_line(message)
    click.echo(f"gpusage: error: {sentence}", err=True)
    if wants_json(arguments):
        click.echo(json.dumps({"error": {"code": code, "message": sentence}}, indent=2))
    return status


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether ``--json`` is an option among *arguments*: not after ``--``."""
    words = list(arguments)
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def usage_sentence(error: click.UsageError) -> str:
    """Return what is wrong with a command line, and where the right one is described."""
    message = with_end(error.format_message().rstrip())
    return f"{message} Try '{error.ctx.command_path} --help'." if error.ctx else message


def output_goes_nowhere() -> None:
    """Let what is still buffered for standard output go nowhere, so that Python's own exit is quiet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def library_of(module: str) -> str:
    """Return the library that brings *module*, by the name that it is installed by."""
    package = module.partition(".")[0]
    return {"sklearn": "scikit-learn"}.get(package, package)


def extra_with(library: str, command: str = "") -> str | None:
    """Return the extra that brings *library*, that of *command* or else the smallest; ``None`` where none does."""
    from importlib.metadata import requires  # takes as long as click

    pairs = [each.groups() for line in requires("gpusage") or () if (each := _OF_AN_EXTRA.match(line))]
    own = _EXTRA_OF_COMMAND.get(command, command)
    if (library, own) in pairs:
        return own
    sizes = Counter(extra for _, extra in pairs)
    return min((extra for name, extra in pairs if name == library), key=sizes.__getitem__, default=None)
