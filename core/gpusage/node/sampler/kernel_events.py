"""What the kernel tells root of other processes: which of them open a file, and which end with an error.

Linux's interfaces for both have no module in the standard library: fanotify(7) and the process connector
(linux/cn_proc.h). Both cost nothing while nothing happens, and neither slows the processes that they tell of.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

_NETLINK_CONNECTOR, _CN_IDX_PROC, _NLMSG_DONE = 11, 1, 3
_LISTEN = 1
_NO_EVENT, _EXIT_EVENT = 0, 0x80000000
_EVENT_AT, _PID_AT, _TGID_AT, _STATUS_AT, _PARENT_AT = 36, 52, 56, 60, 72
"""Offsets in a message: behind nlmsghdr (16 bytes) and cn_msg (20) come the event and its clock, then who ended how."""
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33
_QUEUE_BYTES = 4 << 20
"""Room for some thousand ends between two readings."""
_ANSWER_S = 0.5
_FILTER = b"".join(
    struct.pack("=HBBI", *instruction)
    for instruction in (
        (0x20, 0, 0, _EVENT_AT),
        (0x15, 8, 0, _NO_EVENT),  # the kernel's answer: kept
        # A load takes its bytes as a big-endian number.
        (0x15, 0, 6, int.from_bytes(_EXIT_EVENT.to_bytes(4, sys.byteorder), "big")),
        (0x20, 0, 0, _PID_AT),
        (0x07, 0, 0, 0),  # into the other register
        (0x20, 0, 0, _TGID_AT),
        (0x1D, 0, 2, 0),  # a thread's end: dropped
        (0x20, 0, 0, _STATUS_AT),
        (0x15, 0, 1, 0),  # status 0: dropped
        (0x06, 0, 0, 0),
        (0x06, 0, 0, 0xFFFFFFFF),
    )
)
"""Classic BPF that keeps the ends of whole processes with a status that is not 0: (code, then, else, operand) each."""
_ANSWER_AT = 28
"""Offset of a number that the kernel increases in its answer."""

_FAN_CLOEXEC, _FAN_NONBLOCK, _FAN_REPORT_FID = 0x1, 0x2, 0x200
_FAN_MARK_ADD, _AT_FDCWD = 0x1, -100
_FAN_OPEN, _FAN_CLOSE_NOWRITE = 0x20, 0x10
_EVENT = struct.Struct("=IBBHQii")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEvents:
    """Processes that opened files.

    Attributes:
        users: Who opened one of the watched devices.
        readers: Who has read one of the other files, and closed it.
    """

    users: frozenset[int] = frozenset()
    readers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitEvent:
    """The end of a process.

    Attributes:
        status: As wait(2) has it.
        parent: Its parent; 0 if unknown.
    """

    pid: int
    status: int
    parent: int


class OpenWatch:
    """Tells who opens devices, and who reads files.

    Args:
        devices: Files of which an opening counts.
        files: Files of which the end of a reading counts.

    Raises:
        OSError: The kernel refuses: it is older than 5.1, or this process has no CAP_SYS_ADMIN.
    """

    def __init__(self, devices: Iterable[Path], files: Iterable[Path]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        # The kernel reports an identifier of the file. Otherwise it would open each device anew for us.
        self._descriptor = self._libc.fanotify_init(_FAN_CLOEXEC | _FAN_NONBLOCK | _FAN_REPORT_FID, os.O_RDONLY)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "fanotify_init")
        for paths, mask in ((devices, _FAN_OPEN), (files, _FAN_CLOSE_NOWRITE)):
            for path in paths:
                name = ctypes.c_char_p(os.fsencode(path))
                if self._libc.fanotify_mark(self._descriptor, _FAN_MARK_ADD, ctypes.c_uint64(mask), _AT_FDCWD, name):
                    os.close(self._descriptor)
                    raise OSError(ctypes.get_errno(), "fanotify_mark", str(path))

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to read."""
        return int(self._descriptor)

    def close(self) -> None:
        """Watch no longer."""
        os.close(self._descriptor)

    def read(self) -> OpenEvents:
        """Return what happened since the last reading."""
        users, readers = set(), set()
        with suppress(BlockingIOError):
            while True:
                events = os.read(self._descriptor, 1 << 16)
                while events:
                    length, _, _, _, mask, _, pid = _EVENT.unpack_from(events)
                    events = events[length:]
                    # The kernel joins events of one process on one file.
                    if mask & _FAN_OPEN:
                        users.add(pid)
                    if mask & _FAN_CLOSE_NOWRITE:
                        readers.add(pid)
        return OpenEvents(users=frozenset(users), readers=frozenset(readers))


class ExitWatch:
    """Tells which processes end with a status that is not 0.

    The kernel sends every fork, exec and end of every process. A filter in the kernel drops all but the ends that
    count, so that a node that starts a thousand processes a second wakes nobody here.

    Raises:
        OSError: The kernel refuses: this process has no CAP_NET_ADMIN, or is in a container with its own processes.
    """

    def __init__(self) -> None:
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_NETLINK, kind, _NETLINK_CONNECTOR)
        with ExitStack() as on_error:
            on_error.callback(self._socket.close)
            # The filter first: on a busy node more than the queue holds would come before the answer.
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUEUE_BYTES)
            program = ctypes.create_string_buffer(_FILTER, len(_FILTER))
            settings = struct.pack("HL", len(_FILTER) // 8, ctypes.addressof(program))
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, settings)
            self._socket.bind((0, _CN_IDX_PROC))
            number = os.getpid()
            body = struct.pack("=IIIIHHI", _CN_IDX_PROC, 1, 0, number, 4, 0, _LISTEN)
            self._socket.send(struct.pack("=IHHII", 16 + len(body), _NLMSG_DONE, 0, 0, 0) + body)

            # The kernel answers with an event of no kind and an error number; in a container it is silent.
            event, answer_number, error = _EXIT_EVENT, 0, 0
            while event != _NO_EVENT or answer_number != number + 1:
                if not select.select([self._socket], [], [], _ANSWER_S)[0]:
                    message = "the kernel tells no ends of processes here"
                    raise OSError(message)
                answer = self._socket.recv(256)
                event, answer_number, error = (
                    struct.unpack_from("=I", answer, offset)[0] for offset in (_EVENT_AT, _ANSWER_AT, _PID_AT)
                )
            if error:
                raise OSError(error, os.strerror(error))
            on_error.pop_all()

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to read."""
        return self._socket.fileno()

    def close(self) -> None:
        """Listen no longer."""
        self._socket.close()

    def read(self) -> Iterator[ExitEvent]:
        """Yield the ends since the last reading."""
        while True:
            try:
                message = self._socket.recv(256)
            except BlockingIOError:
                return
            except OSError:  # ENOBUFS: more ended than the queue holds, and some are lost
                continue
            if struct.unpack_from("=I", message, _EVENT_AT)[0] == _EXIT_EVENT:
                pid, tgid, status = struct.unpack_from("=III", message, _PID_AT)
                if pid == tgid and status:
                    # Kernels before 4.18 name no parent, and the message is shorter.
                    (parent,) = struct.unpack_from("=I", message, _PARENT_AT) if len(message) > _PARENT_AT + 3 else (0,)
                    yield ExitEvent(pid=pid, status=status, parent=parent)
