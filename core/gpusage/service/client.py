"""A client of gpusaged: one question, one answer, one limit on the whole exchange."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpusage.service.protocol import json_line
from gpusage.settings.configuration import Configuration
from gpusage.settings.configuration_file import default_configuration
from gpusage_hooks.errors import RequestError

ANSWER_LIMIT_BYTES = 1024 * 1024
STATUS_LIMIT_S = 5.0
"""A person can wait; with a shorter limit, doctor would find fault with a sound daemon on a busy host."""


def status_path(socket_path: str | Path) -> Path:
    """Return the path of the status socket, open to everyone, of the daemon that is asked at *socket_path*."""
    path = Path(socket_path)
    return path.with_name(f"{path.stem}-status{path.suffix}")


def status(socket_path: str | Path, timeout_s: float = STATUS_LIMIT_S) -> dict[str, Any]:
    """Return the status of the daemon that is asked at *socket_path*; any user may ask for it.

    Raises:
        RequestError: As `ask`.
    """
    return ask(status_path(socket_path), {"v": 1, "op": "status"}, timeout_s)


def find_status(paths: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the first of *paths* where a gpusaged answers, and its status.

    Raises:
        RequestError: No daemon answers; the error is about the first path.
    """
    for path in paths:
        with suppress(RequestError):
            return path, status(path)
    # No socket answered: the first one is tried once more, so that its error reaches the caller.
    return paths[0], status(paths[0])


def read_status(paths: Sequence[str]) -> tuple[str, dict[str, Any] | None, str]:
    """Return the result of `find_status`; else the first path, nothing, and why the daemon does not answer."""
    try:
        return *find_status(paths), ""
    except RequestError as error:
        return paths[0], None, str(error)


def in_force(document: Mapping[str, Any]) -> Configuration:
    """Return the settings in a daemon's status *document*, which it uses even while the file is broken."""
    known = {"mode": document.get("mode"), "kill_switch": document.get("kill_switch", {}).get("path")}
    settings = {key: value for key, value in known.items() if isinstance(value, str)}
    return replace(default_configuration(), **settings, origins=dict.fromkeys(settings, "gpusaged"))  # type: ignore[arg-type]


def ask(socket_path: str | Path, message: Mapping[str, Any], timeout_s: float = 1.0) -> dict[str, Any]:
    """Return the daemon's answer to *message*.

    Args:
        socket_path: Where gpusaged listens.
        message: As the protocol has it, for example ``{"v": 1, "op": "status"}``.
        timeout_s: Limit on the whole exchange.

    Raises:
        RequestError: No daemon listens there, it did not answer in time, or the answer is not of the protocol.
    """
    deadline_s = time.monotonic() + timeout_s
    line = bytearray()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            # Where the queue is full, the kernel lets clients wait in their order. A timeout of Python's would make the
            # socket non-blocking, and connecting to a full queue then fails with EAGAIN at once.
            limit = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            connection.connect(str(socket_path))
            connection.settimeout(timeout_s)
            connection.sendall(json_line(message))

            while not line.endswith(b"\n"):
                # Each chunk gets what is left of the one limit.
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError("timed out")  # noqa: EM101, TRY003 - becomes a part of the sentence below
                connection.settimeout(left_s)
                chunk = connection.recv(65536)
                if not chunk or len(line) > ANSWER_LIMIT_BYTES:
                    reason = "the connection ended before a whole line" if not chunk else "an answer above 1 MiB"
                    raise ConnectionError(reason)
                line += chunk
        answer = json.loads(line)
    except (OSError, ValueError) as error:
        reason = f"Daemon at {str(socket_path)!r} must answer within {timeout_s:g} s; got: {error}. Start gpusaged."
        raise RequestError(reason) from error

    if not isinstance(answer, dict):
        reason = f"Daemon at {str(socket_path)!r} must answer with an object; got {bytes(line[:40])!r}. Update gpusage."
        raise RequestError(reason)
    return answer
