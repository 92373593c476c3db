"""The HTTP endpoint that Prometheus scrapes, and its metric families: a few requests at a time, one page a second.

The unit and ``_total`` are last in each name, and no user's name is anywhere.

Invariants:

1. It shares only the interpreter with the answers to jobs: it reads counts, and makes the page at most once in
   `AGE_S`.
2. Whatever goes wrong with it, gpusaged goes on without it.
3. A request ends after `LIMIT_S`, however slowly it comes. Of more than `MAXIMUM_REQUESTS`, the oldest ends.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from itertools import accumulate
from socketserver import ThreadingMixIn
from typing import Any

from msgspec.structs import astuple
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from gpusage.service.job_monitor import JobMonitor
from gpusage.service.recorder import Recorder
from gpusage.service.request_handler import BOUNDS_S, Labels, RequestHandler
from gpusage.service.usage_collector import RunCounters
from gpusage_hooks.units import HOUR_S

AGE_S = 1.0
"""Of a page: a newer one is not made."""
PAUSE_S = 0.005
"""After each request, so that a flood leaves the interpreter to the answers."""
LIMIT_S = 2.0
"""For one request, from its first byte to its last."""
MAXIMUM_REQUESTS = 16
Counts = Mapping[Labels, float]
AMOUNTS = {
    "requested": "as their users requested them",
    "booked": "as granted, a share as its part",
    "used": "with a kernel running",
    "idle": "without a kernel running",
    "unseen": "for which it is unknown whether a kernel ran",
    "held": "that was kept from other jobs, of k on a GPU a k-th by each",
}
Address = tuple[str, int]
Request = socket.socket | tuple[bytes, socket.socket]


class Endpoint:
    """Serves the page at *address* until it is closed.

    Raises:
        OSError: Nobody can listen there.
    """

    def __init__(self, address: Address, collector: Collector) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        ProcessCollector(registry=registry)
        page = _cached(lambda: generate_latest(registry))
        kind = _Ipv6Server if ":" in address[0] else _Server
        self._server = kind(address, type("PageHandler", (_PageHandler,), {"page": staticmethod(page)}))
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    @property
    def port(self) -> int:
        """Return the port, the kernel's choice where the address has 0."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingMixIn, HTTPServer):
    """Accepts a request, then pauses; each one has its own thread, so that a slow client delays no other."""

    request_queue_size = 8
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any, **settings: Any) -> None:  # as HTTPServer has them
        self._requests: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        super().__init__(*arguments, **settings)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, then pause."""
        with self._lock:
            self._requests[id(request)] = request
            # A slow client that holds a thread makes room for a new one.
            if len(self._requests) > MAXIMUM_REQUESTS:
                _close(next(iter(self._requests.values())))
        super().process_request(request, client_address)
        time.sleep(PAUSE_S)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer until the limit."""
        # A socket's timeout begins anew with each byte.
        limit = threading.Timer(LIMIT_S, _close, (request,))
        limit.daemon = True
        limit.start()

        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            with self._lock:
                self._requests.pop(id(request), None)

    def server_bind(self) -> None:
        """Bind, without asking the network for this host's name."""
        super(HTTPServer, self).server_bind()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Request, client_address: object) -> None:
        """Log nothing of a client that left."""


class _Ipv6Server(_Server):
    address_family = socket.AF_INET6


class _PageHandler(BaseHTTPRequestHandler):
    """One request."""

    timeout = LIMIT_S
    page: Callable[[], bytes]

    def do_GET(self) -> None:
        """Answer with the page, or that there is none."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return

        content = self.page()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE_LATEST)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing: a scrape comes every few seconds."""


def _close(request: socket.socket) -> None:
    """Shut *request*'s connection down: the thread that reads or writes it sees that at once."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def _cached(make: Callable[[], bytes]) -> Callable[[], bytes]:
    """Return *make*, called at most once in `AGE_S`."""
    made_s, content, lock = 0.0, b"", threading.Lock()

    def cached() -> bytes:
        nonlocal made_s, content
        with lock:
            now_s = time.monotonic()
            if not content or now_s - made_s >= AGE_S:
                made_s, content = now_s, make()
            return content

    return cached


class MetricsCollector(Collector):
    """Collects the counts of gpusaged's parts, as they are at each scrape."""

    def __init__(
        self, request_handler: RequestHandler, recorder: Recorder, job_monitor: JobMonitor, runs: RunCounters
    ) -> None:
        self._request_handler = request_handler
        self._recorder = recorder
        self._job_monitor = job_monitor
        self._runs = runs

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        yield InfoMetricFamily("gpusage_build", "gpusage's version.", {"version": version("gpusage")})

        tally = self._request_handler.tally
        names = ("manager", "code", "mode")
        yield _labelled_counter("gpusage_decisions", "Decisions on jobs.", names, dict(tally.decisions))
        # Prometheus counts in each bucket what is in the lower ones, too.
        buckets = zip([*map(str, BOUNDS_S), "+Inf"], accumulate([*tally.duration_counts]), strict=True)
        what = "Time from an incoming question to its answer."
        durations = HistogramMetricFamily("gpusage_answer_duration_seconds", what)
        durations.add_metric([], [*buckets], tally.duration_sum_s)
        yield durations

        counts, missed = self._request_handler.counts, self._request_handler.missed
        by_reason: Counts = {(reason,): count for reason, count in missed.items()}
        what = "Jobs left unchanged, as clients report."
        yield _labelled_counter("gpusage_answers_missed", what, ("reason",), by_reason)

        records, jobs = self._recorder.counts, self._job_monitor.status()
        for name, what, count in (
            ("answers_overdue", "Answers without a decision, for lack of time.", counts.overdue),
            ("answers_failed", "Answers without a change because of an error in gpusage or a plugin.", counts.failed),
            ("records_written", "Decisions written to the store.", records.written),
            ("records_lost", "Decisions that could not be written.", records.lost),
            ("jobs_turned_back", "Rewritten jobs that got their own request back.", jobs["turned_back"]),
            ("jobs_requeued", "Jobs that ran out of their share's memory and run again.", jobs["requeued"]),
        ):
            yield CounterMetricFamily(f"gpusage_{name}", what, value=count)

        runs, hours = dict(self._runs.runs), dict(self._runs.hours)
        yield _labelled_counter("gpusage_runs_observed", "Runs that nodes reported.", ("manager", "outcome"), runs)
        promises: Counts = {(result,): self._runs.promises[result] for result in ("fulfilled", "broken", "unknown")}
        what = "Shares by whether their promise was fulfilled."
        yield _labelled_counter("gpusage_promises", what, ("result",), promises)
        idle, for_longer = self._runs.idle, ("longer_than_s",)
        jobs_by_limit: Counts = {(limit_s,): count for limit_s, count in idle.job_counts.items()}
        what = "Runs that did nothing for longer at a time."
        yield _labelled_counter("gpusage_runs_idle", what, for_longer, jobs_by_limit)
        idle_s: Counts = {(limit_s,): HOUR_S * idle_hours for limit_s, idle_hours in idle.hours.items()}
        what = "GPU time of these runs in the longest such time of each."
        yield _labelled_counter("gpusage_runs_idle_gpu_seconds", what, for_longer, idle_s)
        for position, (name, what) in enumerate(AMOUNTS.items()):
            seconds: Counts = {(gpu,): HOUR_S * astuple(amounts)[position] for gpu, amounts in hours.items()}
            yield _labelled_counter(f"gpusage_gpu_{name}_seconds", f"GPU time of runs {what}.", ("gpu",), seconds)


def _labelled_counter(name: str, help_text: str, labels: Labels, counts: Counts) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family
