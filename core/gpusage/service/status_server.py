"""The socket for everyone: one line, one answer, good-bye. Visitors do not wait in the queue of questions.

Invariants:

1. A visitor may see that the daemon lives and how it fares, and gets no verdict, whoever he is.
2. Visitors cost the event loop little, however many come: it lets in one every few milliseconds; the others wait.
3. Nobody holds a place for long, and nobody holds all of them.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import suppress

from gpusage.service.dispatcher import Dispatcher
from gpusage.service.peer import peer_uid

BACKLOG = 32
PAUSE_S = 0.005
LIMIT_S = 2.0
PLACES, PLACES_PER_USER = 32, 8
LINE_LIMIT_BYTES, PIECES = 1024, 4


class StatusServer:
    """Lets visitors in and answers them.

    Args:
        dispatcher: Knows what may be told.
        loop: The running event loop.
    """

    def __init__(self, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop) -> None:
        self._dispatcher = dispatcher
        self._loop = loop
        self._here: Counter[int] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._receiving: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket) -> None:
        """Let visitors in from now on, at *listening* alone."""
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
        listening.listen(BACKLOG)
        listening.setblocking(False)
        self._receiving = self._loop.create_task(self._receive(listening))
        self._keep(self._receiving)

    async def close(self) -> None:
        """Send everyone away."""
        for task in (tasks := [*self._tasks]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Hold *task* until it is done; the loop itself would forget it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _receive(self, listening: socket.socket) -> None:
        """Let in one after another, with a pause in between in which those who ask are served."""
        while True:
            with suppress(OSError):  # gone again, or no descriptor is free: the pause mends both
                connection, _ = await self._loop.sock_accept(listening)
                self._welcome(connection)
            await asyncio.sleep(PAUSE_S)

    def _welcome(self, connection: socket.socket) -> None:
        """Give *connection* a place, where there is one."""
        with suppress(OSError):
            uid = peer_uid(connection)
            if self._here.total() < PLACES and self._here[uid] < PLACES_PER_USER:
                self._keep(self._loop.create_task(self._attend(connection, uid)))
                return
        connection.close()

    async def _attend(self, connection: socket.socket, uid: int) -> None:
        """Answer one line, within a limit on the whole visit."""
        self._here[uid] += 1
        try:
            with connection, suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self._answered(connection, uid), LIMIT_S)
        finally:
            self._here[uid] -= 1

    async def _answered(self, connection: socket.socket, uid: int) -> None:
        line, end, _ = (await self._received(connection)).partition(b"\n")
        if end:
            await self._loop.sock_sendall(connection, self._dispatcher.tell(line, uid))

    async def _received(self, connection: socket.socket) -> bytes:
        """Return what comes, in a few pieces, up to the end of the first line."""
        received = b""
        for _ in range(PIECES):
            piece = await self._loop.sock_recv(connection, LINE_LIMIT_BYTES - len(received))
            received += piece
            if not piece or b"\n" in piece:
                break
        return received
