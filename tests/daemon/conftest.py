"""A real gpusaged as a process of its own, with a plugin that stands for a cluster."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpusage.graphs.card.text import encode
from gpusage.service import client
from gpusage.service.recorder import BATCH_DELAY_S
from gpusage.store.opening import open_store
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import DecisionRecord, ModelGraph, Node
from waiting import LIMIT_S

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A real gpusaged has its real limits, of milliseconds: a test that fails is tried once more."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=1))


CONFIGURATION = """
mode = "{mode}"
kill_switch = "{folder}/off"
[daemon]
socket = "{folder}/s.sock"
refresh_s = 0.2
stale_after_s = {stale_after_s}
[store]
url = "sqlite:///{folder}/store/d.db"
[slurm]
limit_ms = {limit_ms}
"""


@dataclass
class Daemon:
    """One gpusaged in one folder."""

    folder: Path
    process: subprocess.Popen[str] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def card(name: str = "tiny") -> str:
        """Return the card of a one-node model called *name*."""
        node = Node(op_type="Gemm", inputs=((-1, 8),), outputs=((-1, 4),), parameters=((8, 4),))
        graph = ModelGraph(
            name=name, source=name, nodes=(node,), producers=((-1,),), inputs=(("x", (-1, 8)),), parameter_count=32
        )
        return encode(graph)

    @staticmethod
    def question(text: str | None = None, **fields: str) -> dict[str, Any]:
        """Return what the Lua side asks for `sbatch --gres=gpu:1 --comment=model=tiny.onnx,batch=8`."""
        usual = {
            "user_id": "1000",
            "comment": "model=tiny.onnx,batch=8",
            "card": Daemon.card() if text is None else text,
            "tres_per_node": "gres/gpu:1",
            "min_nodes": "1",
            "num_tasks": "1",
            "script": "1",
            "het": "0",
        }
        return {"v": 1, "manager": "slurm", "fields": usual | fields}

    @property
    def socket(self) -> Path:
        """Return where it listens."""
        return self.folder / "s.sock"

    @property
    def store(self) -> Path:
        """Return its store's file."""
        return self.folder / "store" / "d.db"

    def configure(self, mode: str = "enforce", limit_ms: float = 1000, stale_after_s: float = 60) -> None:
        """Write the configuration; the limit is wide, because this machine may be busy."""
        text = CONFIGURATION.format(folder=self.folder, mode=mode, limit_ms=limit_ms, stale_after_s=stale_after_s)
        (self.folder / "new.toml").write_text(text)
        (self.folder / "new.toml").replace(self.folder / "c.toml")

    def learn_every(self, refresh_s: float, *, enabled: bool = True, history: str = "off") -> None:
        """Add to the configuration how often the store is learned from, and what is done by history."""
        with (self.folder / "c.toml").open("a") as file:
            file.write(f"[learning]\nenabled = {str(enabled).lower()}\nrefresh_s = {refresh_s}\n")
            file.write(f'history = "{history}"\nhistory_file = "{self.folder}/history.json"\n')

    def behave(self, **behaviour: object) -> None:
        """Say what the cluster does from now on."""
        (self.folder / "new.json").write_text(json.dumps(behaviour))
        (self.folder / "new.json").replace(self.folder / "cluster.json")

    def launch(self) -> None:
        """Start the process."""
        command = [sys.executable, "-m", "gpusage.service.daemon", "--config", str(self.folder / "c.toml")]
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(command, stderr=log, env={**os.environ, **self.environment}, text=True)

    def start(self) -> None:
        """Start the process, and wait until it has seen the cluster."""
        self.launch()
        self.wait(lambda: self.status()["clusters"] or self.status()["troubles"])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)

    def ask(self, message: dict[str, Any] | None = None, timeout_s: float = LIMIT_S) -> dict[str, Any]:
        """Ask, as the Lua side does."""
        return client.ask(self.socket, self.question() if message is None else message, timeout_s)

    def status(self) -> dict[str, Any]:
        """Return how it fares."""
        return client.status(self.socket, LIMIT_S)

    def raw(self, sent: bytes, *, shut: bool = False, looking: bool = False) -> bytes:
        """Send bytes, and return everything up to the first newline or the end."""
        with self.connected(looking=looking) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(sent)
            if shut:
                connection.shutdown(socket.SHUT_WR)
            received = b""
            with suppress(ConnectionResetError):
                while b"\n" not in received and (chunk := connection.recv(65536)):
                    received += chunk
            return received

    def all(self, sent: bytes, *, looking: bool = False) -> bytes:
        """Send bytes and nothing more, and return everything up to the end."""
        received = b""
        with self.connected(looking=looking) as connection, suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(65536):
                received += chunk
        return received

    def connected(self, *, looking: bool = False) -> socket.socket:
        """Return a connection of one who asks, or of one who only looks."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(LIMIT_S)
        connection.connect(str(client.status_path(self.socket) if looking else self.socket))
        return connection

    def records(self) -> tuple[DecisionRecord, ...]:
        """Return what is in the store, newest first, once nothing waits to be written.

        An answer does not wait for its record, and a status may be a second old.
        """
        if self.process is not None and self.process.poll() is None:
            time.sleep(2 * BATCH_DELAY_S)
            self.wait(lambda: self.status()["records"]["waiting"] == 0)
        with closing(open_store(f"sqlite:///{self.store}")) as store:
            return store.latest(100)

    def highest_memory_bytes(self) -> int:
        """Return the most memory that it ever held."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))

    def log(self) -> str:
        """Return what it logged."""
        return (self.folder / "log").read_text()

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until *condition* holds."""
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            with suppress(RequestError):
                if condition():
                    return
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline_s, self.log()
            time.sleep(0.02)


@contextmanager
def made_daemon() -> Iterator[Daemon]:
    """Give a daemon that is configured and not started; its folder's name is short, as a socket's must be."""
    folder = Path(tempfile.mkdtemp(prefix="gpusaged-"))
    plugins = folder / "plugins"
    metadata = plugins / "site_plugin-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: site-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[gpusage]\nsite = site_plugin\n")
    shutil.copy(Path(__file__).parent / "site_plugin.py", plugins)
    daemon = Daemon(folder)
    daemon.environment = {"PYTHONPATH": str(plugins), "GPUSAGE_TEST_CLUSTER": str(folder / "cluster.json")}
    daemon.configure()
    daemon.behave()
    try:
        yield daemon
    finally:
        if daemon.process is not None:
            daemon.process.kill()
            daemon.process.wait()
        shutil.rmtree(folder)


@pytest.fixture
def idle() -> Iterator[Daemon]:
    """Yield a daemon that is configured and not started."""
    with made_daemon() as daemon:
        yield daemon


@pytest.fixture
def second() -> Iterator[Daemon]:
    """Yield another daemon that is configured and not started."""
    with made_daemon() as daemon:
        yield daemon


@pytest.fixture
def daemon(idle: Daemon) -> Daemon:
    """Return a daemon that has seen its cluster."""
    idle.start()
    return idle
