"""What NodeManagers say of themselves, asked within a limit."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from typing import ClassVar

import pytest

from gpusage_yarn.cluster.jmx import JmxReport, nodes_without_listener, parse_bean, query_nodes, sample_nodes
from gpusage_yarn.cluster.snapshot import ClusterSnapshot, ContainerSize, NodeState

BEAN = {
    "Classes": "GpuShareNodeListener",
    "Version": "1",
    "Free": "0=60,GPU-1=100",
    "Failures": 2,
    "Troubles": "mps: a\n",
}


class Handler(BaseHTTPRequestHandler):
    """Answers as a NodeManager with our classes does."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Tell the bean."""
        body = json.dumps({"beans": [BEAN]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def node(name: str, address: str = "", label: str = "a100", free: int = 100) -> NodeState:
    size = ContainerSize(share=100)
    return NodeState(name=name, label=label, usable=True, address=address, total=size, free=ContainerSize(share=free))


def test_a_bean_tells_what_is_free_of_each_gpu() -> None:
    reported = parse_bean("n", BEAN)
    assert (reported.binds, reported.free, reported.failures, reported.troubles) == (True, (60, 100), 2, ("mps: a",))


def test_an_older_jar_tells_less() -> None:
    reported = parse_bean("n", {"Classes": ["GpuShareNodeListener"], "Failures": 0})
    assert (reported.binds, reported.free, reported.troubles) == (True, None, ())
    assert parse_bean("n", {"Free": ""}).free == ()


def test_who_does_not_answer_in_time_is_left_out() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as silent:  # takes connections, and says nothing
            nodes = [node(str(number), f"127.0.0.1:{silent.server_port}") for number in range(40)]
            began_s = time.monotonic()
            reported = query_nodes([*nodes, node("good", f"127.0.0.1:{server.server_port}")], limit_s=4.0)
            assert time.monotonic() - began_s < 50
        server.shutdown()
    assert reported["good"].free == (60, 100)
    assert not any(daemon.binds for name, daemon in reported.items() if name != "good")


class Rogue(BaseHTTPRequestHandler):
    """Answers by what `answer` holds; what is asked of it by others' errand is in `errands`."""

    answer: tuple[int, dict[str, str], Iterable[bytes]] = (200, {}, ())
    errands: ClassVar[list[str]] = []

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer, until nobody listens any more."""
        if not self.path.startswith("/jmx"):
            self.errands.append(self.path)
        status, headers, body = self.answer
        self.send_response(status)
        for header in headers.items():
            self.send_header(*header)
        self.end_headers()
        with suppress(OSError):
            for part in body:
                self.wfile.write(part)
                time.sleep(0.001)


ROGUES: dict[str, tuple[int, dict[str, str], Iterable[bytes]]] = {
    "sends elsewhere": (302, {"Location": "/internal?do=shutdown"}, [b"{}"]),
    "sends elsewhere without end": (302, {"Location": "/internal"}, repeat(bytes(1 << 18))),
    "has no end": (200, {}, repeat(b" " * (1 << 18))),
    "unpacks to much": (200, {"Content-Encoding": "gzip"}, [gzip.compress(b" " * (1 << 26))]),
    "is deep": (200, {}, [b'{"beans":' + b"[" * 50_000]),
    "counts beyond all numbers": (200, {}, [b'{"beans":[{"Failures":1e999}]}']),
}


@pytest.mark.parametrize("answer", ROGUES.values(), ids=ROGUES.keys())
def test_whatever_a_rogue_node_answers_is_a_trouble_of_that_node(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, dict[str, str], Iterable[bytes]]
) -> None:
    """Nobody goes where it points, reads on without end, or ends with a traceback."""
    monkeypatch.setattr(Rogue, "answer", answer)
    monkeypatch.setattr(Rogue, "errands", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), Rogue) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        reported = query_nodes([node("rogue", f"127.0.0.1:{server.server_port}")], limit_s=5.0)
        server.shutdown()
    assert reported["rogue"].trouble
    assert Rogue.errands == []


def test_a_bean_tells_no_more_than_there_is_and_nothing_that_acts_on_a_terminal() -> None:
    reported = parse_bean("n", {"Free": "0=99999999999,1=-5", "Version": "\x1b[2J1", "Troubles": "a\x1b[31m\nb"})
    assert reported.free == (100, 0)
    assert "\x1b" not in reported.version + "".join(reported.troubles)


def test_of_each_label_some_nodes_are_asked_the_freest_first() -> None:
    nodes = [node(f"a{n}", free=n) for n in range(50)] + [node("v", label="v100", free=0)]
    snapshot = ClusterSnapshot(version="", nodes=tuple(nodes), labels=(), queues=(), resource_types={})
    chosen = [each.name for each in sample_nodes(snapshot, ("a100", "v100"), most=4)]
    assert chosen == ["a49", "v", "a48", "a47"]


def test_only_who_has_answered_is_said_to_bind_nothing() -> None:
    reported = {
        "a": JmxReport(name="a"),
        "b": JmxReport(name="b", trouble="ConnectTimeout"),
        "c": parse_bean("c", BEAN),
    }
    assert nodes_without_listener(reported) == ("a",)


def test_a_daemon_whose_jmx_may_not_be_read_says_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rogue, "answer", (403, {}, [b"<html>User dr.who is unauthorized</html>"]))
    with ThreadingHTTPServer(("127.0.0.1", 0), Rogue) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        reported = query_nodes([node("shy", f"127.0.0.1:{server.server_port}")], limit_s=5.0)
        server.shutdown()
    assert reported["shy"].trouble == "/jmx answers with status 403"
