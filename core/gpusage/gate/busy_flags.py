"""Busy flags: a small file that inference and training map into memory, with one byte per process that serves.

Invariants:

1. Each process that serves has a byte of its own and a lock on it, which the kernel frees at the end of the process,
   however it ends. The byte of an ended process counts for nothing at the next reading.
2. Serving never waits for training.
3. The file lies in a folder that only its user can enter: nobody else can hold this user's training.
4. Its memory is there before it is touched: on a full file system there are no flags, and no SIGBUS.
5. A program goes on without flags: another user may have taken the folder's name.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import mmap
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from gpusage_hooks.errors import RequestError

_log = logging.getLogger(__name__)
FOLDER_VARIABLE = "GPUSAGE_GATE"
PLACES = 64
"""Number of processes that can serve with one file."""
FREE, PRESENT, BUSY = 0, 1, 2
"""States of a byte: no process; a serving process; a request in flight."""
_BUSY = bytes([BUSY])
_EMPTY = bytes(PLACES)


class BusyFlags:
    """The flags in the file at *path*. One object per process and path: closing a second one would free its lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()
        os.register_at_fork(after_in_child=self._open)

    def _open(self) -> None:
        """Begin without a place; a forked child opens the file anew, because its parent's place is not its own."""
        # POSIX locks belong to a process, flock's to an open file: a child of a killed server would hold flock's.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        # On a full file system this fails here, and not with SIGBUS at the first touch of the mapping.
        os.posix_fallocate(descriptor, 0, PLACES)
        # Never closed before the end of the process: closing any descriptor of the file frees its POSIX locks.
        self._descriptor = descriptor
        self._memory = mmap.mmap(descriptor, PLACES)
        self._lock = threading.Lock()
        self._place: int | None = None
        self._in_flight = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Keep a request in flight while the block runs."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """Begin a request; requests of several threads may overlap."""
        with self._lock:
            # Without a free byte training does not see this process.
            if self._place is None:
                self._place = next((place for place in range(PLACES) if self._locked(place)), None)
            self._in_flight += 1
            if self._place is not None:
                self._memory[self._place] = BUSY

    def leave(self) -> None:
        """End a request that `enter` began."""
        with self._lock:
            self._in_flight -= 1
            if not self._in_flight and self._place is not None:
                self._memory[self._place] = PRESENT

    def is_busy(self) -> bool:
        """Return whether a request of another living process is in flight."""
        # Most readings find no such byte, and then cost no system call.
        return self._memory.find(_BUSY) >= 0 and any(self._alive(place, BUSY) for place in range(PLACES))

    def is_served(self) -> bool:
        """Return whether another living process serves here, busy or not."""
        return self._memory[:] != _EMPTY and any(self._alive(place, PRESENT) for place in range(PLACES))

    def _alive(self, place: int, least: int) -> bool:
        """Return whether another process is at *place*; clear the byte of an ended process."""
        if self._memory[place] < least or place == self._place:
            return False
        if not self._locked(place):
            return True

        # The lock was free, so its process has ended; the byte is cleared under the lock that we have now.
        self._memory[place] = FREE
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, place)
        return False

    def _locked(self, place: int) -> bool:
        """Try to lock *place*; return whether nobody else held the lock."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:
            return False
        return True


def process_flags() -> BusyFlags:
    """Return the flags that this process shares with the other processes on its GPUs.

    Raises:
        RequestError: The folder is not this user's own, or has no room.
    """
    # Processes share a file where they see the same GPUs under the same MPS daemon.
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY")
    gpus = hashlib.sha256(repr([os.environ.get(name) for name in names]).encode()).hexdigest()[:12]
    path = own_folder() / f"flags-{gpus}"
    try:
        return flags_at(path)
    except OSError as error:
        message = f"Gate {path} must be a file that can be made; got {error.strerror}. Set {FOLDER_VARIABLE}."
        raise RequestError(message) from error


def usable_flags() -> BusyFlags | None:
    """Return this process's flags; ``None``, with a line in the log, where there can be none."""
    try:
        return process_flags()
    except RequestError as error:
        _log_once(str(error))
        return None


@cache
def _log_once(reason: str) -> None:
    _log.warning("gpusage gate: not used: %s", reason)


@cache
def flags_at(path: Path) -> BusyFlags:
    """Return this process's only object for the flags at *path*.

    Raises:
        OSError: The file cannot be made.
    """
    return BusyFlags(path)


def own_folder() -> Path:
    """Return the folder of the flags, made if it does not exist; by default in shared memory.

    Raises:
        RequestError: The folder is not this user's alone.
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

    # Whoever can write to the folder can hold this user's training.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        message = (
            f"Gate's folder {folder} must be a folder of your own with mode 0700; got mode "
            f"{stat.S_IMODE(status.st_mode):04o} of user {status.st_uid}. Remove it, or set {FOLDER_VARIABLE}."
        )
        raise RequestError(message)
    return folder
