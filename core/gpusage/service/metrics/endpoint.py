"""The HTTP endpoint that Prometheus scrapes: a few requests at a time, one page a second.

Invariants:

1. It shares only the interpreter with what answers jobs: it reads counts, and makes the page at most once in `AGE_S`.
2. Whatever goes wrong with it, gpusaged goes on without it.
3. A request ends after `LIMIT_S`, however slowly it comes. Of more than `MAXIMUM_REQUESTS`, the oldest ends.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest

from gpusage.service.metrics.families import MetricsCollector
from gpusage.service.metrics.sources import MetricSources

AGE_S = 1.0
"""Of a page: a newer one is not made."""
PAUSE_S = 0.005
"""After each request, so that a flood leaves the interpreter to the answers."""
LIMIT_S = 2.0
"""For one request, from its first byte to its last."""
MAXIMUM_REQUESTS = 16
Address = tuple[str, int]
Request = socket.socket | tuple[bytes, socket.socket]


class Endpoint:
    """Serves the page at *address* until it is closed.

    Raises:
        OSError: Nobody can listen there.
    """

    def __init__(self, address: Address, sources: MetricSources) -> None:
        registry = CollectorRegistry()
        registry.register(MetricsCollector(sources))
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
            if len(self._requests) > MAXIMUM_REQUESTS:
                _close(next(iter(self._requests.values())))
        super().process_request(request, client_address)
        time.sleep(PAUSE_S)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer until the limit."""
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
