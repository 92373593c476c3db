"""One PostgreSQL for all tests of the store."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from postgresql import Server


@pytest.fixture(scope="package")
def running() -> Iterator[Server]:
    """Return a server; its folder has a short name, as sockets need, that nobody may enter."""
    folder = Path(tempfile.mkdtemp(prefix="gpusage-pg-"))
    try:
        server = Server(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def server(running: Server) -> Server:
    """Return the server without a trace of us."""
    running.ask("DROP SCHEMA IF EXISTS gpusage CASCADE")
    return running
