"""Findings: what the checks of an installation report to an admin, and how they are shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import click

from gpusage.settings.configuration import Configuration

Grade = Literal["pass", "warn", "fail", "skip"]
_STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "blue"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check of an installation found, and what to do about it."""

    check: str
    verdict: Grade
    observation: str
    todo: str = ""


def passed(check: str, observation: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(check=check, verdict="pass", observation=observation)


def warned(check: str, observation: str, todo: str) -> Finding:
    """Return a finding that an optional part is missing."""
    return Finding(check=check, verdict="warn", observation=observation, todo=todo)


def failed(check: str, observation: str, todo: str) -> Finding:
    """Return a finding that something does not work."""
    return Finding(check=check, verdict="fail", observation=observation, todo=todo)


def skipped(check: str, observation: str, todo: str = "") -> Finding:
    """Return a finding that a check could not be made."""
    return Finding(check=check, verdict="skip", observation=observation, todo=todo)


def show_findings(findings: Sequence[Finding], configuration: Configuration, *, schema: str, as_json: bool) -> int:
    """Show *findings* and the settings in force; return the exit status, 1 where a check fails."""
    settings = list(configuration.effective())
    if as_json:
        document = {
            "schema": schema,
            "checks": [_document(finding) for finding in findings],
            "configuration": [{"key": key, "value": value, "origin": origin} for key, value, origin in settings],
        }
        click.echo(json.dumps(document, indent=1))
    else:
        for (verdict, observation, todo), same in groupby(
            findings, lambda one: (one.verdict, one.observation, one.todo)
        ):
            click.echo(_described(verdict, ", ".join(each.check for each in same), observation, todo))
        click.echo("\nSettings (key = value, origin):")
        for key, value, origin in settings:
            click.echo(f"  {key} = {value!r}  ({origin})")
    return int(any(finding.verdict == "fail" for finding in findings))


def _document(finding: Finding) -> dict[str, str]:
    return {
        "check": finding.check,
        "verdict": finding.verdict,
        "observation": finding.observation,
        "todo": finding.todo,
    }


def _described(verdict: Grade, checks: str, observation: str, todo: str) -> str:
    name = click.style(verdict.upper(), fg=_STYLES[verdict])
    more = f"\n      {todo}" if todo else ""
    return f"{name}  {checks}: {observation}{more}"
