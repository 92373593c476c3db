"""The servers of both sockets: connections, their limits, and the lines that they send.

Invariants of the request socket:

1. Only whole lines are dispatched.
2. One request of a connection is in work at a time, so that answers leave in order and nothing piles up.
3. An idle connection is closed, and one of a user who may not ask is closed at once.
4. A connection that sends many lines has a few of them read at a time; the others are served in between.

Invariants of the status socket, which everyone may use, one line per connection:

1. A client sees that the daemon lives and its status, and gets no decision, whoever it is.
2. Clients cost the event loop little, however many come: it accepts one every few milliseconds; the others wait.
3. No connection lasts long, and no user has all of them.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import cast

from gpusage.service.dispatcher import Dispatcher
from gpusage.service.protocol import LINE_LIMIT_BYTES, UNCHANGED, ProtocolError
from gpusage.service.sockets import peer_uid

IDLE_LIMIT_S = 5.0
"""A client that has connected and sends nothing is disconnected: it takes one of the connections."""
SWEEP_INTERVAL_S = 1.0
CONNECTIONS_LIMIT = 512
"""Half of the file descriptors that systemd gives a service by default (1,024)."""
LINES_PER_TURN = 16
"""Of one connection, before the others have their turn."""
BACKLOG = 512

STATUS_BACKLOG = 32
STATUS_ACCEPT_INTERVAL_S = 0.005
STATUS_LIMIT_S = 2.0
"""For one connection to the status socket."""
STATUS_CONNECTIONS_LIMIT, STATUS_USER_CONNECTIONS_LIMIT = 32, 8
STATUS_LINE_LIMIT_BYTES, STATUS_CHUNKS_LIMIT = 1024, 4


class Server:
    """Accepts connections on a listening socket.

    Args:
        dispatcher: Answers the lines.
        loop: The running event loop.
    """

    def __init__(self, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop) -> None:
        self.dispatcher = dispatcher
        self.loop = loop
        self.connections: set[Connection] = set()
        self._listening: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self, listening: socket.socket) -> None:
        """Accept connections from now on, at *listening* alone."""
        before = self._listening
        self._listening = await self.loop.create_unix_server(partial(Connection, self), sock=listening, backlog=BACKLOG)
        # A deleted socket was made again: who is connected to the old one stays.
        if before is None:
            self._sweep()
        else:
            before.close()

    async def close(self, limit_s: float = 0.5) -> None:
        """Accept no more, and let requests in work be answered within *limit_s*."""
        if self._listening is not None:
            self._listening.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        deadline_s = self.loop.time() + limit_s
        while any(each.busy for each in self.connections) and self.loop.time() < deadline_s:  # noqa: ASYNC110 - simpler
            await asyncio.sleep(0.005)
        for connection in [*self.connections]:
            connection.close()
        await asyncio.sleep(0)

    def _sweep(self) -> None:
        """Close idle connections."""
        oldest_s = self.loop.time() - IDLE_LIMIT_S
        for connection in [*self.connections]:
            if connection.active_at_s < oldest_s:
                connection.close()
        self._sweeper = self.loop.call_later(SWEEP_INTERVAL_S, self._sweep)


class Connection(asyncio.Protocol):
    """One client's end."""

    def __init__(self, server: Server) -> None:
        self.busy = False
        self.active_at_s = server.loop.time()
        self._server = server
        self._buffer = bytearray()
        self._searched_bytes = 0
        self._is_advancing = False
        self._is_turn_due = False
        self._ended = False
        self._is_write_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the client, by its user id from the kernel."""
        self._transport = cast("asyncio.Transport", transport)
        try:
            self._uid = peer_uid(transport.get_extra_info("socket"))
        except OSError:
            self._uid = -1

        # Not among too many already, and never a user who may not ask.
        server = self._server
        if not server.dispatcher.trusts(self._uid):
            server.dispatcher.refuse(self._uid)
            self._transport.abort()
        elif len(server.connections) >= CONNECTIONS_LIMIT:
            self._transport.abort()
        else:
            server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Forget the client; an answer still in work will go nowhere."""
        self._ended = True
        self._buffer.clear()
        self._server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Add *data*, and answer the lines that are whole."""
        self._buffer += data
        self._advance()

    def eof_received(self) -> bool:
        """Stay open while an answer is owed to a client that only stopped sending."""
        # `printf ... | nc -U` ends its side at once.
        self._ended = True
        return self.busy or self._is_turn_due

    def pause_writing(self) -> None:
        """Answer no more while the client reads nothing."""
        self._is_write_paused = True

    def resume_writing(self) -> None:
        """Answer again when the client reads again."""
        self._is_write_paused = False
        self._advance()

    def close(self) -> None:
        """Close the connection, and drop unsent bytes."""
        self._transport.abort()

    def _advance(self) -> None:
        """Dispatch whole lines, one at a time; called again by each reply, and after the other connections' turn."""
        if self._is_advancing:
            return
        self._is_advancing, self._is_turn_due = True, False

        for _ in range(LINES_PER_TURN):
            if self.busy or self._is_write_paused or (line := self._line()) is None:
                break
            self.busy = True
            self.active_at_s = self._server.loop.time()
            try:
                self._server.dispatcher.respond(line, self._uid, self._reply, self._send)
            except ProtocolError:
                self.busy = False
                self._reject()
        else:
            self._is_turn_due = True
            self._server.loop.call_soon(self._advance)
        self._is_advancing = False

        # Read only what can be worked on; close when the client has ended and has its answers.
        if self._transport.is_closing():
            return
        if self._ended and not self.busy and not self._is_turn_due:
            self._transport.close()
            return
        with suppress(RuntimeError):  # the transport was closed meanwhile
            if len(self._buffer) > LINE_LIMIT_BYTES:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _reject(self) -> None:
        """Answer that no job changes, and read no more of a client that does not speak the protocol."""
        self._buffer.clear()
        self._searched_bytes = 0
        self._ended = True
        self._transport.write(UNCHANGED.line())

    def _line(self) -> bytes | None:
        """Return the next whole line, or ``None``; ends a connection whose line is too long."""
        # A long line that comes in many pieces is searched once, not once per piece.
        end = self._buffer.find(b"\n", self._searched_bytes)
        if end > LINE_LIMIT_BYTES or (end < 0 and len(self._buffer) > LINE_LIMIT_BYTES):
            self._reject()
            return None
        if end < 0:
            self._searched_bytes = len(self._buffer)
            return None

        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched_bytes = 0
        return line

    def _reply(self, response: bytes) -> None:
        self.busy = False
        self._send(response)

        # Further lines may have come meanwhile.
        self._advance()

    def _send(self, content: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(content)


class StatusServer:
    """Accepts connections on the status socket and answers them.

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
        listening.listen(STATUS_BACKLOG)
        listening.setblocking(False)
        self._accepting = self._loop.create_task(self._accept(listening))
        self._keep_reference(self._accepting)

    async def close(self) -> None:
        """Close all connections."""
        # A copy: each task leaves the set when it ends.
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
                try:
                    uid = peer_uid(connection)
                    is_admitted = (
                        self._connections.total() < STATUS_CONNECTIONS_LIMIT
                        and self._connections[uid] < STATUS_USER_CONNECTIONS_LIMIT
                    )
                except OSError:
                    is_admitted = False
                if is_admitted:
                    self._keep_reference(self._loop.create_task(self._serve(connection, uid)))
                else:
                    connection.close()
            await asyncio.sleep(STATUS_ACCEPT_INTERVAL_S)

    async def _serve(self, connection: socket.socket, uid: int) -> None:
        """Answer one line, within a limit on the whole connection."""
        self._connections[uid] += 1
        try:
            with connection, suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self._respond(connection, uid), STATUS_LIMIT_S)
        finally:
            self._connections[uid] -= 1

    async def _respond(self, connection: socket.socket, uid: int) -> None:
        """Read a few chunks, up to the end of the first line or a little more, and answer the line."""
        received = b""
        for _ in range(STATUS_CHUNKS_LIMIT):
            chunk = await self._loop.sock_recv(connection, STATUS_LINE_LIMIT_BYTES - len(received))
            received += chunk
            if not chunk or b"\n" in chunk:
                break

        line, end, _rest = received.partition(b"\n")
        if end:
            await self._loop.sock_sendall(connection, self._dispatcher.respond_status(line, uid))
