"""What gpusage's YARN adapter answers when the core asks; nothing slow is imported before it is needed."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpusage_hooks import hookimpl
from gpusage_hooks.managers import Context, Manager
from gpusage_hooks.types import AnnotatedJob, Cluster, Usage
from gpusage_yarn.cluster.configuration import find_addresses
from gpusage_yarn.settings import MANAGER, YARN, YarnSettings
from gpusage_yarn.submission.request import parse_submission, render_decision

__all__ = [
    "add_commands",
    "collect_usage",
    "describe_manager",
    "find_jobs",
    "observe_cluster",
    "parse_submission",
    "render_decision",
]


@hookimpl(trylast=True)
def describe_manager() -> Manager:
    """Return YARN."""
    return YARN


@hookimpl(trylast=True)
def observe_cluster(manager: str, context: Context) -> Cluster | None:
    """Ask the ResourceManager for its nodes; ``None`` where this host knows of none.

    Raises:
        UnreachableError: It does not answer.
        RequestError: Its address cannot be read, or it refuses.
    """
    if manager != MANAGER:
        return None
    addresses = find_addresses(context.settings_of(YarnSettings))
    if not addresses:
        return None
    from gpusage_yarn import observation as observing  # the base install has no requests, which it imports

    return observing.observe_cluster(addresses, context)


@hookimpl(trylast=True)
def find_jobs(manager: str, job_id: str, user: str, context: Context) -> Sequence[AnnotatedJob] | None:
    """Find applications, those too that ended and that the ResourceManager remembers.

    Raises:
        UnreachableError: It does not answer.
        RequestError: It refuses.
    """
    if manager != MANAGER or (job_id and not job_id.startswith("application_")):
        return None
    addresses = find_addresses(context.settings_of(YarnSettings))
    if not addresses:
        return None
    from gpusage_yarn import observation as observing  # the base install has no requests, which it imports

    return observing.find_jobs(addresses, job_id, user)


@hookimpl(trylast=True)
def collect_usage(manager: str, context: Context) -> Sequence[Usage] | None:
    """Ask nodes and the ResourceManager what applications that ended really did.

    Raises:
        UnreachableError: It does not answer.
        RequestError: It refuses.
    """
    addresses = find_addresses(context.settings_of(YarnSettings)) if manager == MANAGER else ()
    if not addresses:
        return None
    from gpusage_yarn import observation as observing

    return observing.collect_usage(addresses, context)


@hookimpl(trylast=True)
def add_commands() -> Sequence[click.Command]:
    """Return `gpusage yarn`."""
    from gpusage_yarn.commands import yarn  # gpusaged has no commands

    return [yarn]
