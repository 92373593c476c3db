"""The hooks of gpusage's YARN adapter; nothing slow is imported before it is needed."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpusage_hooks import hookimpl
from gpusage_hooks.managers import Context, Manager
from gpusage_hooks.types import (
    AnnotatedJob,
    Cluster,
    Decision,
    DecisionRequest,
    Job,
    PastJob,
    RenderedDecision,
    Usage,
)
from gpusage_yarn.settings import MANAGER, YARN, YarnSettings


@hookimpl(trylast=True)
def describe_manager() -> Manager:
    """Return YARN."""
    return YARN


@hookimpl(trylast=True)
def parse_submission(submission: DecisionRequest, context: Context) -> Job | None:
    """Parse the fields of the placement rule, or of `gpusage yarn submit`.

    Raises:
        RequestError: The comment is addressed to us and malformed.
    """
    if submission.manager != MANAGER:
        return None
    from gpusage_yarn.submission import request  # what lists commands starts faster

    return request.parse_submission(submission, context.model_names)


@hookimpl(trylast=True)
def render_decision(job: Job, decision: Decision, cluster: Cluster, context: Context) -> RenderedDecision | None:
    """Put a decision into YARN's words."""
    if job.submission.manager != MANAGER:
        return None
    from gpusage_yarn.submission import request  # as above

    return request.render_decision(job, decision, cluster, context)


@hookimpl(trylast=True)
def observe_cluster(manager: str, context: Context) -> Cluster | None:
    """Ask the ResourceManager for its nodes; ``None`` where this host knows of none.

    Raises:
        UnreachableError: It does not answer.
        RequestError: Its address cannot be read, or it refuses.
    """
    if manager != MANAGER:
        return None
    addresses = _addresses(context)
    if not addresses:
        return None
    from gpusage_yarn import observation as observing  # the base install has no requests, which it imports

    return observing.observe_cluster(addresses, context)


@hookimpl(trylast=True)
def read_past_jobs(path: str) -> Sequence[PastJob] | None:
    """Read a ResourceManager's answer to a question for applications.

    Raises:
        RequestError: It is the ResourceManager's, and cannot be understood.
    """
    from gpusage_yarn import past_jobs  # as above

    return past_jobs.read_past_jobs(path)


@hookimpl(trylast=True)
def collect_past_jobs(manager: str, since_s: float, context: Context) -> Sequence[PastJob] | None:
    """Ask the ResourceManager for applications that ended; ``None`` where this host knows of none.

    Raises:
        UnreachableError: It does not answer.
        RequestError: It refuses.
    """
    addresses = _addresses(context) if manager == MANAGER else ()
    if not addresses:
        return None
    from gpusage_yarn import observation as observing  # the base install has no requests, which it imports

    return observing.collect_past_jobs(addresses, since_s, context)


@hookimpl(trylast=True)
def find_jobs(manager: str, job_id: str, user: str, context: Context) -> Sequence[AnnotatedJob] | None:
    """Find applications, also ended ones that the ResourceManager remembers.

    Raises:
        UnreachableError: It does not answer.
        RequestError: It refuses.
    """
    if manager != MANAGER or (job_id and not job_id.startswith("application_")):
        return None
    addresses = _addresses(context)
    if not addresses:
        return None
    from gpusage_yarn import observation as observing  # the base install has no requests, which it imports

    return observing.find_jobs(addresses, job_id, user)


@hookimpl(trylast=True)
def collect_usage(manager: str, context: Context) -> Sequence[Usage] | None:
    """Ask nodes and the ResourceManager for the usage of applications that ended.

    Raises:
        UnreachableError: It does not answer.
        RequestError: It refuses.
    """
    addresses = _addresses(context) if manager == MANAGER else ()
    if not addresses:
        return None
    from gpusage_yarn import observation as observing

    return observing.collect_usage(addresses, context)


@hookimpl(trylast=True)
def read_accounting(manager: str, since_s: float, until_s: float, context: Context) -> Sequence[Usage] | None:
    """Ask the ResourceManager for the applications with GPUs that it remembers; ``None`` where this host knows of none.

    Raises:
        UnreachableError: It does not answer.
        RequestError: It refuses.
    """
    addresses = _addresses(context) if manager == MANAGER else ()
    if not addresses:
        return None
    from gpusage_yarn import observation as observing

    return observing.read_accounting(addresses, since_s, until_s, context)


@hookimpl(trylast=True)
def add_commands() -> Sequence[click.Command]:
    """Return `gpusage yarn`."""
    from gpusage_yarn.commands import jar, yarn  # gpusaged has no commands
    from gpusage_yarn.jar import in_checkout

    if not in_checkout():  # there the jar is built first, by what gpusage_sandboxes adds to this group
        yarn.add_command(jar)
    return [yarn]


def _addresses(context: Context) -> tuple[str, ...]:
    """Return where a ResourceManager may be, as the site's settings or Hadoop's configuration say."""
    from gpusage_yarn.cluster.configuration import find_addresses  # as above

    return find_addresses(context.settings_of(YarnSettings))
