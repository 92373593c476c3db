"""What every workload manager's doctor says of gpusage itself: the same evidence, and the same checks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpusage.cli.findings import Finding, failed, passed, warned
from gpusage.node.dividing.offers import Offers, host_offers
from gpusage.plugins.loading import load_hooks
from gpusage.service.client import in_force, read_status
from gpusage.settings.configuration import Configuration, DaemonSettings


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
        offers: In which ways this host divides a GPU.
    """

    configuration: Configuration
    configuration_trouble: str = ""
    status: Mapping[str, Any] | None = None
    status_trouble: str = ""
    socket: str = DaemonSettings().socket
    killed: bool = False
    plugin_troubles: Mapping[str, str] = field(default_factory=dict)
    offers: Offers = field(default_factory=Offers)


def gather_own(configuration: Configuration, trouble: str, sockets: Sequence[str]) -> OwnEvidence:
    """Return what this host shows about gpusage; gathering never fails.

    Args:
        configuration: As `gpusage.settings.configuration_file.read_configuration` returns it.
        trouble: Likewise.
        sockets: Where gpusaged may listen, the likeliest first.
    """
    socket, status, status_trouble = read_status(sockets)
    if trouble and status:
        configuration = in_force(status)
    return OwnEvidence(
        configuration=configuration,
        configuration_trouble=trouble,
        status=status,
        status_trouble=status_trouble,
        socket=socket,
        killed=Path(configuration.kill_switch).exists(),
        plugin_troubles=load_hooks().troubles(),
        offers=host_offers(),
    )


def settings_file(own: OwnEvidence) -> Finding:
    """Return whether gpusage.toml can be used."""
    name = "gpusage.toml"
    if own.configuration_trouble:
        return failed(name, own.configuration_trouble, "fix the file; the last good one stays in force")
    only = own.configuration.enforce_in if own.configuration.mode == "enforce" else ()
    return passed(name, f"mode = {own.configuration.mode}" + (f" in {', '.join(only)} alone" if only else ""))


def plugins(own: OwnEvidence) -> Finding:
    """Return whether every plugin can be used, as this process and gpusaged find."""
    name = "plugins"
    every = {**own.plugin_troubles, **(own.status or {}).get("plugins", {})}
    if every:
        todo = "update or uninstall them, then restart gpusaged; gpusage runs without the disabled ones"
        return warned(name, " ".join(every.values()), todo)
    return passed(name, "all are usable")


def store(own: OwnEvidence) -> Finding:
    """Return whether decisions are kept, as gpusaged's status has it."""
    name = "store"
    if own.status is None:
        return warned(name, "unknown: gpusaged does not answer", "fix that first")
    records, url = own.status.get("records", {}), own.configuration.store.url
    if records.get("lost"):
        return warned(name, f"{records['lost']} decisions could not be kept: {records.get('error')}", f"check {url}")
    return passed(name, url)


def kill_switch(own: OwnEvidence) -> Finding:
    """Return whether the kill switch keeps gpusage from changing anything."""
    name = "kill switch"
    if own.killed:
        return warned(name, f"{own.configuration.kill_switch} exists: nothing is rewritten", "remove it to go on")
    return passed(name, "not thrown")


def divisions(own: OwnEvidence) -> tuple[Finding, ...]:
    """Return in which ways this host divides a GPU; nothing where it has no MPS, as a controller has none."""
    ways = [way for way in own.offers.divisions if way != "whole"]
    version = own.offers.version or "unknown"
    return (passed("GPU division", f"this host divides by {' and '.join(ways)}, MPS {version}"),) if ways else ()


def daemon_trouble(status: Mapping[str, Any], manager: str) -> str:
    """Return what gpusaged's *status* says is wrong with its configuration or with *manager*; else ``""``."""
    return str(status.get("configuration", {}).get("error") or status.get("troubles", {}).get(manager) or "")
