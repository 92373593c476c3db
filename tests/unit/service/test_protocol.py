"""The daemon's protocol, its client, and who may ask."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.service import client
from gpusage.service.configuration_watch import ConfigurationWatcher, known_uids
from gpusage.service.protocol import (
    ALIVE,
    UNCHANGED,
    Ping,
    ProtocolError,
    Response,
    StatusQuery,
    json_line,
    parse_line,
)
from gpusage.service.sockets import peer_uid
from gpusage.settings.configuration_file import default_configuration
from gpusage.store.annotation import JobAnnotation
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Code, DecisionRequest


def test_an_ask_carries_manager_and_fields() -> None:
    """The operation may be left out, as the Lua side does; the version may be a number or a text."""
    expected = DecisionRequest(manager="slurm", fields={"comment": "model=x.onnx"})
    for head in ('"v":1', '"v":"1"', '"v":1,"op":"ask"'):
        line = "{" + head + ',"manager":"slurm","fields":{"comment":"model=x.onnx"}}'
        assert parse_line(line.encode()) == expected


def test_ping_and_status_need_nothing_else() -> None:
    """Both may be asked by anybody."""
    assert parse_line(b'{"v":1,"op":"ping"}') == Ping()
    assert parse_line(b'{"v":1,"op":"status"}\r') == StatusQuery()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"x",
        b"null",
        b"[1]",
        b'{"op":"ping"}',
        b'{"v":true,"op":"ping"}',
        b'{"v":2,"op":"ping"}',
        b'{"v":1,"op":"PING"}',
        b'{"v":1,"op":["ping"]}',
        b'{"v":1}',
        b'{"v":1,"manager":"slurm"}',
        b'{"v":1,"manager":"Slurm","fields":{}}',
        b'{"v":1,"manager":"slurm\\n","fields":{}}',
        b'{"v":1,"manager":"slurm","fields":[]}',
        b'{"v":1,"manager":"slurm","fields":{"min_nodes":1}}',
        b'{"v":1,"manager":"slurm","fields":{"card":null}}',
        b'\xff{"v":1,"op":"ping"}',
    ],
)
def test_anything_else_is_refused_with_one_sentence(line: bytes) -> None:
    """Subject, rule, what was found, what to do."""
    with pytest.raises(ProtocolError, match=r"must be .*; got .*\. (Check|Update) the client\.$"):
        parse_line(line)


def test_an_answer_is_flat_texts_on_one_line() -> None:
    """What the Lua side can read; line breaks and control characters of a user's text do not get through."""
    settings = {"set.gres": "mps:40", "env.A": 'quote " and \u00e9'}
    line = Response(code=Code.REWRITE, message="one\ntwo\x1b[31m\x00", settings=settings).line()
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "v": "1",
        "code": "REWRITE",
        "message": "one two?[31m?",
        "set.gres": "mps:40",
        "env.A": 'quote " and \u00e9',
    }


def test_an_answer_sets_fields_and_variables_and_nothing_else() -> None:
    """A plugin cannot put another code or message past us, nor anything but texts."""
    settings = {"code": "DECLINE", "message": "x", "gres": "x", "v": "2", "set.gres": "mps:40", "set.nice": 7}
    response = json.loads(Response(code=Code.REWRITE, settings=settings).line())  # type: ignore[arg-type]
    assert response == {"v": "1", "code": "REWRITE", "message": "", "set.gres": "mps:40"}


def test_what_utf_8_cannot_hold_becomes_a_question_mark() -> None:
    """Half of a surrogate pair."""
    assert json.loads(json_line({"a": "\ud800b"})) == {"a": "?b"}


def test_the_ready_made_answers_are_of_the_protocol() -> None:
    """They are what everyone gets whom we cannot answer."""
    assert json.loads(UNCHANGED.line()) == {"v": "1", "code": "KEEP", "message": ""}
    assert json.loads(Response(code=Code.DECLINE).line()) == {"v": "1", "code": "DECLINE", "message": ""}
    assert json.loads(ALIVE) == {"v": "1", "code": "OK"}


def test_the_peer_of_a_socket_is_this_user() -> None:
    """The kernel says so, not the client."""
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        assert peer_uid(left) == os.geteuid()


def test_allowed_users_are_names_numbers_and_the_daemons_own() -> None:
    """A name that the host does not know is told, and lets nobody in."""
    uids, unknown = known_uids(["root", "1234", "no-such-user", "", "\u0661"])
    assert uids == {0, 1234}
    assert unknown == ("no-such-user", "", "\u0661")
    configuration = default_configuration()
    configuration = replace(configuration, daemon=replace(configuration.daemon, allowed_users=("root", "1234", "x-y")))
    assert ConfigurationWatcher(configuration, {}, None).trusted_uids == {0, 1234, os.geteuid()}


def serve(path: Path, response: bytes, *, hang: bool = False) -> threading.Thread:
    """Answer one connection with *response*, from a thread."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def work() -> None:
        with listening, listening.accept()[0] as connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(response)
            if hang:
                connection.recv(1)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("response", [b"", b'{"v":"1"', b"garbage\n", b"[]\n", b"x" * 3_000_000 + b"\n"])
def test_the_client_refuses_what_is_no_answer(tmp_path: Path, response: bytes) -> None:
    """With one sentence."""
    thread = serve(tmp_path / "s", response[: 2**20 * 2])
    with pytest.raises(RequestError, match=r"Daemon at .* must answer"):
        client.ask(tmp_path / "s", {"v": 1, "op": "ping"})
    thread.join()


def test_the_client_waits_no_longer_than_its_limit(tmp_path: Path) -> None:
    """Half a line and then silence."""
    thread = serve(tmp_path / "s", b'{"v"', hang=True)
    with pytest.raises(RequestError, match=r"within 0\.1 s; got: timed out"):
        client.ask(tmp_path / "s", {"v": 1, "op": "ping"}, timeout_s=0.1)
    thread.join()


def test_the_client_says_where_no_daemon_listens(tmp_path: Path) -> None:
    """And what to do."""
    with pytest.raises(RequestError, match="Start gpusaged"):
        client.ask(tmp_path / "none", {"v": 1, "op": "ping"})


@pytest.mark.parametrize(
    ("named", "until_s"), [("1763812345.678", 1763812345.678), ("1763812345", None), ("1e999", None), ('"9.5"', None)]
)
def test_a_client_may_say_until_when_it_waits(named: str, until_s: float | None) -> None:
    question = parse_line(f'{{"v":1,"manager":"yarn","fields":{{}},"until_s":{named}}}'.encode())
    assert question == DecisionRequest(manager="yarn", fields={}, until_s=until_s)


def test_the_mark_in_an_answer_has_the_record_s_number() -> None:
    mark = JobAnnotation(
        number="", code="KEEP", mode="enforce", before="gres/gpu:1", after="gres/gpu:1", reasons='a "reason" }'
    )
    response = Response(code=Code.KEEP, mark=mark.rest, overdue=True)
    assert json.loads(response.line("69215f4a0c3e")) == {
        "v": "1",
        "code": "KEEP",
        "message": "",
        "mark": 'gpusage 69215f4a0c3e KEEP gres/gpu:1 | a "reason" }',
        "overdue": "1",
    }
