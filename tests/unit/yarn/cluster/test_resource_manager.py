"""Submitting over REST where ResourceManagers come, go and stand by.

What answers here is a few lines that keep the ResourceManager's promises as tried on a real one: an application is
known by its id, a standby redirects, and one that is starting knows nothing. `tests/yarn/test_submit.py` has the real.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_yarn.cluster import resource_manager as rest
from gpusage_yarn.cluster.resource_manager import RefusedError, ResourceManager, UnreachableError

IDENTITY = "application_1_0001"


class Manager(ThreadingHTTPServer):
    """One ResourceManager, with faults to order.

    Attributes:
        cut: How many answers to submissions are lost after the application was taken.
        lost: How many submissions are lost before.
        forgets: Whether it forgets the first application before that is in its store.
        unheard: How many questions are cut off without an answer.
        blind: How many questions it answers before its store is read.
        active: Where a standby points to.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.written: Counter[str] = Counter()
        self.store: Counter[str] = Counter()
        self.cut = self.lost = self.unheard = self.blind = 0
        self.forgets = False
        self.active = ""
        self.refusal = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Say nothing of connections that are cut on purpose."""


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Manager

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Give an id, or take an application."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.redirected():
            return
        if "new-application" in self.path:
            self.send_document({"application-id": IDENTITY})
        elif self.server.refusal:
            self.send_document({"RemoteException": {"message": "no queue\nof this name."}}, self.server.refusal)
        elif self.server.lost:
            self.server.lost -= 1
            self.connection.close()
        else:
            assert not self.server.blind, "an application was sent to one that is reading its store back"
            self.server.written[json.loads(body)["application-id"]] += 1
            if self.server.cut:
                self.server.cut -= 1
                self.connection.close()
            else:
                self.send_document({}, 202)

    def do_GET(self) -> None:
        """Tell what is known of itself, or of the application."""
        if self.redirected():
            return
        server = self.server
        if server.unheard:
            server.unheard -= 1
            self.connection.close()
        elif "/odd" in self.path:
            self.send_document(["of", "anything"])
        elif "/conf" in self.path:
            self.send_document({"property": {"value": "v"}} if "name=known" in self.path else {})
        elif "/info" in self.path:
            self.send_document({"clusterInfo": {"haState": "INITIALIZING" if server.blind else "ACTIVE"}})
            server.blind = max(server.blind - 1, 0)
        elif server.blind or IDENTITY not in server.written:
            self.send_document({"RemoteException": {"message": "app not found"}}, 404)
        elif server.forgets:
            server.forgets = False
            server.written.clear()
            self.send_document({"app": {"state": "NEW_SAVING"}})
        else:
            self.send_document({"app": {"state": "ACCEPTED"}})

    def redirected(self) -> bool:
        """Point to the active one by another name, where this one stands by; of itself it tells all the same."""
        if not self.server.active:
            return False
        if "/info" in self.path:
            self.send_document({"clusterInfo": {"haState": "STANDBY"}})
            return True
        self.send_response(307)
        self.send_header("Location", self.server.active.replace("127.0.0.1", "localhost") + self.path)
        self.end_headers()
        self.wfile.write(b"This is standby RM.")
        return True

    def send_document(self, document: object, status: int = 200) -> None:
        """Send a document."""
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def start() -> Iterator[Callable[[], Manager]]:
    servers: list[Manager] = []

    def begin() -> Manager:
        server = Manager()
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return server

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def client(*servers: Manager, patience_s: float = 5.0) -> ResourceManager:
    return ResourceManager(tuple(server.url for server in servers), "alice", patience_s)


def submit(manager: ResourceManager) -> str:
    return manager.submit(lambda identity: {"application-id": identity})


def test_an_application_is_submitted_once(start: Callable[[], Manager]) -> None:
    server = start()
    assert submit(client(server)) == IDENTITY
    assert server.written == {IDENTITY: 1}


@pytest.mark.parametrize("fault", ["cut", "lost"])
def test_a_connection_that_ends_in_the_middle_costs_nothing(start: Callable[[], Manager], fault: str) -> None:
    server = start()
    setattr(server, fault, 1)
    submit(client(server))
    assert server.written == {IDENTITY: 1}


def test_one_that_died_before_it_stored_the_application_gets_it_again(start: Callable[[], Manager]) -> None:
    server = start()
    server.forgets = True
    submit(client(server))
    assert server.written == {IDENTITY: 1}


def test_one_that_is_reading_its_store_back_is_waited_for(start: Callable[[], Manager]) -> None:
    server = start()
    server.blind = 3
    submit(client(server))
    assert server.written == {IDENTITY: 1}


def test_a_standby_s_redirect_is_followed(start: Callable[[], Manager]) -> None:
    standby, active = start(), start()
    standby.active = active.url
    manager = client(standby)
    submit(manager)
    assert active.written == {IDENTITY: 1}
    assert manager.address == active.url.replace("127.0.0.1", "localhost")


def test_the_second_address_is_asked_where_the_first_is_dead(start: Callable[[], Manager]) -> None:
    dead, alive = start(), start()
    dead.shutdown()
    dead.server_close()
    submit(client(dead, alive))
    assert alive.written == {IDENTITY: 1}


def test_two_standbys_that_point_at_each_other_are_silent(start: Callable[[], Manager]) -> None:
    one, two = start(), start()
    one.active, two.active = two.url, one.url
    with pytest.raises(UnreachableError, match="standby"):
        client(one, two, patience_s=0).get("nodes")


def test_one_that_has_never_answered_is_not_waited_for_long(start: Callable[[], Manager]) -> None:
    server = start()
    manager = client(server, patience_s=90)
    server.shutdown()
    server.server_close()
    began_s = time.monotonic()
    with pytest.raises(UnreachableError, match="Connection refused"):
        manager.get("info")
    assert time.monotonic() - began_s < 80


def test_what_answers_with_no_object_is_no_resource_manager(start: Callable[[], Manager]) -> None:
    with pytest.raises(UnreachableError, match="status 200, no document: not active"):
        client(start()).request_once("GET", "odd")


def test_nobody_at_all_is_one_sentence(start: Callable[[], Manager]) -> None:
    dead = start()
    dead.shutdown()
    dead.server_close()
    with pytest.raises(
        UnreachableError, match=r"^ResourceManager must answer; got: http://.*: Connection refused\. Check"
    ):
        client(dead, patience_s=0).get("info")


def test_a_refusal_is_told_in_the_manager_s_own_words(start: Callable[[], Manager]) -> None:
    server = start()
    server.refusal = 400
    with pytest.raises(RequestError, match=r"got status 400: no queue of this name\. "):
        submit(client(server))


def test_what_must_log_in_first_is_told_how(start: Callable[[], Manager]) -> None:
    server = start()
    server.refusal = 401
    with pytest.raises(RefusedError, match="kinit"):
        submit(client(server))


def test_a_setting_is_told_or_not(start: Callable[[], Manager]) -> None:
    manager = client(start())
    assert manager.settings("known") == "v"
    assert manager.settings("unknown") is None


def test_a_silent_manager_is_not_one_without_the_setting(start: Callable[[], Manager]) -> None:
    dead = start()
    dead.shutdown()
    dead.server_close()
    with pytest.raises(UnreachableError):
        client(dead, patience_s=0).settings("known")


def test_a_question_that_is_cut_off_is_asked_once_more(start: Callable[[], Manager]) -> None:
    server = start()
    server.unheard = 1
    assert client(server, patience_s=0).settings("known") == "v"
    server.unheard = 2
    with pytest.raises(UnreachableError, match="Connection aborted"):
        client(server, patience_s=0).settings("known")


def test_one_of_two_that_hangs_is_passed_over_at_once(
    start: Callable[[], Manager], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a connection and says nothing, as one that is stopped does; each question waited a minute for it."""
    monkeypatch.setattr(rest, "_FIRST_TIMEOUT_S", (1.0, 0.05))
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        active = start()
        manager = ResourceManager((f"http://127.0.0.1:{hanging.getsockname()[1]}", active.url))
        began_s = time.monotonic()
        assert manager.get("info") == {"clusterInfo": {"haState": "ACTIVE"}}
        assert (manager.address, time.monotonic() - began_s < 10) == (active.url, True)
