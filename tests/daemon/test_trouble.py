"""What a real gpusaged does when something is wrong: every job goes through, as its user wrote it or as is right."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from gpusage.service.client import status_path
from gpusage.service.protocol import LINE_LIMIT_BYTES, json_line
from waiting import LIMIT_S

if TYPE_CHECKING:
    from tests.daemon.conftest import Daemon

KEEP_ANSWER = {"v": "1", "code": "KEEP", "message": ""}
PING = json_line({"v": 1, "op": "ping"})
ALIVE = {"v": "1", "code": "OK"}


def alive(daemon: Daemon) -> bool:
    """Return whether it still rewrites."""
    return daemon.ask()["code"] == "REWRITE"


def unmarked(answer: dict[str, str]) -> dict[str, str]:
    """Return *answer* without the mark that a job carries which named a model."""
    assert answer.pop("mark").startswith("gpusage ")
    return answer


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"garbage\n",
        b"\xff\xfe\x00\n",
        b"[]\n",
        b'{"v":2,"op":"ping"}\n',
        b'{"v":1,"op":"stop"}\n',
        b'{"v":1,"manager":"slurm","fields":{"comment":7}}\n',
        b'{"v":1,"manager":"../slurm","fields":{}}\n',
        b"[" * 60_000 + b"\n",
        b'{"v":' + b"9" * 10_000 + b"}\n",
    ],
)
def test_garbage_is_kept_counted_and_logged(daemon: Daemon, line: bytes) -> None:
    """A client of another version must not take it for an order."""
    assert json.loads(daemon.raw(line)) == KEEP_ANSWER
    assert daemon.status()["lines"]["malformed"] == 1
    assert alive(daemon)


def test_half_a_line_is_no_question(daemon: Daemon) -> None:
    """The client that hangs up is not answered, and nothing is recorded."""
    assert daemon.raw(json_line(daemon.question())[:-20], shut=True) == b""
    assert daemon.status()["lines"]["requests"] == 0


def test_a_line_in_pieces_is_one_question(daemon: Daemon) -> None:
    """Each byte on its own."""
    with daemon.connected() as connection:
        for byte in PING:
            connection.sendall(bytes([byte]))
        assert json.loads(connection.recv(1000)) == ALIVE


def test_several_lines_at_once_are_answered_in_order(daemon: Daemon) -> None:
    """Although one of them has to be thought about."""
    with daemon.connected() as connection:
        connection.sendall(PING + json_line(daemon.question(daemon.card("sleep=0.2"))) + PING)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    assert [json.loads(line)["code"] for line in received.splitlines()] == ["OK", "REWRITE", "OK"]


def test_a_client_that_only_stops_sending_is_still_answered(daemon: Daemon) -> None:
    """As `nc` does."""
    assert json.loads(daemon.raw(json_line(daemon.question()), shut=True))["code"] == "REWRITE"


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_megabyte_is_kept_and_the_connection_closed(daemon: Daemon, end: bytes) -> None:
    """Above the limit nothing is even read any further."""
    received = daemon.raw(b"x" * (8 * LINE_LIMIT_BYTES) + end)
    assert received == b"" or json.loads(received) == KEEP_ANSWER
    assert alive(daemon)


def test_a_client_that_asks_without_reading_is_held_back(daemon: Daemon) -> None:
    """Its answers do not pile up in the daemon, and the others are served."""
    status = json_line({"v": 1, "op": "status"})
    with daemon.connected() as connection:
        connection.settimeout(1)
        sent = 0
        with suppress(TimeoutError):
            while sent < 50_000_000:
                sent += connection.send(status * 1000)
        assert sent < 2_000_000
        assert alive(daemon)


def test_many_connections_at_once_are_all_answered(daemon: Daemon) -> None:
    """Two hundred clients, all connected before the first asks."""
    line = json_line(daemon.question())
    with ExitStack() as stack:
        connections = [stack.enter_context(daemon.connected()) for _ in range(200)]
        for connection in connections:
            connection.sendall(line)
        codes = {json.loads(connection.recv(65536))["code"] for connection in connections}
    assert codes == {"REWRITE"}
    daemon.wait(lambda: len(daemon.records()) == 100)  # as many as are asked for
    assert daemon.status()["records"]["lost"] == 0


def test_one_connection_too_many_is_closed_and_the_others_served(daemon: Daemon) -> None:
    """A limit keeps a broken client from eating the daemon's file descriptors."""
    with ExitStack() as stack:
        connections = [stack.enter_context(daemon.connected()) for _ in range(520)]
        with suppress(ConnectionResetError):
            assert connections[-1].recv(1) == b""
        connections[0].sendall(PING)
        assert json.loads(connections[0].recv(1000)) == ALIVE
    assert alive(daemon)


def test_an_idle_connection_is_closed(daemon: Daemon) -> None:
    """Also one that keeps sending without ever ending its line."""
    with daemon.connected() as connection:
        begun_s = time.monotonic()
        with pytest.raises((ConnectionResetError, BrokenPipeError)):  # noqa: PT012 - whichever comes first
            while time.monotonic() - begun_s < LIMIT_S:
                connection.sendall(b"x")
                time.sleep(0.2)
        assert time.monotonic() - begun_s > 4


def test_sigterm_ends_it_cleanly(daemon: Daemon) -> None:
    """Exit status 0, no socket left behind, everything recorded, not a word of complaint."""
    daemon.ask()
    assert daemon.stop() == 0
    assert not daemon.socket.exists()
    assert len(daemon.records()) == 1
    assert "gpusaged stops" in daemon.log().splitlines()
    assert "Traceback" not in daemon.log()


def test_sighup_changes_nothing(daemon: Daemon) -> None:
    """What rotates logs sends it; of systemd's own accord nobody would start gpusaged again."""
    assert daemon.process is not None
    daemon.ask()
    daemon.process.send_signal(signal.SIGHUP)
    daemon.ask()
    assert daemon.stop() == 0
    assert len(daemon.records()) == 2


def test_sigterm_lets_a_question_in_work_be_answered(daemon: Daemon) -> None:
    """Half a second is given for it."""
    assert daemon.process is not None
    with daemon.connected() as connection:
        connection.sendall(json_line(daemon.question(daemon.card("sleep=0.3"))))
        daemon.wait(lambda: daemon.status()["lines"]["requests"] == 1)
        assert daemon.stop() == 0
        assert json.loads(connection.recv(65536))["code"] == "REWRITE"
    assert len(daemon.records()) == 1


def test_after_kill_nine_the_stale_socket_is_taken_over(daemon: Daemon) -> None:
    """And the store goes on where it was."""
    daemon.ask()
    assert len(daemon.records()) == 1
    daemon.stop(signal.SIGKILL)
    assert daemon.socket.is_socket()
    daemon.start()
    daemon.ask()
    assert len(daemon.records()) == 2


def test_a_deleted_socket_is_made_again_and_another_file_in_its_place_is_left_alone(daemon: Daemon) -> None:
    """Somebody tidied up; nobody need restart anything."""
    status_socket = status_path(daemon.socket)
    with daemon.connected() as connection:
        daemon.socket.unlink()
        status_socket.unlink()
        daemon.wait(lambda: daemon.socket.is_socket() and status_socket.is_socket())
        daemon.wait(lambda: alive(daemon) and daemon.status()["code"] == "OK")
        connection.sendall(PING)
        assert json.loads(connection.recv(1000)) == ALIVE  # who was connected stays so
    assert "was deleted; it is there again" in daemon.log()
    status_socket.unlink()
    status_socket.write_text("precious")
    time.sleep(1.5)
    assert daemon.stop() == 0
    assert status_socket.read_text() == "precious"
    assert not daemon.socket.exists()


def refusal(daemon: Daemon) -> str:
    """Start it where it must refuse, and return its one sentence."""
    command = [sys.executable, "-m", "gpusage.service.daemon", "--config", str(daemon.folder / "c.toml")]
    environment = {**os.environ, **daemon.environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment)
    assert done.returncode == 1
    (sentence,) = (line for line in done.stderr.splitlines() if "allowed_users" not in line)
    return sentence


def test_a_second_daemon_on_the_same_socket_is_refused(daemon: Daemon) -> None:
    """The first one keeps its socket."""
    assert "Stop that gpusaged first" in refusal(daemon)
    assert alive(daemon)


def test_a_plain_file_in_the_sockets_place_is_refused_and_left_alone(idle: Daemon) -> None:
    """It may be somebody's."""
    idle.socket.write_text("precious")
    assert "Move it away" in refusal(idle)
    assert idle.socket.read_text() == "precious"


def test_a_missing_folder_for_the_socket_is_one_sentence(idle: Daemon) -> None:
    """No traceback."""
    text = (idle.folder / "c.toml").read_text().replace("/s.sock", "/no/s.sock")
    (idle.folder / "c.toml").write_text(text)
    assert "Make the folder" in refusal(idle)


def test_a_folder_where_anyone_may_put_a_file_is_refused(idle: Daemon) -> None:
    """A link there would lead to a file of gpusaged's user, and a socket be asked in our place."""
    idle.folder.chmod(0o1777)
    assert "got one that anyone may write" in refusal(idle)


def test_rights_are_given_to_the_socket_alone_and_never_through_a_link(daemon: Daemon) -> None:
    """A changed list of those who may ask opened the file that a link in the socket's place led to."""
    precious = daemon.folder / "precious"
    precious.touch(0o600)
    daemon.socket.unlink()
    daemon.socket.symlink_to(precious)
    text = (daemon.folder / "c.toml").read_text().replace("[daemon]\n", '[daemon]\nallowed_users = ["1234"]\n')
    (daemon.folder / "c.toml").write_text(text)
    daemon.wait(lambda: "is not ours any more" in daemon.log())
    time.sleep(2)  # of checks of the configuration and of the socket, one a second
    assert precious.stat().st_mode & 0o777 == 0o600
    assert os.listxattr(precious) == []
    assert daemon.log().count("is not ours any more") == 1


def test_a_broken_configuration_at_the_start_is_one_sentence(idle: Daemon) -> None:
    """Rather no daemon than one that does what nobody wrote."""
    (idle.folder / "c.toml").write_text("mode = 'enforced'")
    assert "must be one of observe, advise, enforce" in refusal(idle)


def test_an_edited_configuration_holds_without_a_restart(daemon: Daemon) -> None:
    """Enforce becomes observe within a second, also for questions whose answers were remembered."""
    assert alive(daemon)
    daemon.configure(mode="observe")
    daemon.wait(lambda: daemon.status()["mode"] == "observe")
    assert unmarked(daemon.ask()) == KEEP_ANSWER


@pytest.mark.parametrize("text", ["mode = ", "mode = 'enforced'", "\x00", "[daemon]\nsokket = 1"])
def test_a_configuration_that_breaks_keeps_the_last_good_one(daemon: Daemon, text: str) -> None:
    """Status says so until it is mended."""
    (daemon.folder / "c.toml").write_text(text)
    daemon.wait(lambda: daemon.status()["configuration"]["error"])
    assert alive(daemon)
    daemon.configure(mode="advise")
    daemon.wait(lambda: daemon.status()["configuration"]["error"] is None)
    assert daemon.status()["mode"] == "advise"


@pytest.mark.parametrize("part", [0.0, 0.3])
def test_a_configuration_that_is_being_written_keeps_the_last_good_one(daemon: Daemon, part: float) -> None:
    """Empty, or cut behind a line, it is TOML: all defaults, mode observe, and another kill switch."""
    path = daemon.folder / "c.toml"
    whole = path.read_text()
    path.write_text("".join(whole.splitlines(keepends=True)[: int(part * whole.count("\n"))]))
    daemon.wait(lambda: "seems to be written" in (daemon.status()["configuration"]["error"] or ""))
    assert daemon.status()["mode"] == "enforce"
    assert daemon.status()["kill_switch"]["path"] == str(daemon.folder / "off")
    path.write_text(whole)
    daemon.wait(lambda: daemon.status()["configuration"]["error"] is None)


def test_a_configuration_that_vanishes_keeps_the_last_good_one(daemon: Daemon) -> None:
    """An editor may remove the file for a moment."""
    (daemon.folder / "c.toml").unlink()
    daemon.wait(lambda: daemon.status()["configuration"]["error"])
    assert alive(daemon)


def test_the_kill_switch_stops_every_rewrite_at_once(daemon: Daemon) -> None:
    """With a record of each job, and without a word to the user; removing the file is enough to go on."""
    assert alive(daemon)
    (daemon.folder / "off").touch()
    daemon.wait(lambda: daemon.status()["kill_switch"]["on"])
    assert daemon.ask() == KEEP_ANSWER
    assert "the kill switch is on" in daemon.records()[0].decision.reasons[0]
    (daemon.folder / "off").unlink()
    daemon.wait(lambda: not daemon.status()["kill_switch"]["on"])
    assert alive(daemon)


def test_a_kill_switch_that_is_a_dangling_link_is_on(daemon: Daemon) -> None:
    """Whatever stands there, somebody put it there."""
    (daemon.folder / "off").symlink_to("/nowhere")
    daemon.wait(lambda: daemon.status()["kill_switch"]["on"])


def test_before_the_cluster_was_seen_every_job_is_kept(idle: Daemon) -> None:
    """A manager that does not answer blocks nobody."""
    idle.behave(hang=True)
    idle.launch()
    idle.wait(lambda: idle.status()["code"] == "OK")
    assert unmarked(idle.ask()) == KEEP_ANSWER
    assert "has not observed" in idle.records()[0].decision.reasons[0]
    idle.behave()
    idle.wait(lambda: alive(idle))


def test_a_manager_that_fails_is_reported_and_the_last_state_used_until_it_is_stale(idle: Daemon) -> None:
    """Here for two seconds."""
    idle.configure(stale_after_s=2)
    idle.start()
    idle.behave(fail="slurmctld is away")
    assert alive(idle)
    idle.wait(lambda: idle.status()["troubles"])
    assert idle.status()["troubles"] == {"slurm": "slurmctld is away"}
    assert unmarked(idle.ask()) == KEEP_ANSWER
    assert "slurmctld is away" in idle.records()[0].decision.reasons[0]
    assert idle.log().count("slurm: slurmctld is away") == 1
    idle.behave()
    idle.wait(lambda: alive(idle))


def test_a_corrupt_store_is_moved_aside(idle: Daemon) -> None:
    """The daemon starts, and records from the first job on."""
    idle.store.parent.mkdir()
    idle.store.write_bytes(b"no database" * 1000)
    idle.start()
    assert alive(idle)
    assert len(idle.records()) == 1
    assert list(idle.store.parent.glob("d.db.corrupt-*"))


def test_a_store_that_is_overwritten_while_it_runs_loses_no_answer(daemon: Daemon) -> None:
    """Whatever SQLite makes of it, answers leave, and every decision is kept or counted as lost."""
    assert alive(daemon)
    # A file that is cut short under a writer may end any process.
    daemon.wait(lambda: daemon.status()["records"]["written"] == 1)
    for path in daemon.store.parent.iterdir():
        path.write_bytes(b"\xa5" * path.stat().st_size)
    for _ in range(5):
        assert alive(daemon)
    daemon.wait(lambda: daemon.status()["records"]["waiting"] == 0)  # an answer may leave before its record is written
    records = daemon.status()["records"]
    assert records["written"] + records["lost"] == 6


def test_a_store_whose_folder_vanishes_is_made_anew(daemon: Daemon) -> None:
    """Somebody tidied up."""
    assert alive(daemon)
    assert len(daemon.records()) == 1  # what is not written yet would be written into the new store
    for path in daemon.store.parent.iterdir():
        path.unlink()
    daemon.store.parent.rmdir()
    assert alive(daemon)
    assert len(daemon.records()) == 1


def test_a_store_that_cannot_be_opened_loses_no_answer_and_no_record_once_it_can(idle: Daemon) -> None:
    """Counted in the status, with the reason, and logged once, not for each job."""
    idle.store.parent.write_text("a plain file where the folder should be")
    idle.start()
    for _ in range(20):
        assert alive(idle)
    records = idle.status()["records"]
    assert (records["written"], records["waiting"], records["lost"]) == (0, 20, 0)
    idle.wait(lambda: "must be opened" in (idle.status()["records"]["error"] or ""))
    assert idle.log().count("decisions wait to be written") == 1
    idle.store.parent.unlink()
    idle.wait(lambda: idle.status()["records"]["waiting"] == 0)
    assert len(idle.records()) == 20


def test_a_full_disk_loses_no_answer(idle: Daemon) -> None:
    """The kernel refuses files above 64 KiB, which SQLite takes for a full disk."""
    shell = "ulimit -f 64; trap '' XFSZ; exec " + sys.executable + " -m gpusage.service.daemon --config c.toml 2>log"
    environment = {**os.environ, **idle.environment}
    idle.process = subprocess.Popen(["bash", "-c", shell], cwd=idle.folder, env=environment, text=True)
    idle.wait(lambda: idle.status()["clusters"])
    for _ in range(300):
        assert alive(idle)
    records = idle.status()["records"]
    assert records["waiting"] > 0
    assert records["written"] + records["waiting"] + records["lost"] == 300


def test_a_store_that_another_process_has_locked_delays_no_answer(daemon: Daemon) -> None:
    """The records follow when the lock is gone."""
    assert alive(daemon)
    lock = sqlite3.connect(daemon.store, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    begun_s = time.monotonic()
    for _ in range(10):
        assert alive(daemon)
    daemon.wait(lambda: "locked" in (daemon.status()["records"]["error"] or ""))  # of a lock of 4 s 123 were lost
    taken_s = time.monotonic() - begun_s
    lock.execute("COMMIT")
    lock.close()
    assert taken_s < 9  # the lock is waited for one second, by each
    daemon.wait(lambda: daemon.status()["records"]["written"] == 11)


def test_memory_stays_below_150_mb(daemon: Daemon) -> None:
    """After two thousand different questions, half of them with cards that are none."""
    assert daemon.process is not None
    with daemon.connected() as connection, connection.makefile("rb") as answers:
        for number in range(2000):
            text = daemon.card(f"model{number}") if number % 2 else "A" * 8000 + str(number)
            connection.sendall(json_line(daemon.question(text)))
            answers.readline()
    assert daemon.highest_memory_bytes() <= 150e6
