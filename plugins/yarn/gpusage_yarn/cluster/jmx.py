"""The MBean of our classes in NodeManagers and the ResourceManager, read from their /jmx.

Invariants:

1. Asking never fails, and is over within its limit: who has not answered by then is not in the answer.
2. Threads that still wait for somebody keep nothing from ending.
3. What answers is not trusted: nobody is sent elsewhere, and of an answer so much is read that ours fits in.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import requests

from gpusage.boundary.printable_text import visible
from gpusage_yarn.cluster.configuration import CLASSES, LISTENERS
from gpusage_yarn.cluster.resource_manager import configured_session, describe_connection_error

if TYPE_CHECKING:
    from gpusage_yarn.cluster.snapshot import ClusterSnapshot, NodeState

MAX_NODES_PER_SUBMISSION = 16
"""So many nodes does a submission ask, no more, however large the cluster is."""
LIMIT_S = 1.0
"""How long a submission waits for them, all together."""
MAX_NODES = 100
"""So many do `doctor` and `status` ask: they are no load test."""
NODES_LIMIT_S = 15.0
_AT_ONCE = 16
_ANSWER_LIMIT_BYTES, _CHUNK_BYTES = 256 * 1024, 1024
_WHOLE_GPU = 100
_BEAN = "/jmx?qry=org.gpusage:type=Metrics"
_LISTENER = CLASSES[LISTENERS].rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class JmxReport:
    """The state of our classes in one daemon.

    Attributes:
        version: Our jar's; ``""`` where nothing of ours has started there.
        classes: Those that have.
        failures: How many exceptions of ours were kept from it.
        free: What is free of each of its GPUs, in hundredths; ``None`` if it does not report it.
        troubles: What does not work there, a sentence each.
        usage_report: What containers that ended there really did, as `gpusage.node.sampler.usage_reports` reads it.
        trouble: Why it said nothing.
    """

    name: str
    version: str = ""
    classes: frozenset[str] = frozenset()
    failures: int = 0
    free: tuple[int, ...] | None = None
    troubles: tuple[str, ...] = ()
    usage_report: str = ""
    trouble: str = ""

    @property
    def binds(self) -> bool:
        """Return whether containers are bound to GPUs there."""
        return _LISTENER in self.classes or CLASSES[LISTENERS] in self.classes


def query_nodes(
    nodes: Iterable[NodeState], scheme: str = "http", limit_s: float = LIMIT_S
) -> Mapping[str, JmxReport]:  # fmt: skip
    """Return the reports of the *nodes* that answer in time, by name."""
    reports: dict[str, JmxReport] = {}
    waiting = list(nodes)
    deadline_s = time.monotonic() + limit_s

    def work() -> None:
        while waiting and time.monotonic() < deadline_s:
            try:
                node = waiting.pop()
            except IndexError:  # another thread was faster
                return
            reports[node.name] = query_daemon(node.name, f"{scheme}://{node.address}", limit_s)

    # Daemons: a thread that still waits for a node keeps nothing from ending.
    threads = [threading.Thread(target=work, daemon=True) for _ in waiting[:_AT_ONCE]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline_s - time.monotonic(), 0))
    return dict(reports)


def query_daemon(name: str, url: str, limit_s: float = 5.0) -> JmxReport:
    """Return the report of the daemon at *url*."""
    try:
        beans = json.loads(_fetch_content(url + _BEAN, limit_s))["beans"]
        return parse_bean(name, beans[0]) if beans else JmxReport(name=name)
    except Exception as error:  # anyone may answer there, with anything
        return JmxReport(name=name, trouble=describe_connection_error(error))


def query_setting(url: str, name: str, limit_s: float = 2.0) -> str:
    """Return the setting *name* of the daemon at *url*; empty where it has none, or does not report it."""
    try:
        return str(json.loads(_fetch_content(f"{url}/conf?name={name}&format=json", limit_s))["property"]["value"])
    except Exception:  # anyone may answer there, with anything
        return ""


class _NoRedirectSession(requests.Session):
    """Goes nowhere else, wherever an answer points; a redirection's own body is not even read."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Find none."""


def _fetch_content(url: str, limit_s: float) -> bytes:
    """Return the answer at *url* itself.

    Raises:
        requests.RequestException: Nothing of use, or not in time.
    """
    until_s = time.monotonic() + limit_s
    content = b""
    with (
        configured_session(_NoRedirectSession()) as session,
        # A compressed answer could be longer than its bytes.
        session.get(url, timeout=limit_s, headers={"Accept-Encoding": "identity"}, stream=True) as answer,
    ):
        if answer.status_code != requests.codes.ok:
            message = f"/jmx answers with status {answer.status_code}"
            raise requests.RequestException(message)

        # requests' own limit is on each wait alone: who sends a byte a second would keep us for ever.
        for chunk in answer.raw.stream(_CHUNK_BYTES, decode_content=False):
            content += chunk
            if len(content) > _ANSWER_LIMIT_BYTES or time.monotonic() > until_s:
                message = f"more than {_ANSWER_LIMIT_BYTES} bytes, or later than {limit_s:g} s"
                raise requests.RequestException(message)
    return content


def parse_bean(name: str, bean: Mapping[str, Any]) -> JmxReport:
    """Return the report of the daemon *name* from its MBean; an older jar has fewer attributes."""
    classes, free = bean.get("Classes", ""), bean.get("Free")
    parts: tuple[int, ...] | None = None
    if free is not None:
        # ``0=60,1=100``, hundredths by GPU: no more than there is of one.
        hundredths = (int(part.rpartition("=")[2]) for part in free.split(",") if part)
        parts = tuple(max(min(part, _WHOLE_GPU), 0) for part in hundredths)

    return JmxReport(
        name=name,
        version=visible(str(bean.get("Version", ""))),
        classes=frozenset(classes.replace(",", " ").split() if isinstance(classes, str) else map(str, classes)),
        failures=int(bean.get("Failures") or 0),
        free=parts,
        usage_report=str(bean.get("Usage") or ""),
        troubles=tuple(visible(line) for line in str(bean.get("Troubles") or "").splitlines() if line.strip()),
    )


def sample_nodes(
    snapshot: ClusterSnapshot, labels: Iterable[str], most: int = MAX_NODES_PER_SUBMISSION
) -> tuple[NodeState, ...]:
    """Return nodes to ask: of each label in turn, the largest free shares first."""
    ranks: list[tuple[int, NodeState]] = []
    for label in labels:
        sharing = [node for node in snapshot.nodes_with_label(label) if node.usable and node.total.share]
        ranks += enumerate(sorted(sharing, key=lambda node: -node.free.share))
    return tuple(node for _, node in sorted(ranks, key=lambda ranked: ranked[0])[:most])


def with_free_gpus(snapshot: ClusterSnapshot, reports: Mapping[str, JmxReport]) -> ClusterSnapshot:
    """Return *snapshot* with the largest free part of a single GPU, for the nodes that report it."""
    # A node with an older jar reports sums alone, and keeps what they allow.
    largest = {name: max(daemon.free, default=0) for name, daemon in reports.items() if daemon.free is not None}
    return replace(snapshot, nodes=tuple(replace(node, largest=largest.get(node.name)) for node in snapshot.nodes))


def nodes_without_listener(reports: Mapping[str, JmxReport]) -> tuple[str, ...]:
    """Return the nodes that answered and whose listener does not run."""
    return tuple(sorted(name for name, daemon in reports.items() if not daemon.trouble and not daemon.binds))
