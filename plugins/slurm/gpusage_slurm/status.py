"""What gpusaged says about itself, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MANAGER = "slurm"
_MISSED = {
    "silent": "not answered within slurm.limit_ms",
    "rest": "not asked, in the rest after several silent answers",
    "unreachable": "while gpusaged was not there",
    "strange": "with an answer that is none",
}


def describe(status: Mapping[str, Any]) -> str:
    """Return the daemon's answer to a status question as a few lines of text."""
    return "\n".join(_lines(status))


def _lines(status: Mapping[str, Any]) -> Iterator[str]:
    asks, records = status.get("asks", {}), status.get("records", {})
    yield f"gpusaged {status.get('version')}, up {status.get('uptime_s')} s, mode {status.get('mode')}"
    switch = status.get("kill_switch", {})
    yield f"kill switch: {'ON' if switch.get('on') else 'off'} ({switch.get('path')})"
    configuration = status.get("configuration", {})
    trouble = (
        f"; not usable, the last good one is in force: {configuration['error']}" if configuration.get("error") else ""
    )
    yield f"configuration: {configuration.get('path')}{trouble}"
    yield "asked: " + ", ".join(f"{name} {count}" for name, count in asks.items())
    missed = ", ".join(f"{count} {_MISSED.get(why, why)}" for why, count in status.get("missed", {}).items() if count)
    yield f"left alone without an answer: {missed or 'none'}"
    yield "recorded: " + ", ".join(f"{name} {count}" for name, count in records.items() if count is not None)
    yield from _aftercare(status.get("aftercare", {}))
    yield from _cluster(status)


def _aftercare(aftercare: Mapping[str, Any]) -> Iterator[str]:
    if aftercare.get("turned_back"):
        yield f"turned back, because they could not start as a share: {aftercare['turned_back']} jobs"
    if aftercare.get("error"):
        yield f"rewritten jobs cannot be looked at: {aftercare['error']}"
    yield from aftercare.get("stuck", ())


def _cluster(status: Mapping[str, Any]) -> Iterator[str]:
    cluster = status.get("clusters", {}).get(MANAGER)
    trouble = status.get("troubles", {}).get(MANAGER)
    if trouble:
        yield f"Slurm: {trouble}"
    if cluster is None:
        return
    yield f"Slurm {cluster['version']}, seen {cluster['age_s']} s ago:"
    for pool in cluster["pools"]:
        share = f"shared in {pool['mps_per_gpu']} units" if pool["mps_per_gpu"] else "not shared"
        feature = f"feature {pool['feature']}" if pool["feature"] else "no feature"
        if pool["site_type"] and not pool.get("exact_feature"):
            feature += ", none that is only theirs: whoever names the type gets a whole GPU"
        known = pool["gpu"] or "not in the catalogue"
        free = f"{pool['free_gpu_count']} of {pool['gpu_count']} free"
        yield f"  {pool['site_type']} ({known}): {free}, {share}, {feature}"
    yield from (f"  note: {note}" for note in cluster["notes"])
    yield from (f"  not shared: {why}" for why in cluster.get("unshared", {}).values())
