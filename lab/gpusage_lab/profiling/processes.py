"""The parent's end of a worker process: messages with a time limit, and an end in any case."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

Message = dict[str, Any]
END_S = 2.0
"""A worker ends when its input does; after this it is killed."""
_READ_BYTES = 65_536
_LAST_BYTES = 2_000


class WorkerLostError(Exception):
    """A worker ended, or did not answer in time; it is of no use any more.

    Attributes:
        status: ``failed`` or ``timeout``, as the table has it.
    """

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class WorkerProcess:
    """One ``python -m gpusage_lab.profiling.worker``, in its own process group: a Ctrl-C reaches the parent alone."""

    def __init__(self, device: str, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpusage_lab.profiling.worker", device],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        self._output = self._process.stdout
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, message: Message) -> None:
        """Tell the worker what to do.

        Raises:
            WorkerLostError: It has ended.
        """
        assert self._process.stdin is not None  # noqa: S101 - as above
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._lost() from error

    def receive(self, within_s: float) -> Message:
        """Return the worker's next answer.

        Raises:
            WorkerLostError: There is none in time.
        """
        deadline = time.monotonic() + within_s
        while b"\n" not in self._buffer:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                status = "timeout"
                raise WorkerLostError(status, f"no answer within {within_s:.0f} s")
            data = os.read(self._output.fileno(), _READ_BYTES)
            if not data:
                raise self._lost()
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None  # noqa: S101 - as above
        with suppress(OSError):  # the last message is of no use any more
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._selector.close()
        self._output.close()

    def _lost(self) -> WorkerLostError:
        """Return the last words of a worker that has ended, for a message."""
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            code = None
        words = self._log.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip().splitlines()
        return WorkerLostError("failed", f"worker ended with {code}: {words[-1] if words else 'no word'}")
