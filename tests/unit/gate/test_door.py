from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpusage.gate import request
from gpusage.gate.door import BUSY, FREE, PLACES, PRESENT, Door, door, own_folder
from gpusage_hooks.errors import RequestError
from waiting import LIMIT_S

SERVER = """
import sys
from pathlib import Path
from gpusage.gate.door import Door
door = Door(Path(sys.argv[1]))
with door.request():
    print("busy", flush=True)
    sys.stdin.readline()
print("present", flush=True)
sys.stdin.readline()
"""


@contextmanager
def server(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process with a request in flight, until it reads a line."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_request_of_another_process_is_seen_from_its_begin_to_its_end(tmp_path: Path) -> None:
    here = Door(tmp_path / "door")
    assert not here.is_served()
    with server(tmp_path / "door") as process:
        assert here.is_busy()
        assert here.is_served()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "present\n"
        assert not here.is_busy()
        assert here.is_served()


def test_a_server_that_is_killed_frees_training_at_once(tmp_path: Path) -> None:
    here = Door(tmp_path / "door")
    with server(tmp_path / "door") as process:
        assert here.is_busy()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not here.is_busy()
        assert not here.is_served()
        assert (tmp_path / "door").read_bytes() == bytes([FREE]) * PLACES


def test_a_child_that_outlives_its_server_holds_nobody(tmp_path: Path) -> None:
    """Locks of a process end with it, although its child has inherited the open file."""
    script = SERVER.replace("    print", "    import os\n    os.fork() or __import__('time').sleep(60)\n    print")
    here = Door(tmp_path / "door")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "door")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        assert here.is_busy()
        process.kill()
        process.wait()
        assert not here.is_busy()
        os.killpg(process.pid, signal.SIGKILL)


def test_two_servers_are_told_apart(tmp_path: Path) -> None:
    here = Door(tmp_path / "door")
    with server(tmp_path / "door") as first, server(tmp_path / "door") as second:
        first.kill()
        first.wait()
        assert here.is_busy()
        second.kill()
        second.wait()
        assert not here.is_busy()


def test_overlapping_requests_of_threads_are_one_until_the_last_ends(tmp_path: Path) -> None:
    path, go, begun = tmp_path / "door", threading.Event(), threading.Event()
    here = Door(path)

    def answer() -> None:
        with here.request():
            begun.set()
            go.wait(LIMIT_S)

    thread = threading.Thread(target=answer)
    with here.request():
        thread.start()
        begun.wait(LIMIT_S)
    assert path.read_bytes()[0] == BUSY
    go.set()
    thread.join()
    assert path.read_bytes()[0] == PRESENT


def test_a_process_is_not_held_by_its_own_request(tmp_path: Path) -> None:
    here = Door(tmp_path / "door")
    with here.request():
        assert not here.is_busy()
        assert not here.is_served()


def test_more_servers_than_places_serve_unseen(tmp_path: Path) -> None:
    path = tmp_path / "door"
    here = Door(path)
    here._locked = lambda _place: False  # type: ignore[method-assign]
    with here.request():
        assert path.read_bytes() == bytes(PLACES)


def test_the_folder_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSAGE_GATE", str(tmp_path / "gate"))
    assert own_folder().stat().st_mode & 0o777 == 0o700
    with request():
        assert (own_folder() / door()._path.name).read_bytes()[0] == BUSY
    (tmp_path / "gate").chmod(0o750)
    with pytest.raises(RequestError, match="mode 0700; got mode 0750"):
        own_folder()


def test_a_link_or_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    monkeypatch.setenv("GPUSAGE_GATE", str(tmp_path / "link"))
    with pytest.raises(RequestError, match="must be a folder of your own"):
        own_folder()
    monkeypatch.setenv("GPUSAGE_GATE", str(tmp_path / "a" / "b"))
    with pytest.raises(RequestError, match="No such file"):
        own_folder()


def test_jobs_on_other_gpus_have_another_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSAGE_GATE", str(tmp_path / "gate"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    first = door()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert door() is not first
    assert door() is door()
