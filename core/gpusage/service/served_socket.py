"""A socket's file with its server; if somebody deletes the file, it is made again.

Invariants:

1. Bound before anything is started, so that a daemon that cannot listen says so; served from `open` on.
2. What others put in the file's place is left alone.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from gpusage.service import listening
from gpusage_hooks.errors import GpuUsageError

_log = logging.getLogger(__name__)
Serve = Callable[[socket.socket], Awaitable[None]]


class ServedSocket:
    """One socket.

    Args:
        path: Of its file.
        grant: Gives those who may connect their right to the file.

    Raises:
        RequestError: Another file is at *path*, another daemon listens there, or the folder cannot be used.
    """

    def __init__(self, path: Path, grant: Callable[[Path], object]) -> None:
        self.path = path
        self._grant = grant
        self._serve: Serve | None = None
        self._told_of: listening.Identity | None = None
        self._bind()

    def close(self) -> None:
        """Remove the file, unless somebody has put another in its place."""
        listening.remove(self.path, self._ours)
        self._socket.close()

    async def open(self, serve: Serve) -> None:
        """Let *serve* take those who come from now on; it is called again with another socket in this one's place."""
        self._serve = serve
        await serve(self._socket)

    def grant(self) -> None:
        """Give those who may connect by now their right to the file, where it is still ours."""
        with suppress(OSError), listening.held(self.path) as file:
            status = file.stat()
            if (status.st_dev, status.st_ino) == self._ours:
                self._grant(file)

    async def mend(self) -> None:
        """Make the file again, where it is gone."""
        there = listening.identity(self.path)
        if self._serve is None or there is not None:
            self._tell_of(there)
            return
        old = self._socket
        try:
            self._bind()
        except GpuUsageError as error:  # its folder is gone, too: perhaps it comes back
            _log.warning("the socket was deleted and cannot be made again: %s", error)
            return
        await self._serve(self._socket)
        old.close()
        _log.warning("socket %s was deleted; it is there again", self.path)

    def _tell_of(self, there: listening.Identity | None) -> None:
        """Say once what nobody else will: that those who ask come to somebody else."""
        if there not in (None, self._ours, self._told_of):
            _log.warning("socket %s is not ours any more; remove what stands there, and it is made again", self.path)
        self._told_of = there

    def _bind(self) -> None:
        self._socket = listening.bind(self.path, self._grant)
        self._ours = listening.identity(self.path)
