"""Starts the user's program in a child process that is limited, and reads the lines that it sends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
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
"""Of all lines that a child may send."""
GRACE_S = 20.0
"""For the card, after the time is over."""
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
class Limits:
    """What the child may do.

    Attributes:
        time_s: Of the wall clock.
        is_apart: What it writes stays in memory; otherwise it writes for real.
        has_network: It may use the network.
    """

    time_s: float = 60.0
    is_apart: bool = True
    has_network: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the child ended.

    Attributes:
        record: What it sent last, unchecked; empty if it sent nothing.
        limit: The limit that ended it, in words.
        output: The last lines that the program printed.
    """

    record: Mapping[str, Any]
    limit: str = ""
    output: str = ""
    elapsed_s: float = 0.0


def run_program(program: Program, limits: Limits, progress: Callable[[str], None]) -> Outcome:
    """Run *program* until it has sent its record, or a limit ends it.

    Args:
        program: The user's.
        limits: What it may do.
        progress: Called with each stage, in words.

    Raises:
        RequestError: It cannot be started, or what it writes cannot be kept apart here.
    """
    begun_s = time.monotonic()
    folder = Path(program.folder).resolve()
    if not folder.is_dir():
        message = (
            f"Folder {str(folder)!r} must be there for the program to run in; got none. Start in the job's folder."
        )
        raise RequestError(message)

    # A pipe of its own: standard output is the program's.
    receiver, sender = os.pipe()
    with tempfile.TemporaryFile() as output, os.fdopen(receiver, "rb", buffering=0) as pipe:
        try:
            child = subprocess.Popen(
                _command(program, limits, folder, sender),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                pass_fds=(sender,),
                start_new_session=True,
            )
        finally:
            os.close(sender)
        try:
            record, limit = _receive(child, pipe, begun_s + limits.time_s, progress)
        finally:
            _end(child)
        text = _tail(output)

    # The status says that nothing of the program has run.
    if child.returncode == scratch_files.NO_SCRATCH_STATUS and not record:
        message = (
            f"What the program writes must stay in an overlay, which this host does not let users have; got: {text}. "
            "With --run-here it runs without one: what it does before its first step is done for real."
        )
        raise RequestError(message)

    return Outcome(record=record, limit=limit, output=text, elapsed_s=time.monotonic() - begun_s)


def _command(program: Program, limits: Limits, folder: Path, sender: int) -> list[str]:
    folders = [folder, Path.home(), Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108 - where programs write
    options = {
        "is_apart": limits.is_apart,
        "has_network": limits.has_network,
        "cpu_limit_s": max(4 * limits.time_s, 60),
        "folders": [str(each) for each in folders],
        "variables": _variables(program),
    }
    packages = {name: str(Path(spec.origin).parent) for name in _PACKAGES if (spec := find_spec(name)) and spec.origin}
    session = {"pipe": sender, "gpu_count": program.gpu_count}

    # Isolated: neither the program's folder nor its variables have a say before it is kept apart.
    return [
        *(sys.executable, "-I", scratch_files.__file__, json.dumps(options)),
        *(*program.python, "-c", _BOOTSTRAP, json.dumps(packages), json.dumps(session), *program.words),
    ]


def _variables(program: Program) -> dict[str, str]:
    """Return what is set for the program: one process of a job, which sees no GPU of this host and logs nowhere."""
    # What torchrun sets for the first of its processes.
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
        "OMP_NUM_THREADS": "1",
    }


def _receive(
    child: subprocess.Popen[bytes], pipe: BinaryIO, until_s: float, progress: Callable[[str], None]
) -> tuple[Mapping[str, Any], str]:
    """Return the record and the limit that ended the child; after the time the child has a little more for its card."""
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
                *lines, content = content.split(b"\n")
                for line in lines:
                    message = _message(line)
                    if isinstance(message.get("record"), dict):
                        return message["record"], limit
                    progress(str(message.get("stage", ""))[:_STAGE_LENGTH])
            # What the child sent before its end is still read.
            if child.poll() is not None and not selector.select(0):
                return {}, limit
            if _memory_bytes(child.pid) > MEMORY_LIMIT_BYTES:
                return {}, f"{MEMORY_LIMIT_BYTES >> 30} GiB of memory"
            if time.monotonic() > until_s:
                # The grace is over, too.
                if limit:
                    return {}, limit
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
    """Return the resident memory of a process and of those that it has started."""
    pages = 0
    children: list[str] = []
    with suppress(OSError, IndexError):  # it has just ended
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_memory_bytes(int(each)) for each in children)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and all of its session that is left."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _tail(output: Any) -> str:  # typing has no name for a temporary file
    # Only the tail: a program may print without end.
    output.seek(max(output.seek(0, os.SEEK_END) - (1 << 16), 0))
    return "\n".join(output.read().decode("utf-8", "replace").strip().splitlines()[-_TAIL_LINES:])
