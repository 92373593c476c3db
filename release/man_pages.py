"""Writes a manual page for each command from its help text: `python release/man_pages.py FOLDER`; `make man` calls it.

click-man, which also does this, knows no commands that are imported late, and leaves out examples and verbatim blocks.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click

from gpusage.cli import main as gpusage
from gpusage.service.daemon import main as gpusaged


def contexts(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield the context of *command* and of each visible command below it."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield context
    for child, below in _commands(context):
        yield from contexts(below, child, context)


def page(context: click.Context) -> str:
    """Return the manual page of a command, in the macros of man(7)."""
    command, name = context.command, context.command_path.replace(" ", "-")
    date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    options = (each for each in command.get_params(context) if isinstance(each, click.Option))
    records = [record for each in options if (record := each.get_help_record(context))]
    below = [(f"{name}-{child}(1)", each.get_short_help_str(200)) for child, each in _commands(context)]
    parts = [
        f'.TH {name.upper()} 1 {date} "gpusage {version("gpusage")}" "User Commands"',
        f".SH NAME\n{_text(name)} \\- {_text(command.get_short_help_str(200).rstrip('.'))}",
        f".SH SYNOPSIS\n.B {_text(context.command_path)}\n{_text(' '.join(command.collect_usage_pieces(context)))}",
        f".SH DESCRIPTION\n{_prose(inspect.cleandoc(command.help or ''))}",
        _section("OPTIONS", _items(records)),
        _section("COMMANDS", _items(below)),
        _section("EXAMPLES", _prose(command.epilog or "")),
        _section("SEE ALSO", f".BR {_text(name.rpartition('-')[0])} (1)" if context.parent else ""),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _commands(context: click.Context) -> list[tuple[str, click.Command]]:
    group = context.command
    if not isinstance(group, click.Group):
        return []
    names = group.list_commands(context)
    return [(name, each) for name in names if (each := group.get_command(context, name)) and not each.hidden]


def _section(title: str, body: str) -> str:
    return body and f".SH {title}\n{body}"


def _items(items: list[tuple[str, str]]) -> str:
    return "\n".join(f".TP\n.B {_text(name)}\n{_text(help_)}" for name, help_ in items)


def _prose(text: str) -> str:
    paragraphs = [_text(each) for each in text.strip("\n").split("\n\n") if each]
    # in click, a backspace marks a paragraph that keeps its line breaks
    return "\n.PP\n".join(f".nf\n{each[2:]}\n.fi" if each.startswith("\b") else each for each in paragraphs)


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in escaped.split("\n"))


if __name__ == "__main__":
    for context in (*contexts(gpusage, "gpusage"), *contexts(gpusaged, "gpusaged")):
        Path(sys.argv[1], f"{context.command_path.replace(' ', '-')}.1").write_text(page(context), encoding="utf-8")
