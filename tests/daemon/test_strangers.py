"""What users who may not ask get of a real gpusaged, and that they cost those who may ask next to nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpusage.service import servers
from gpusage.service.client import status_path
from gpusage.service.protocol import json_line

if TYPE_CHECKING:
    from tests.daemon.conftest import Daemon

KEEP_ANSWER = {"v": "1", "code": "KEEP", "message": ""}
PING = json_line({"v": 1, "op": "ping"})
ALIVE = {"v": "1", "code": "OK"}
NOBODY = 65534
QUESTIONS, LIMIT_S = 100, 0.25
"""The limit is wide, because this machine may be busy; without two sockets an answer took from 0.6 to more than 3 s."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")


def as_nobody(path: Path, *lines: bytes) -> list[str]:
    """Return what another user gets for each line, over a connection each; the error's name where he gets none."""
    path.parent.chmod(0o755)
    script = f"""
import os, socket
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
for line in {lines!r}:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect({str(path)!r})
            connection.sendall(line)
            print(connection.recv(1 << 20).decode().strip())
        except OSError as error:
            print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


def allow(daemon: Daemon, users: list[str]) -> None:
    """Name those who may ask."""
    text = (
        (daemon.folder / "c.toml").read_text().replace("[daemon]\n", f"[daemon]\nallowed_users = {json.dumps(users)}\n")
    )
    (daemon.folder / "new.toml").write_text(text)
    (daemon.folder / "new.toml").replace(daemon.folder / "c.toml")


@needs_root
def test_a_stranger_sees_the_status_and_the_kernel_keeps_him_from_asking(daemon: Daemon) -> None:
    """He is not even let into the queue of those who may ask."""
    assert as_nobody(daemon.socket, PING) == ["PermissionError"]
    looked, output = as_nobody(status_path(daemon.socket), json_line({"v": 1, "op": "status"}), PING)
    assert json.loads(looked)["mode"] == "enforce"
    assert json.loads(output) == ALIVE


@needs_root
def test_a_user_who_is_named_may_ask_and_only_as_long_as_he_is_named(idle: Daemon) -> None:
    """Also where gpusaged is another user's, as under systemd; a changed list needs no restart."""
    allow(idle, [str(NOBODY)])
    idle.start()
    output = json.dumps(ALIVE, separators=(",", ":"))
    assert as_nobody(idle.socket, PING) == [output]
    idle.configure()
    idle.wait(lambda: as_nobody(idle.socket, PING) == ["PermissionError"])
    allow(idle, [str(NOBODY)])
    idle.wait(lambda: as_nobody(idle.socket, PING) == [output])


@needs_root
def test_a_stranger_whom_the_file_system_lets_in_is_sent_away(daemon: Daemon) -> None:
    """The kernel tells who came; each visit is counted, and told in the log once per minute."""
    daemon.socket.chmod(0o666)
    got = as_nobody(daemon.socket, *[json_line(daemon.question())] * 20)
    assert {*got} <= {"", "BrokenPipeError", "ConnectionResetError"}
    assert daemon.status()["lines"]["refused"] == 20
    assert 1 <= daemon.log().count("uid 65534 may not ask") <= 2  # a minute may end in between
    assert daemon.records() == ()


def test_nobody_gets_a_verdict_where_the_status_is_told(daemon: Daemon) -> None:
    """One rule for all, so that a client of the wrong socket is found before it matters."""
    for _ in range(20):
        assert json.loads(daemon.raw(json_line(daemon.question()), looking=True)) == KEEP_ANSWER
        assert json.loads(daemon.raw(b"garbage\n", looking=True)) == KEEP_ANSWER
    lines = daemon.status()["lines"]
    assert (lines["refused"], lines["malformed"], lines["requests"]) == (20, 20, 0)
    assert 1 <= daemon.log().count(f"uid {os.geteuid()}") <= 2


def test_a_visitor_has_one_line_of_modest_length(daemon: Daemon) -> None:
    """The rest is not even looked at."""
    assert daemon.all(PING * 3, looking=True) == json_line(ALIVE)
    assert daemon.all(b"x" * 100_000 + b"\n", looking=True) == b""
    assert daemon.all(PING[:-1], looking=True) == b""


def test_visitors_who_say_nothing_hold_a_few_places_for_a_moment(daemon: Daemon) -> None:
    """The next one waits for two seconds at most."""
    with ExitStack() as stack:
        for _ in range(2 * servers.STATUS_USER_CONNECTIONS_LIMIT):
            stack.enter_context(daemon.connected(looking=True))
        begun_s = time.monotonic()
        daemon.wait(lambda: daemon.status()["code"] == "OK")
        assert time.monotonic() - begun_s < 5 * servers.STATUS_LIMIT_S


def test_a_client_that_does_not_speak_the_protocol_is_heard_once(daemon: Daemon) -> None:
    """Also one who may ask: whatever follows a malformed line is as likely to be none."""
    assert daemon.all(b"\n" * 1000 + PING) == json_line(KEEP_ANSWER)
    assert daemon.status()["lines"]["malformed"] == 1


def test_one_who_asks_much_at_once_is_answered_in_order_with_others_in_between(daemon: Daemon) -> None:
    """A connection has a few lines per turn."""
    line = json_line(daemon.question())
    assert daemon.ask()["code"] == "REWRITE"
    with daemon.connected() as busy, busy.makefile("rb") as answers:
        busy.sendall((line + PING) * 500)
        begun_s = time.monotonic()
        assert daemon.ask()["code"] == "REWRITE"
        assert time.monotonic() - begun_s < 5
        codes = [json.loads(answers.readline())["code"] for _ in range(1000)]
    assert codes == ["REWRITE", "OK"] * 500


@contextmanager
def flooding(path: Path, kind: str) -> Iterator[None]:
    """Have a stranger flood *path*; where we are root, another user."""
    path.parent.chmod(0o755)
    user = [str(NOBODY)] if os.geteuid() == 0 else []
    command = [sys.executable, str(Path(__file__).with_name("flood.py")), str(path), kind, *user]
    process = subprocess.Popen(command)
    try:
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind", ["status", "newlines", "storm"])
def test_who_may_ask_is_answered_while_a_stranger_floods(daemon: Daemon, kind: str) -> None:
    """Nine of ten questions at least, all of them new; and the log stays short."""
    in_time = 0
    with flooding(status_path(daemon.socket), kind):
        time.sleep(0.5)
        for number in range(QUESTIONS):
            begun_s = time.monotonic()
            code = daemon.ask(daemon.question(num_tasks="1", name=str(number), card=daemon.card(f"m{number}")))["code"]
            in_time += code == "REWRITE" and time.monotonic() - begun_s < LIMIT_S
    assert in_time >= 0.9 * QUESTIONS
    assert daemon.status()["code"] == "OK"
    assert len(daemon.log().splitlines()) < QUESTIONS + 20
