from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpusage.gate import request
from gpusage.gate.busy_flags import BUSY, FREE, PLACES, PRESENT, BusyFlags, own_folder, process_flags
from gpusage_hooks.errors import RequestError
from waiting import LIMIT_S

SERVER = """
import sys
from pathlib import Path
from gpusage.gate.busy_flags import BusyFlags
flags = BusyFlags(Path(sys.argv[1]))
with flags.request():
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
    here = BusyFlags(tmp_path / "flags")
    assert not here.is_served()
    with server(tmp_path / "flags") as process:
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
    here = BusyFlags(tmp_path / "flags")
    with server(tmp_path / "flags") as process:
        assert here.is_busy()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not here.is_busy()
        assert not here.is_served()
        assert (tmp_path / "flags").read_bytes() == bytes([FREE]) * PLACES


def test_a_child_that_outlives_its_server_holds_nobody(tmp_path: Path) -> None:
    """Locks of a process end with it, although its child has inherited the open file."""
    script = SERVER.replace("    print", "    import os\n    os.fork() or __import__('time').sleep(60)\n    print")
    here = BusyFlags(tmp_path / "flags")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "flags")],
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
    here = BusyFlags(tmp_path / "flags")
    with server(tmp_path / "flags") as first, server(tmp_path / "flags") as second:
        first.kill()
        first.wait()
        assert here.is_busy()
        second.kill()
        second.wait()
        assert not here.is_busy()


def test_overlapping_requests_of_threads_are_one_until_the_last_ends(tmp_path: Path) -> None:
    path, go, begun = tmp_path / "flags", threading.Event(), threading.Event()
    here = BusyFlags(path)

    def serve_request() -> None:
        with here.request():
            begun.set()
            go.wait(LIMIT_S)

    thread = threading.Thread(target=serve_request)
    with here.request():
        thread.start()
        begun.wait(LIMIT_S)
    assert path.read_bytes()[0] == BUSY
    go.set()
    thread.join()
    assert path.read_bytes()[0] == PRESENT


def test_a_process_is_not_held_by_its_own_request(tmp_path: Path) -> None:
    here = BusyFlags(tmp_path / "flags")
    with here.request():
        assert not here.is_busy()
        assert not here.is_served()


def test_more_servers_than_places_serve_unseen(tmp_path: Path) -> None:
    path = tmp_path / "flags"
    here = BusyFlags(path)
    here._locked = lambda _place: False  # type: ignore[method-assign]
    with here.request():
        assert path.read_bytes() == bytes(PLACES)


def test_the_folder_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSAGE_GATE", str(tmp_path / "gate"))
    assert own_folder().stat().st_mode & 0o777 == 0o700
    with request():
        assert (own_folder() / process_flags()._path.name).read_bytes()[0] == BUSY
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


def test_jobs_on_other_gpus_have_other_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSAGE_GATE", str(tmp_path / "gate"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    first = process_flags()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert process_flags() is not first
    assert process_flags() is process_flags()


VICTIM = """
import os, sys
sys.path[:0] = {paths!r}
import gpusage.gate
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for _ in range(2):
    with gpusage.gate.request():
        print("served")
try:
    gpusage.gate.give_way()
except ImportError:  # no PyTorch here
    pass
"""


def run_victim(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program of another user with the gate in *folder*."""
    command = [sys.executable, "-c", VICTIM.format(paths=sys.path)]
    environment = os.environ | {"GPUSAGE_GATE": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_program_goes_on_whose_folder_another_user_has_taken() -> None:
    """`mkdir /dev/shm/gpusage-UID` ended it with exit status 1."""
    with tempfile.TemporaryDirectory() as public:
        Path(public).chmod(0o1777)
        folder = Path(public) / "gpusage-65534"
        folder.mkdir()
        done = run_victim(folder)
    assert (done.returncode, done.stdout) == (0, "served\nserved\n"), done.stderr
    assert done.stderr.count("gpusage gate: not used: Gate's folder") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="fills a file system of its own")
def test_a_program_goes_on_where_somebody_has_filled_the_shared_memory() -> None:
    """A page that is touched and cannot be had is a SIGBUS."""
    with tempfile.TemporaryDirectory() as public:
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=16k,mode=1777", "tmpfs", public], check=False
        ).returncode:
            pytest.skip("nothing can be mounted here")
        try:
            (folder := Path(public) / "gate").mkdir(mode=0o700)
            os.chown(folder, 65534, 65534)
            with suppress(OSError), (Path(public) / "much").open("wb", buffering=0) as file:
                for _ in range(100):
                    file.write(bytes(4096))
            done = run_victim(folder)
        finally:
            subprocess.run(["umount", "-l", public], check=True)
    assert (done.returncode, done.stdout) == (0, "served\nserved\n"), done.stderr
    assert "No space left on device" in done.stderr
