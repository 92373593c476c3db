"""The ResourceManager as gpusaged and `gpusage decisions` read it: the cluster, applications, and their usage.

YARN keeps no text for us, but ten tags: of `gpusage yarn submit` the number of the decision's record, the share and the
GPU types; of other clients' applications for which gpusaged was asked, the number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from socket import gethostname
from urllib.parse import quote, urlsplit

from gpusage.store.annotation import AnnotationCode, JobAnnotation
from gpusage_hooks.managers import Context
from gpusage_hooks.types import AnnotatedJob, Cluster, JobState, PastJob, Usage
from gpusage_yarn import past_jobs
from gpusage_yarn.cluster.documents import Document, as_list
from gpusage_yarn.cluster.jmx import NODES_LIMIT_S, query_nodes
from gpusage_yarn.cluster.resource_manager import RefusedError, ResourceManager
from gpusage_yarn.cluster.snapshot import build_cluster, parse_node, read_snapshot
from gpusage_yarn.cluster.tags import find_decision_number, parse_plan_tags
from gpusage_yarn.settings import MANAGER, YarnSettings
from gpusage_yarn.share_plan import APPLICATION_ID, TYPE, WHOLE_GPU
from gpusage_yarn.submission.monitoring import ENDED
from gpusage_yarn.submission.request import WHOLE, describe_plan
from gpusage_yarn.usage import collection

_NOT_KNOWN = 404
_HERE = ("localhost", "127.", "0.0.0.0", "::")  # noqa: S104 - nothing listens here
"""How addresses begin that mean whoever asks."""


def observe_cluster(addresses: tuple[str, ...], context: Context) -> Cluster:
    """Ask the active ResourceManager of *addresses* for its nodes.

    Raises:
        UnreachableError: It does not answer.
        RequestError: It refuses.
    """
    manager = ResourceManager(addresses, patience_s=0)
    snapshot = read_snapshot(partial(manager.request_once, "GET"), context.settings_of(YarnSettings))
    # Ports may change, and which one is active does; each host of a pair may name itself first.
    hosts = [urlsplit(address).hostname or "" for address in addresses]
    name = min(gethostname() if host.startswith(_HERE) else host for host in hosts)
    name = manager.settings("yarn.resourcemanager.cluster-id") or name
    return replace(build_cluster(snapshot, context.catalogue), name=name)


def find_jobs(addresses: tuple[str, ...], job_id: str, user: str) -> tuple[AnnotatedJob, ...] | None:
    """Ask the active ResourceManager of *addresses* for applications; ``None`` where *job_id* is of another form.

    Raises:
        UnreachableError: It does not answer.
        RequestError: It refuses.
    """
    if job_id and not APPLICATION_ID.fullmatch(job_id):
        return None
    return read_jobs(partial(ResourceManager(addresses).request_once, "GET"), job_id, user)


def collect_usage(addresses: tuple[str, ...], context: Context) -> tuple[Usage, ...]:
    """Query the usage reports of all nodes with shares, and their applications at *addresses*.

    Raises:
        UnreachableError: It does not answer.
        RequestError: It refuses.
    """
    manager = ResourceManager(addresses)
    get = partial(manager.request_once, "GET")
    share = context.settings_of(YarnSettings).share_resource
    nodes = [parse_node(node, share) for node in as_list(get("nodes"), "nodes", "node")]

    # Nodes without shares have no sampler.
    sharing = [node for node in nodes if node.usable and node.total.share]
    reports = query_nodes(sharing, manager.address.partition(":")[0], NODES_LIMIT_S)
    return collection.collect_usage(get, [report.usage_report for report in reports.values()], context.catalogue)


def read_accounting(addresses: tuple[str, ...], since_s: float, until_s: float, context: Context) -> tuple[Usage, ...]:
    """Ask the active ResourceManager of *addresses* for the applications with GPUs that ended in that time.

    Raises:
        UnreachableError: It does not answer.
        RequestError: It refuses.
    """
    document = ResourceManager(addresses).request_once("GET", collection.accounting_path(since_s, until_s))
    share = context.settings_of(YarnSettings).share_resource
    return tuple(collection.parse_accounting(document, share, context.catalogue))


def collect_past_jobs(addresses: tuple[str, ...], since_s: float, context: Context) -> tuple[PastJob, ...]:
    """Ask the active ResourceManager of *addresses* for applications that were submitted since *since_s* and ended.

    Raises:
        UnreachableError: It does not answer.
        RequestError: It refuses, or answers what cannot be understood.
    """
    manager = ResourceManager(addresses)

    # An application's requests are the longest part of its document, and of no use here.
    query = f"states={','.join(ENDED)}&startedTimeBegin={int(1000 * since_s)}&deSelects=resourceRequests"
    document = manager.request_once("GET", f"apps?{query}")
    return tuple(past_jobs.past_jobs(document, manager.address, context.settings_of(YarnSettings).share_resource))


def read_jobs(get: Callable[[str], Document], job_id: str, user: str) -> tuple[AnnotatedJob, ...]:
    """Return the applications with this id, or of this user, else all that the ResourceManager remembers.

    Args:
        get: Asks for a path below ``/ws/v1/cluster``.
        job_id: An application's id, or empty.
        user: A login name, or empty.

    Raises:
        GpuUsageError: The ResourceManager does not answer, or refuses.
    """
    if not job_id:
        whose = f"user={quote(user)}&" if user else ""
        return tuple(_annotated_jobs(get(f"apps?{whose}deSelects=resourceRequests")))

    try:
        return tuple(_annotated_jobs({"apps": {"app": [get(f"apps/{job_id}")["app"]]}}))
    except RefusedError as error:
        if error.status != _NOT_KNOWN:
            raise
        return ()


def _annotated_jobs(document: Document) -> Iterator[AnnotatedJob]:
    for application in as_list(document, "apps", "app"):
        # An application of ours of which the master alone runs is none that runs.
        masters = 1 if application.get("applicationType") == TYPE else 0
        state: JobState = "waiting"
        if application.get("state") in ENDED:
            state = "ended"
        elif int(application.get("runningContainers") or 0) > masters:
            state = "running"

        # Tags that name no decision make no mark.
        tags, mark = str(application.get("applicationTags") or ""), ""
        number = find_decision_number(tags)
        if number:
            share, labels = parse_plan_tags(tags)
            after = describe_plan(share, labels) if share and labels else WHOLE
            code: AnnotationCode = "KEEP" if share == WHOLE_GPU else "REWRITE"
            mark = str(JobAnnotation(number=number, code=code, mode="enforce", before=WHOLE, after=after, reasons=""))

        identity, user = str(application["id"]), str(application.get("user") or "")
        yield AnnotatedJob(job_id=identity, manager=MANAGER, user=user, state=state, mark=mark)
