"""Print a table of what can be set: the keys of a job by their group, or the keys of gpusage.toml.

The tables of docs/jobs.md and docs/configuration.md are made by it, from `gpusage_hooks.job_keys` and from the
dataclasses of gpusage.toml's sections. ``schema`` prints docs/job_keys.schema.json.

Example: python bench/settings.py run
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from inspect import getdoc
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click

from gpusage.plugins.loading import installed_managers
from gpusage.settings.configuration import SECTIONS, Configuration
from gpusage_hooks.job_keys import JOB_KEYS, Group, JobKey
from gpusage_hooks.job_values import Words
from gpusage_hooks.types import Range

_ATTRIBUTE = re.compile(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", re.MULTILINE | re.DOTALL)


def job_table(group: str) -> Iterator[str]:
    """Yield the lines of the table of a *group* of a job's keys."""
    yield from ("| key | meaning | default | example |", "|---|---|---|---|")
    for row in JOB_KEYS.values():
        if row.group == group:
            yield f"| `{row.name}` | {_meaning(row)} | {row.default} | `{row.name}={row.example}` |"


def _meaning(row: JobKey) -> str:
    words = f" One of {_code(row.kind.choices)}." if isinstance(row.kind, Words) else ""
    details = f" {row.details}" if row.details else ""
    return f"{row.help}{words}{details}"


def job_schema() -> str:
    """Return the JSON schema of an object that has a job's keys."""
    properties = {
        row.name: {**row.kind.json_schema, "description": row.help, "examples": [_json_example(row)]}
        for row in JOB_KEYS.values()
    }
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The keys of a job that gpusage reads",
        "type": "object",
        "properties": properties,
        "dependentRequired": {row.name: [row.requires] for row in JOB_KEYS.values() if row.requires},
        "additionalProperties": False,
    }
    return json.dumps(document, indent=2)


def _json_example(row: JobKey) -> object:
    is_number = row.kind.json_schema.get("type") in ("integer", "number", ["number", "string"])
    return json.loads(row.example) if is_number else row.example


def site_table() -> Iterator[str]:
    """Yield the lines of the table of gpusage.toml."""
    yield from ("| key | meaning | allowed | default |", "|---|---|---|---|")
    managers = {name: manager.settings for name, manager in sorted(installed_managers().items())}
    kinds: dict[str, type[Any]] = {"": Configuration, **SECTIONS, **managers}
    for section, kind in kinds.items():
        meanings = attributes(kind)
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            if section or field.name in ("mode", "enforce_in", "kill_switch"):
                name = f"{section}.{field.name}" if section else field.name
                yield f"| `{name}` | {meanings[field.name]} | {_allowed(hints[field.name])} | {_toml(field.default)} |"


def attributes(kind: type) -> dict[str, str]:
    """Return what the docstring of the dataclass *kind* says of each attribute, by its name."""
    _, _, listed = (getdoc(kind) or "").partition("Attributes:\n")
    texts = {name: " ".join(text.split()) for name, text in _ATTRIBUTE.findall(listed)}
    return {name: text.replace("``", "`") for name, text in texts.items()}


def _allowed(hint: Any) -> str:  # an annotation
    limits = ""
    if get_origin(hint) is Annotated:
        hint, *metadata = get_args(hint)
        limits = next((f"{each.low:g} to {each.high:g}" for each in metadata if isinstance(each, Range)), "")
    if get_origin(hint) is Literal:
        return _code(get_args(hint))
    words = {bool: "`true`, `false`", str: "text", int: "whole number", float: "number"}
    each = {tuple[str, ...]: "list of texts", tuple[int, ...]: "list of whole numbers"}
    plain = words.get(hint) or each.get(hint) or f"table of {'texts' if str(hint).endswith('str]') else 'numbers'}"
    return f"{plain}, {limits}" if limits else plain


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(_plain, value))}]`"
    return "`{}`" if not isinstance(value, (str, int, float)) else f"`{_plain(value)}`"


def _plain(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def _code(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)


@click.command()
@click.argument("table", type=click.Choice([*get_args(Group), "site", "schema"]))
def main(table: str) -> None:
    """Print TABLE: a group of a job's keys, the keys of gpusage.toml, or the JSON schema of a job's keys."""
    if table == "schema":
        click.echo(job_schema())
        return
    click.echo("\n".join(site_table() if table == "site" else job_table(table)))


if __name__ == "__main__":
    main()
