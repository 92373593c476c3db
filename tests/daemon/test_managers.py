"""What gpusaged does for each workload manager that a plugin describes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.daemon.conftest import Daemon


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server that knows nothing, and the paths that it was asked for."""
    requests: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base's name
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()


def test_a_managers_settings_are_those_of_the_file_that_config_names(idle: Daemon) -> None:
    """They were those of the usual file, which this host does not have."""
    with listening() as (address, request):
        with (idle.folder / "c.toml").open("a") as file:
            file.write(f'[yarn]\nrm_urls = ["{address}"]\n')
        idle.start()
        idle.wait(lambda: "yarn" in idle.status()["troubles"])
        assert request
        assert all(path.startswith("/ws/v1/cluster") for path in request)
