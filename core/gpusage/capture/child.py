"""Runs the user's program in a limited child process, and reads the lines that the child sends."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any, BinaryIO

from gpusage.capture.inside import scratch_files
from gpusage.capture.programs import Program
from gpusage_hooks.errors import RequestError

MEMORY_LIMIT_BYTES = 16 << 30
RECORD_LIMIT_BYTES = 4 << 20
"""Limit of all lines from a child."""
GRACE_S = 20.0
"""Time for the card, after the program's time."""
_PAUSE_S = 0.2
_TAIL_LINES = 15
_STAGE_LENGTH = 60
_PACKAGES = ("gpusage", "gpusage_hooks", "pluggy")
# Gives the user's Python our packages and nothing else of our Python's folders.
_BOOTSTRAP = """
import importlib.util, json, os, sys
folders = json.loads(sys.argv.pop(1))
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in folders:
            start = os.path.join(folders[name], "__init__.py")
            return importlib.util.spec_from_file_location(name, start, submodule_search_locations=[folders[name]])
sys.meta_path.insert(0, Finder())
sys.path.remove("")
try:
    import torch
except ImportError:
    os.write(json.loads(sys.argv[1])["pipe"], b'{"record": {"ending": "no torch"}}\\n')
    sys.exit()
from gpusage.capture.inside.session import main
main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a child.

    Attributes:
        record: Its last message, unchecked; may be empty.
        limit: The limit that ended it, in words.
        output: The last lines of the program's output.
    """

    record: Mapping[str, Any]
    limit: str = ""
    output: str = ""
    elapsed_s: float = 0.0


def run_program(
    program: Program, progress: Callable[[str], None], *, time_s: float, is_apart: bool, has_network: bool
) -> Outcome:
    """Run *program* until it has sent its record, or a limit ends it.

    Args:
        program: The user's program.
        progress: Called with each stage, in words.
        time_s: Limit of the wall-clock time.
        is_apart: Whether its files stay in memory; otherwise it writes for real.
        has_network: Whether it may use the network.

    Raises:
        RequestError: The program cannot start, or this host cannot keep its files apart.
    """
    begun_s = time.monotonic()
    folder = Path(program.folder).resolve()
    if not folder.is_dir():
        message = (
            f"Folder {str(folder)!r} must be there for the program to run in; got none. Start in the job's folder."
        )
        raise RequestError(message)

    limits = {"is_apart": is_apart, "has_network": has_network, "cpu_limit_s": max(4 * time_s, 60)}
    # A pipe of its own: standard output is the program's. Its input is a terminal at its end, whose width some ask for.
    receiver, sender = os.pipe()
    try:
        terminal, stdin = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        os.write(terminal, b"\x04" * 100)  # the ends that so many reads find; a later one waits
    except OSError:  # without /dev/pts, as in some containers
        terminal, stdin = (os.open(os.devnull, os.O_RDONLY) for _ in range(2))
    with tempfile.TemporaryFile() as output, os.fdopen(receiver, "rb", buffering=0) as pipe:
        try:
            child = subprocess.Popen(
                _command(program, limits, folder, sender),
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                pass_fds=(sender,),
                # One session, so that one signal ends all processes of the program.
                start_new_session=True,
            )
        finally:
            # With our end open, the pipe would not end with the child.
            os.close(sender)
            os.close(stdin)

        try:
            record, limit = _receive(child, pipe, begun_s + time_s, progress)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            os.close(terminal)

        # A program may print without end; an error stands in its last lines.
        output.seek(max(output.seek(0, os.SEEK_END) - (1 << 16), 0))
        text = "\n".join(output.read().decode("utf-8", "replace").strip().splitlines()[-_TAIL_LINES:])

    # The status says that nothing of the program has run.
    if child.returncode == scratch_files.NO_SCRATCH_STATUS and not record:
        message = (
            f"What the program writes must stay in an overlay, which this host does not let users have; got: {text}. "
            "With --run-here it runs without one: what it does before its first step is done for real."
        )
        raise RequestError(message)

    return Outcome(record=record, limit=limit, output=text, elapsed_s=time.monotonic() - begun_s)


def _command(program: Program, limits: Mapping[str, object], folder: Path, sender: int) -> list[str]:
    folders = [folder, Path.home(), Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108 - where programs write
    options = {**limits, "folders": [*map(str, folders)], "variables": _variables(program)}
    packages = {name: str(Path(spec.origin).parent) for name in _PACKAGES if (spec := find_spec(name)) and spec.origin}
    session = {"pipe": sender, "gpu_count": program.gpu_count}

    # Isolated: neither the program's folder nor its variables have a say before it is kept apart.
    return [
        *(sys.executable, "-I", scratch_files.__file__, json.dumps(options)),
        *(*program.python, "-c", _BOOTSTRAP, json.dumps(packages), json.dumps(session), *program.words),
    ]


def _variables(program: Program) -> dict[str, str]:
    """Return the program's variables: as a process of a job, which sees no GPU of this host and logs nowhere."""
    # As torchrun sets them; the address is this host's, because no other process of the job exists.
    count = str(program.gpu_count)
    launched = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return {
        **program.variables,
        **(launched if program.gpu_count > 1 else {}),
        "CUDA_VISIBLE_DEVICES": "",
        "WANDB_MODE": "disabled",
        "DS_ACCELERATOR": "cpu",
        "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1"),
        "TOKENIZERS_PARALLELISM": "false",
        # The step runs on shapes, and a login node has other users.
        "OMP_NUM_THREADS": "1",
    }


def _receive(
    child: subprocess.Popen[bytes], pipe: BinaryIO, until_s: float, progress: Callable[[str], None]
) -> tuple[Mapping[str, Any], str]:
    """Return the record, and the limit that ended the child."""
    content, limit = b"", ""
    with DefaultSelector() as selector:
        selector.register(pipe, EVENT_READ)
        while len(content) <= RECORD_LIMIT_BYTES:
            if selector.select(_PAUSE_S):
                # An empty read: every holder of the pipe has ended.
                part = pipe.read(1 << 16)
                if not part:
                    return {}, limit
                content += part
                # The last piece is a line without its end so far.
                *lines, content = content.split(b"\n")
                for line in lines:
                    message = _message(line)
                    if isinstance(message.get("record"), dict):
                        return message["record"], limit
                    progress(str(message.get("stage", ""))[:_STAGE_LENGTH])
            # Processes that the program has started may hold the pipe open.
            if child.poll() is not None and not selector.select(0):
                return {}, limit
            if _memory_bytes(child.pid) > MEMORY_LIMIT_BYTES:
                return {}, f"{MEMORY_LIMIT_BYTES >> 30} GiB of memory"
            if time.monotonic() > until_s:
                # The grace is over, too.
                if limit:
                    return {}, limit
                # SIGTERM has the child send what it has observed; a card takes some seconds.
                limit, until_s = "its time", until_s + GRACE_S
                child.terminate()

    return {}, "the bytes that it may send"


def _message(line: bytes) -> Mapping[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _memory_bytes(pid: int) -> int:
    """Return the resident memory of a process and of its children."""
    # Resident, not virtual: weights without initial values take addresses alone.
    pages = 0
    children: list[str] = []
    with suppress(OSError, IndexError):  # it has just ended
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_memory_bytes(int(each)) for each in children)
