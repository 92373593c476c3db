"""What gpusage's YARN adapter answers when the core asks; nothing slow is imported before it is needed."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpusage_hooks import hookimpl
from gpusage_hooks.managers import Context, Manager
from gpusage_hooks.types import Cluster
from gpusage_yarn.render import render_decision
from gpusage_yarn.request import MANAGER, parse_submission
from gpusage_yarn.settings import YARN, YarnSettings

__all__ = ["add_commands", "describe_manager", "observe_cluster", "parse_submission", "render_decision"]


@hookimpl(trylast=True)
def describe_manager() -> Manager:
    """Return YARN."""
    return YARN


@hookimpl(trylast=True)
def observe_cluster(manager: str, context: Context) -> Cluster | None:
    """Ask the ResourceManager for its nodes; ``None`` where this host knows of none.

    Raises:
        SilentError: It does not answer.
        RequestError: Its address cannot be read, or it refuses.
    """
    if manager != MANAGER:
        return None
    from gpusage_yarn.address import find_addresses  # noqa: PLC0415 - the daemon and the admin's commands need it

    settings = context.settings_of(YarnSettings)
    addresses = find_addresses(settings)
    if not addresses:
        return None
    from gpusage_yarn.cluster import cluster_of, read_view  # noqa: PLC0415 - as above
    from gpusage_yarn.rest import ResourceManager  # noqa: PLC0415 - requests is slow to import

    manager_of = ResourceManager(addresses)
    view = read_view(lambda path: manager_of.look("GET", path), settings.share_resource)
    return cluster_of(view, context.catalogue)


@hookimpl(trylast=True)
def add_commands() -> Sequence[click.Command]:
    """Return `gpusage yarn`."""
    from gpusage_yarn.commands import yarn  # noqa: PLC0415 - only the command line needs it

    return [yarn]
