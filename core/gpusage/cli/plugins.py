"""`gpusage plugins`: the plugins, their hooks, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from gpusage.boundary.printable_text import visible
from gpusage.cli import tables
from gpusage.plugins.loading import load_hooks
from gpusage.plugins.plugin import Plugin

SCHEMA = "gpusage.plugins/1"
COLUMNS = (
    tables.Column("plugin", is_left=True),
    tables.Column("package", is_left=True),
    tables.Column("hooks", is_left=True),
)


def list_plugins(*, as_json: bool) -> int:
    """List the plugins, their hooks, and what is wrong with them."""
    hooks = load_hooks()
    troubles = hooks.troubles()
    if as_json:
        tables.print_json({"schema": SCHEMA, "plugins": [_document(plugin) for plugin in hooks.plugins]})
    else:
        _show(hooks.plugins, troubles)
    return int(bool(troubles))


def _document(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "package": plugin.package,
        "version": plugin.version,
        "hooks": list(plugin.hooks),
        "trouble": plugin.trouble,
    }


def _show(plugins: Sequence[Plugin], troubles: Mapping[str, str]) -> None:
    rows = [row for plugin in plugins for row in _rows(plugin)]
    tables.show_rows(COLUMNS, [[visible(cell) for cell in row] for row in rows])
    for trouble in troubles.values():
        click.echo(f"\n{visible(trouble)}")


def _rows(plugin: Plugin) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each hook; the first one names the plugin."""
    first, *others = plugin.hooks or ("none: set aside" if plugin.trouble else "none",)
    yield plugin.name, f"{plugin.package} {plugin.version}".strip(), first
    yield from (("", "", hook) for hook in others)
