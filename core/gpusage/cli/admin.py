"""Commands of admins, for every workload manager: checks of an installation, and changes to its files.

A check returns a `Finding`; a manager's doctor adds its own checks to those of gpusage itself, which stand here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import click

from gpusage.boundary.edits import Edit, make_edits
from gpusage.decisions.advisor import make_advisor
from gpusage.devices.calibration import calibrated
from gpusage.node.dividing.programs import Offers, host_offers
from gpusage.reports.brief import next_step
from gpusage.reports.reading import Reader, rules_of
from gpusage.service.client import in_force, read_status
from gpusage.settings.configuration import Configuration, DaemonSettings
from gpusage.store.opening import open_store
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.units import DAY_S

Grade = Literal["pass", "warn", "fail", "skip"]
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
SEEN_DAYS = 30
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
            "checks": [asdict(finding) for finding in findings],
            "configuration": [{"key": key, "value": value, "origin": origin} for key, value, origin in settings],
        }
        click.echo(json.dumps(document, indent=1))
    else:
        # Checks with the same observation and the same cure are one line.
        for (verdict, observation, todo), same in groupby(
            findings, lambda one: (one.verdict, one.observation, one.todo)
        ):
            checks = ", ".join(each.check for each in same)
            more = f"\n      {todo}" if todo else ""
            click.echo(f"{click.style(verdict.upper(), fg=_STYLES[verdict])}  {checks}: {observation}{more}")

        click.echo("\nSettings (key = value, origin):")
        for key, value, origin in settings:
            click.echo(f"  {key} = {value!r}  ({origin})")

    return int(any(finding.verdict == "fail" for finding in findings))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEvidence:
    """What a host shows about gpusage itself.

    Attributes:
        configuration: Where the file is broken, what gpusaged says of the settings that it goes on with.
        configuration_trouble: Why the file cannot be used; empty where it can.
        status: gpusaged's; ``None`` where it does not answer, and *status_trouble* says why.
        socket: Where gpusaged answers, or should.
        killed: Whether the kill switch is on.
        plugin_troubles: What is wrong with plugins as this process finds them, by name.
        gpus_trouble: What is wrong with the site's names of GPUs or its calibrations; empty where nothing is.
        offers: In which ways this host divides a GPU.
        next_step: The fifth line of `gpusage report`, by the days of the last 30 that gpusaged has added up; empty
            where it has none.
        store_trouble: Why the store cannot be read here; empty where it can.
        mixed_clusters: As `DecisionStore.mixed_clusters` returns it.
    """

    configuration: Configuration
    configuration_trouble: str = ""
    status: Mapping[str, Any] | None = None
    status_trouble: str = ""
    socket: str = DaemonSettings().socket
    killed: bool = False
    plugin_troubles: Mapping[str, str] = field(default_factory=dict)
    gpus_trouble: str = ""
    offers: Offers = field(default_factory=Offers)
    next_step: str = ""
    store_trouble: str = ""
    mixed_clusters: str = ""


def gather_own(configuration: Configuration, trouble: str, sockets: Sequence[str]) -> OwnEvidence:
    """Return what this host shows about gpusage; gathering never fails.

    Args:
        configuration: As `gpusage.settings.configuration_file.read_configuration` returns it.
        trouble: Likewise.
        sockets: Where gpusaged may listen, the likeliest first.
    """
    # The daemon may listen on the usual socket, or on the one that the file names.
    socket, status, status_trouble = read_status(sockets)
    # A broken file: the daemon goes on with the last good one, and says which settings it has.
    if trouble and status:
        configuration = in_force(status)
    advisor = make_advisor().configured(configuration)
    gpus, catalogue = configuration.gpus, advisor.catalogue
    step, store_trouble, mixed, now_s = "", "", "", time.time()
    try:
        with closing(open_store(configuration.store.url)) as opened:
            mixed = opened.mixed_clusters()
            reader = Reader(store=opened, rules=rules_of(configuration, catalogue))
            count, partitions = reader.partitions_of_days(now_s - SEEN_DAYS * DAY_S, now_s)
        if count:
            step = f"{next_step(configuration.mode, configuration.enforce_in, partitions)} (by {count} whole days)"
    except (GpuUsageError, OSError) as error:
        store_trouble = str(error)
    return OwnEvidence(
        configuration=configuration,
        configuration_trouble=trouble,
        status=status,
        status_trouble=status_trouble,
        socket=socket,
        killed=Path(configuration.kill_switch).exists(),
        plugin_troubles=advisor.hooks.troubles(),
        gpus_trouble=catalogue.alias_trouble(gpus.aliases) or calibrated(gpus.calibration, catalogue)[1],
        offers=host_offers(),
        next_step=step,
        store_trouble=store_trouble,
        mixed_clusters=mixed,
    )


def settings_file(own: OwnEvidence) -> Finding:
    """Return whether gpusage.toml can be used."""
    name = "gpusage.toml"
    if own.configuration_trouble:
        return failed(name, own.configuration_trouble, "fix the file; the last good one stays in force")
    if own.gpus_trouble:
        return warned(name, own.gpus_trouble, "mend gpusage.toml; until then it has no effect")
    # enforce_in has no meaning in the other modes.
    only = own.configuration.enforce_in if own.configuration.mode == "enforce" else ()
    return passed(name, f"mode = {own.configuration.mode}" + (f" in {', '.join(only)} alone" if only else ""))


def plugins(own: OwnEvidence) -> Finding:
    """Return whether every plugin can be used, as this process and gpusaged find."""
    name = "plugins"
    # The daemon may see other plugins than this process: another user, another environment.
    every = {**own.plugin_troubles, **(own.status or {}).get("plugins", {})}
    if every:
        todo = "update or uninstall them, then restart gpusaged; gpusage runs without the disabled ones"
        return warned(name, " ".join(every.values()), todo)
    return passed(name, "all are usable")


def store(own: OwnEvidence) -> Finding:
    """Return whether the store is one cluster's, and decisions are kept, as gpusaged's status has it."""
    name = "store"
    if own.mixed_clusters:
        todo = "see docs/admin.md, The store of decisions; a renamed cluster's old name soon counts no more"
        return failed(name, own.mixed_clusters, todo)
    if own.status is None:
        return warned(name, "unknown: gpusaged does not answer", "fix that first")
    records, url = own.status.get("records", {}), own.configuration.store.url
    if records.get("lost") or records.get("error"):
        what = f"{records['lost']} decisions could not be kept, {records['waiting']} wait"
        return warned(name, f"{what}: {records['error']}", f"check {url}")
    return passed(name, url)


def seen_enough(own: OwnEvidence) -> Finding:
    """Return whether enough was seen to enforce, in the words of the fifth line of `gpusage report`."""
    name = "from observe to enforce"
    if own.store_trouble:
        url = own.configuration.store.url
        return skipped(name, own.store_trouble, f"run this as root or as the daemon's user, or check {url}")
    if not own.next_step:
        return skipped(name, "gpusaged has added up no day yet", "see gpusage report for what was seen so far")
    return passed(name, own.next_step)


def kill_switch(own: OwnEvidence) -> Finding:
    """Return whether the kill switch keeps gpusage from changing anything."""
    name = "kill switch"
    if own.killed:
        return warned(name, f"{own.configuration.kill_switch} exists: nothing is rewritten", "remove it to go on")
    return passed(name, "not thrown")


def divisions(own: OwnEvidence) -> tuple[Finding, ...]:
    """Return in which ways this host divides a GPU; nothing where it has no MPS, as a controller has none."""
    offers = own.offers
    ways = [way for way in offers.divisions if way != "whole"]
    if not ways:
        return ()
    because = f" ({offers.because})" if offers.because else ""
    divided = f"this host divides by {' and '.join(ways)}, MPS {offers.version or 'unknown'}"
    return (passed("GPU division", f"{divided}; a share's memory is limited by a {offers.limited_by}{because}"),)


def daemon_trouble(status: Mapping[str, Any], manager: str) -> str:
    """Return what gpusaged's *status* says is wrong with its configuration or with *manager*; else ``""``."""
    return str(status.get("configuration", {}).get("error") or status.get("troubles", {}).get(manager) or "")


def show_and_make(edits: Iterable[Edit], *, schema: str, yes: bool, as_json: bool, after: str) -> None:
    """Show *edits*; with *yes*, make them, and say what comes *after*."""
    changing = [edit for edit in edits if edit.changes]
    # The files are changed before they are shown, so that a failure shows no diff as made.
    if yes:
        make_edits(changing)
    if as_json:
        files = [{"path": str(edit.path), "diff": edit.diff()} for edit in changing]
        click.echo(json.dumps({"schema": schema, "applied": yes, "files": files}, indent=1))
        return

    for edit in changing:
        lines = edit.diff().splitlines(keepends=True)
        click.echo("".join(click.style(line, fg=_COLOURS.get(line[:1])) for line in lines), nl=False)
    files_text = "1 file" if len(changing) == 1 else f"{len(changing)} files"
    if not changing:
        click.echo("Nothing to change.")
    elif yes:
        click.echo(f"Changed {files_text}. {after}")
    else:
        click.echo(f"Would change {files_text}. Add --yes to do it.")
