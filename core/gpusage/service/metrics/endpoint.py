"""The HTTP endpoint that Prometheus scrapes: one thread, one request at a time, one page a second.

Invariants:

1. It shares nothing with those who answer jobs but the interpreter: it reads counts, and is slow to whoever asks often.
2. Whatever goes wrong with it, gpusaged goes on without it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest

from gpusage.service.metrics.families import Families
from gpusage.service.metrics.sources import Sources

AGE_S = 1.0
PAUSE_S = 0.005
LIMIT_S = 2.0
"""For one request: who is slower is sent away."""
Address = tuple[str, int]
Request = socket.socket | tuple[bytes, socket.socket]


class Endpoint:
    """Serves the page at *address* until it is closed.

    Raises:
        OSError: Nobody can listen there.
    """

    def __init__(self, address: Address, sources: Sources) -> None:
        registry = CollectorRegistry()
        registry.register(Families(sources))
        ProcessCollector(registry=registry)
        page = _remembered(lambda: generate_latest(registry))
        kind = _SixServer if ":" in address[0] else _Server
        self._server = kind(address, type("Visit", (_Visit,), {"page": staticmethod(page)}))
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    @property
    def port(self) -> int:
        """Return the port, of the kernel's choice where 0 was asked for."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(HTTPServer):
    """Takes one request at a time, and a pause after each."""

    request_queue_size = 8

    def process_request(self, request: Request, client_address: object) -> None:
        """Answer, then rest."""
        super().process_request(request, client_address)
        time.sleep(PAUSE_S)

    def server_bind(self) -> None:
        """Bind, without asking the network for this host's name."""
        super(HTTPServer, self).server_bind()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Request, client_address: object) -> None:
        """Say nothing of a visitor who left."""


class _SixServer(_Server):
    address_family = socket.AF_INET6


class _Visit(BaseHTTPRequestHandler):
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
        """Log nothing: visitors come every few seconds."""


def _remembered(make: Callable[[], bytes]) -> Callable[[], bytes]:
    """Return *make*, called at most once in `AGE_S`."""
    made_s, content = 0.0, b""

    def remembered() -> bytes:
        nonlocal made_s, content
        now_s = time.monotonic()
        if not content or now_s - made_s >= AGE_S:
            made_s, content = now_s, make()
        return content

    return remembered
