"""A stranger who floods a socket, as a process of its own: `python flood.py SOCKET KIND [UID]`, until it is ended."""

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

LINES = {"status": b'{"v":1,"op":"status"}\n' * 1000, "newlines": b"\n" * 100_000, "storm": b""}


def flood(path: str, kind: str) -> None:
    """Connect, send as much as is taken, throw away what comes back; again and again, and at once."""
    buffer = bytearray(65536)
    while True:
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.connect(path)
            connection.setblocking(False)
            while LINES[kind]:
                with suppress(BlockingIOError):
                    connection.send(LINES[kind])
                with suppress(BlockingIOError):
                    if not connection.recv_into(buffer):
                        break


if __name__ == "__main__":
    if len(sys.argv) > 3:
        os.setgroups([])
        os.setuid(int(sys.argv[3]))
    if not Path(sys.argv[1]).is_socket():
        sys.exit(f"nothing to flood at {sys.argv[1]}")
    flood(sys.argv[1], sys.argv[2])
