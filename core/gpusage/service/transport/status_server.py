"""The status socket, which everyone may use: one line, one answer per connection, apart from the requests' queue.

Invariants:

1. A client sees that the daemon lives and its status, and gets no decision, whoever it is.
2. Clients cost the event loop little, however many come: it accepts one every few milliseconds; the others wait.
3. No connection lasts long, and no user has all of them.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import suppress

from gpusage.service.transport.access import peer_uid
from gpusage.service.transport.dispatcher import Dispatcher

BACKLOG = 32
ACCEPT_INTERVAL_S = 0.005
LIMIT_S = 2.0
"""For one connection."""
CONNECTIONS_LIMIT, CONNECTIONS_PER_USER_LIMIT = 32, 8
LINE_LIMIT_BYTES, CHUNKS_LIMIT = 1024, 4


class StatusServer:
    """Accepts connections and answers them.

    Args:
        dispatcher: Answers the lines.
        loop: The running event loop.
    """

    def __init__(self, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop) -> None:
        self._dispatcher = dispatcher
        self._loop = loop
        self._connections: Counter[int] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket) -> None:
        """Accept connections from now on, at *listening* alone."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        listening.listen(BACKLOG)
        listening.setblocking(False)
        self._accepting = self._loop.create_task(self._accept(listening))
        self._keep_reference(self._accepting)

    async def close(self) -> None:
        """Close all connections."""
        for task in (tasks := [*self._tasks]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _keep_reference(self, task: asyncio.Task[None]) -> None:
        """Hold *task* until it is done; the loop has only a weak reference."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        """Accept one after another, with a pause in between in which requests are served."""
        while True:
            with suppress(OSError):  # gone again, or no descriptor is free: the pause mends both
                connection, _ = await self._loop.sock_accept(listening)
                self._admit(connection)
            await asyncio.sleep(ACCEPT_INTERVAL_S)

    def _admit(self, connection: socket.socket) -> None:
        """Serve *connection*, unless there are too many."""
        with suppress(OSError):
            uid = peer_uid(connection)
            if self._connections.total() < CONNECTIONS_LIMIT and self._connections[uid] < CONNECTIONS_PER_USER_LIMIT:
                self._keep_reference(self._loop.create_task(self._serve(connection, uid)))
                return
        connection.close()

    async def _serve(self, connection: socket.socket, uid: int) -> None:
        """Answer one line, within a limit on the whole connection."""
        self._connections[uid] += 1
        try:
            with connection, suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self._respond(connection, uid), LIMIT_S)
        finally:
            self._connections[uid] -= 1

    async def _respond(self, connection: socket.socket, uid: int) -> None:
        line, end, _ = (await self._receive_line(connection)).partition(b"\n")
        if end:
            await self._loop.sock_sendall(connection, self._dispatcher.respond_status(line, uid))

    async def _receive_line(self, connection: socket.socket) -> bytes:
        """Return what comes, in a few chunks, up to the end of the first line or a little more."""
        received = b""
        for _ in range(CHUNKS_LIMIT):
            chunk = await self._loop.sock_recv(connection, LINE_LIMIT_BYTES - len(received))
            received += chunk
            if not chunk or b"\n" in chunk:
                break
        return received
