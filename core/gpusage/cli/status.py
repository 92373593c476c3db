"""`gpusage status`: what gpusaged on this host says of itself and of the clusters that it sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import click

from gpusage.boundary.printable_text import visible_lines
from gpusage.cli import tables
from gpusage.plugins.loading import installed_managers
from gpusage.reports.joining import grouped
from gpusage.service.client import find_status
from gpusage.settings.configuration import DaemonSettings
from gpusage.settings.configuration_file import read_configuration
from gpusage_hooks.types import GpuPool

Table = Mapping[str, Any]
"""A part of the daemon's answer."""

_MOST_REASONS = 12
_MISSED = {
    "silent": "not answered in time",
    "rest": "not asked, in the pause after several missing answers",
    "unreachable": "while gpusaged was not running",
    "strange": "with an invalid answer",
    "refused": "whose change the site's own job_submit refused",
}


def show_status(*, as_json: bool) -> None:
    """Show what gpusaged on this host sees: its mode, its clusters, and how many decisions it has made."""
    configuration, _ = read_configuration()
    _, status = find_status(tuple(dict.fromkeys((configuration.daemon.socket, DaemonSettings().socket))))
    if as_json:
        tables.print_json(status)
        return

    managers = installed_managers().values()
    clusters = (line for manager in managers for line in cluster_lines(status, manager.name, manager.title))
    for line in (*daemon_lines(status), *clusters):
        click.echo(visible_lines(line))


def daemon_lines(status: Table) -> Iterator[str]:
    """Yield how the daemon fares."""
    lines, records = status.get("lines", {}), status.get("records", {})
    only = ", ".join(status.get("enforce_in", ())) if status.get("mode") == "enforce" else ""
    where = f" in {only} alone" if only else ""
    yield f"gpusaged {status.get('version')}, up {status.get('uptime_s')} s, mode {status.get('mode')}{where}"
    switch = status.get("kill_switch", {})
    yield f"kill switch: {'ON' if switch.get('on') else 'off'} ({switch.get('path')})"
    configuration = status.get("configuration", {})
    error = configuration.get("error")
    trouble = f"; not usable, the last good one is in force: {error}" if error else ""
    yield f"configuration: {configuration.get('path')}{trouble}"

    yield "questions: " + ", ".join(f"{name} {count}" for name, count in lines.items())
    missed = ", ".join(f"{count} {_MISSED.get(why, why)}" for why, count in status.get("missed", {}).items() if count)
    yield f"left unchanged: {missed or 'none'}"
    yield "recorded: " + ", ".join(f"{name} {count}" for name, count in records.items() if count is not None)

    jobs, usage = status.get("job_monitor", {}), status.get("usage", {})
    if jobs.get("turned_back"):
        yield f"restored, because they could not start as a share: {jobs['turned_back']} jobs"
    if jobs.get("requeued"):
        yield f"run again with a whole GPU, because they ran out of memory in their share: {jobs['requeued']} jobs"
    if jobs.get("error"):
        yield f"rewritten jobs cannot be checked: {jobs['error']}"
    yield from jobs.get("stuck", ())
    yield from jobs.get("not_requeued", ())
    if usage.get("recorded"):
        yield f"usage of ended jobs kept: {usage['recorded']}"
    yield from usage.get("excesses", ())
    if usage.get("error"):
        yield f"usage of ended jobs cannot be collected: {usage['error']}"


def cluster_lines(
    status: Table, manager: str, title: str, more_words: Callable[[Table], str] = lambda _: ""
) -> Iterator[str]:
    """Yield what is known of the cluster of one workload manager.

    Args:
        status: The daemon's answer.
        manager: The manager's name.
        title: The same for people.
        more_words: What to say of a pool beside its GPUs, from its comma on.
    """
    cluster, trouble = status.get("clusters", {}).get(manager), status.get("troubles", {}).get(manager)
    if trouble:
        yield f"{title}: {trouble}"
    if cluster is None:
        return

    yield f"{title} {cluster['version']}, seen {cluster['age_s']} s ago:"
    for pool in cluster["pools"]:
        # A pool without a number of units is not divided by the manager.
        share = (
            f"{shards} shards a GPU, which limit nothing" if (shards := pool.get("shards_per_gpu")) else "not shared"
        )
        if pool["mps_per_gpu"]:
            why = f" ({pool['why_no_wall']})" if pool.get("why_no_wall") else ""
            share = f"shared in {pool['mps_per_gpu']} units, memory limited by {pool.get('limited_by')}{why}"
        free = f"{pool['free_gpu_count']} of {pool['gpu_count']} free"
        yield f"  {pool['site_type']} ({pool['gpu'] or 'not in the catalogue'}): {free}, {share}{more_words(pool)}"
    yield from (f"  note: {note}" for note in cluster["notes"])
    yield from (f"  not shared: {why}" for why in unshared_reasons(cluster.get("unshared", {})))


def describe_limits(pools: Iterable[GpuPool]) -> Iterator[str]:
    """Yield what limits the memory of shares, and on which of *pools*: ``cap on a100, v100: no cgroup v2``."""
    types = grouped(((pool.limited_by, pool.why_no_wall), pool.site_type) for pool in pools if pool.mps_per_gpu)
    for (limited_by, why), names in types.items():
        yield f"{limited_by} on {', '.join(names)}" + (f": {why}" if why else "")


def unshared_reasons(unshared: Mapping[str, str]) -> Iterator[str]:
    """Yield each different reason in `Cluster.unshared` once, and for how many places; of many only the first."""
    reasons = Counter(unshared.values())
    for why, count in [*reasons.items()][:_MOST_REASONS]:
        yield f"{why} ({count} places)" if count > 1 else why
    if len(reasons) > _MOST_REASONS:
        yield f"{len(reasons) - _MOST_REASONS} more reasons (--json has all)"
