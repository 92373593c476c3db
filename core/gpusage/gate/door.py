"""The door between inference and training: a small file that both map into their memory.

Invariants:

1. Each process that serves has a byte of its own, and a lock on it that the kernel frees when the process ends, however
   it ends. The byte of a process that is gone counts for nothing, from the next look on.
2. Nobody who serves ever waits for training.
3. The file lies in a folder that only its user can enter: nobody else can hold this user's training.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from gpusage_hooks.errors import RequestError

FOLDER_VARIABLE = "GPUSAGE_GATE"
PLACES = 64
"""Processes that can serve at one door."""
FREE, PRESENT, BUSY = 0, 1, 2
"""What a byte says: nobody; a process that serves; a request of its is in flight."""
_BUSY = bytes([BUSY])
_EMPTY = bytes(PLACES)


class Door:
    """What one process sees of the door at *path*; one a process and path, for a second one would free its lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()
        os.register_at_fork(after_in_child=self._open)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Keep a request in flight for as long as the block runs."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """Begin a request; requests of several threads may overlap."""
        with self._lock:
            self._take_place()
            self._in_flight += 1
            self._say(BUSY)

    def leave(self) -> None:
        """End a request that `enter` began."""
        with self._lock:
            self._in_flight -= 1
            if not self._in_flight:
                self._say(PRESENT)

    def is_busy(self) -> bool:
        """Tell whether a request of another living process is in flight."""
        return self._memory.find(_BUSY) >= 0 and any(self._alive(place, BUSY) for place in range(PLACES))

    def is_served(self) -> bool:
        """Tell whether another living process serves here, busy or not."""
        return self._memory[:] != _EMPTY and any(self._alive(place, PRESENT) for place in range(PLACES))

    def _open(self) -> None:
        """Begin without a place; a forked child has its own file, for its parent's place is not its own."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if os.fstat(descriptor).st_size < PLACES:
            os.ftruncate(descriptor, PLACES)
        self._descriptor = descriptor  # never closed before the process ends: that would free the lock
        self._memory = mmap.mmap(descriptor, PLACES)
        self._lock = threading.Lock()
        self._place: int | None = None
        self._in_flight = 0

    def _take_place(self) -> None:
        """Take the first byte that is nobody's; where all are taken, this process serves unseen."""
        if self._place is None:
            self._place = next((place for place in range(PLACES) if self._locked(place)), None)

    def _say(self, state: int) -> None:
        if self._place is not None:
            self._memory[self._place] = state

    def _alive(self, place: int, least: int) -> bool:
        """Tell whether another process is at *place*; what one left there that is gone is wiped out."""
        if self._memory[place] < least or place == self._place:
            return False
        if not self._locked(place):
            return True
        self._memory[place] = FREE
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, place)
        return False

    def _locked(self, place: int) -> bool:
        """Take the lock of *place*; tell whether nobody else had it."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:
            return False
        return True


def door() -> Door:
    """Return this process's door to those that share its GPUs.

    Raises:
        RequestError: Its folder is not this user's own.
    """
    return door_at(own_folder() / f"door-{_shared_by()}")


@cache
def door_at(path: Path) -> Door:
    """Return the one door of this process at *path*."""
    return Door(path)


def own_folder() -> Path:
    """Return the folder of the doors, made where it is not there; by default one in shared memory.

    Raises:
        RequestError: It is not a folder of this user's alone.
    """
    shared = Path("/dev/shm")  # noqa: S108 - checked below: owner, mode and kind
    usual = (shared if shared.is_dir() else Path("/tmp")) / f"gpusage-{os.geteuid()}"  # noqa: S108 - as above
    folder = Path(os.environ.get(FOLDER_VARIABLE) or usual)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        message = f"Gate's folder {folder} must be one that can be made; got {error.strerror}. Set {FOLDER_VARIABLE}."
        raise RequestError(message) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        message = (
            f"Gate's folder {folder} must be a folder of your own with mode 0700; got mode "
            f"{stat.S_IMODE(status.st_mode):04o} of user {status.st_uid}. Remove it, or set {FOLDER_VARIABLE}."
        )
        raise RequestError(message)
    return folder


def _shared_by() -> str:
    """Return a name that processes on the same GPUs, under the same MPS daemon, have in common."""
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY")
    return hashlib.sha256(repr([os.environ.get(name) for name in names]).encode()).hexdigest()[:12]
