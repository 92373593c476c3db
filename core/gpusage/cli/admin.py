"""What the admin's commands of every workload manager show: changes to files, and findings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import click

from gpusage.configuration import Configuration
from gpusage.edits import Edit, make_edits

Verdict = Literal["pass", "warn", "fail", "skip"]
_STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "blue"}
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check of an installation found, and what to do about it."""

    check: str
    verdict: Verdict
    found: str
    todo: str = ""


def passed(check: str, observation: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(check=check, verdict="pass", found=observation)


def warned(check: str, observation: str, todo: str) -> Finding:
    """Return a finding that something is missing that may be missing."""
    return Finding(check=check, verdict="warn", found=observation, todo=todo)


def failed(check: str, observation: str, todo: str) -> Finding:
    """Return a finding that something does not work."""
    return Finding(check=check, verdict="fail", found=observation, todo=todo)


def settings_finding(configuration: Configuration, trouble: str) -> Finding:
    """Return whether gpusage.toml can be used."""
    name = "gpusage.toml"
    if trouble:
        return failed(name, trouble, "mend the file; the last good one stays in force")
    return passed(name, f"mode = {configuration.mode}")


def plugins_finding(troubles: Mapping[str, str], status: Mapping[str, Any] | None) -> Finding:
    """Return whether every plugin can be used.

    Args:
        troubles: What is wrong with plugins as this process finds them, by name.
        status: gpusaged's, which tells what it found itself.
    """
    name = "plugins"
    every = {**troubles, **(status or {}).get("plugins", {})}
    if every:
        todo = "update or uninstall them, then restart gpusaged; gpusage works on without those that are set aside"
        return warned(name, " ".join(every.values()), todo)
    return passed(name, "all can be used")


def store_finding(configuration: Configuration, status: Mapping[str, Any] | None) -> Finding:
    """Return whether decisions are kept, as gpusaged's *status* has it."""
    name = "store"
    if status is None:
        return warned(name, "not seen: gpusaged does not answer", "mend that first")
    records = status.get("records", {})
    if records.get("lost"):
        observation = f"{records['lost']} decisions could not be kept: {records.get('error')}"
        return warned(name, observation, f"check {configuration.store.url}")
    return passed(name, configuration.store.url)


def show_and_make(edits: Iterable[Edit], *, schema: str, yes: bool, as_json: bool, after: str) -> None:
    """Show *edits*; with *yes*, make them, and say what comes *after*."""
    changing = [edit for edit in edits if edit.changes]
    if yes:
        make_edits(changing)
    if as_json:
        files = [{"path": str(edit.path), "diff": edit.diff()} for edit in changing]
        click.echo(json.dumps({"schema": schema, "applied": yes, "files": files}, indent=1))
        return
    for edit in changing:
        click.echo(_coloured(edit.diff()), nl=False)
    if not changing:
        click.echo("Nothing to change.")
    elif yes:
        click.echo(f"Changed {_files(changing)}. {after}")
    else:
        click.echo(f"Would change {_files(changing)}. Add --yes to do it.")


def show_findings(
    findings: Sequence[Finding], configuration: Configuration, *, schema: str, as_json: bool, **more: Any  # noqa: ANN401 - JSON
) -> int:  # fmt: skip
    """Show *findings* and the settings in force; return the exit status, 1 where a check fails."""
    settings = list(configuration.effective())
    if as_json:
        document = {
            "schema": schema,
            "checks": [asdict(finding) for finding in findings],
            "configuration": [{"key": key, "value": value, "origin": origin} for key, value, origin in settings],
            **more,
        }
        click.echo(json.dumps(document, indent=1))
    else:
        for finding in findings:
            verdict = click.style(finding.verdict.upper(), fg=_STYLES[finding.verdict])
            click.echo(
                f"{verdict}  {finding.check}: {finding.found}" + (f"\n      {finding.todo}" * bool(finding.todo))
            )
        click.echo("\nSettings (key = value, origin):")
        for key, value, origin in settings:
            click.echo(f"  {key} = {value!r}  ({origin})")
    return int(any(finding.verdict == "fail" for finding in findings))


def _files(edits: Sequence[object]) -> str:
    return "1 file" if len(edits) == 1 else f"{len(edits)} files"


def _coloured(diff: str) -> str:
    return "".join(click.style(line, fg=_COLOURS.get(line[:1])) for line in diff.splitlines(keepends=True))
