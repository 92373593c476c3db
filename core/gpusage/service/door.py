"""A socket's file with whoever serves behind it; where somebody deletes the file, it is made again.

Invariants:

1. Bound before anything is started, so that a daemon that cannot listen says so; served from `open` on.
2. What others put in the file's place is left alone.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from gpusage.service import listening
from gpusage_hooks.errors import GpuUsageError

_log = logging.getLogger(__name__)
Serve = Callable[[socket.socket], Awaitable[None]]


class Door:
    """One socket.

    Args:
        path: Of its file.
        grant: Gives those who may connect their right to the file.

    Raises:
        RequestError: Something else stands there, a daemon listens there, or the folder cannot be used.
    """

    def __init__(self, path: Path, grant: Callable[[Path], object]) -> None:
        self.path = path
        self._grant = grant
        self._serve: Serve | None = None
        self._bind()

    def close(self) -> None:
        """Remove the file, unless somebody has put another in its place."""
        listening.remove(self.path, self._ours)
        self._socket.close()

    async def open(self, serve: Serve) -> None:
        """Let *serve* take those who come from now on; it is called again with another socket in this one's place."""
        self._serve = serve
        await serve(self._socket)

    async def mend(self) -> None:
        """Make the file again, where it is gone."""
        if self._serve is None or listening.identity(self.path) is not None:
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

    def _bind(self) -> None:
        self._socket = listening.bind(self.path, self._grant)
        self._ours = listening.identity(self.path)
