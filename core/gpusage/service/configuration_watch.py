"""The site's word, as its files have it now: the configuration, the users who may ask, the kill switch.

Invariants:

1. A changed file is read once two checks in a row see the same: somebody may still be writing.
2. A file that cannot be used changes nothing but `ConfigurationWatcher.error`.
3. A file that is empty or gone, or holds only the beginning of what was read before, may be half written. The last good
   one stays in force: for `TRUNCATION_LIMIT_S` where something is left, else for good.
"""

from __future__ import annotations

import logging
import os
import pwd
import time
from collections.abc import Iterable
from pathlib import Path

from gpusage.settings.configuration import Configuration
from gpusage.settings.configuration_file import Managers, configuration_path, load_configuration
from gpusage_hooks.errors import GpuUsageError

TRUNCATION_LIMIT_S = 30.0
"""A file that is being written is whole by then; one that is still truncated was meant to be."""

_log = logging.getLogger(__name__)


class ConfigurationWatcher:
    """Has the newest configuration that can be used.

    Args:
        configuration: At the daemon's start.
        managers: Whose sections may be in the file.
        path: The configuration's file, ``None`` for the usual one.

    Attributes:
        configuration: The newest one.
        trusted_uids: Who may ask; looked up only for a new configuration, because a directory service may be slow.
        error: Why the file as it is now cannot be used; ``None`` where it can.
    """

    def __init__(self, configuration: Configuration, managers: Managers, path: Path | None) -> None:
        self.configuration = configuration
        self.trusted_uids = _trusted_uids(configuration)
        self.error: str | None = None
        self._managers = managers
        self._path = path
        self._read_signature: object = None
        self._last_signature: object = None
        self._text = ""
        self._last_changed_s = 0.0

    @property
    def path(self) -> Path:
        """Return where the file is, or would be."""
        return self._path or configuration_path()

    def start(self) -> None:
        """Remember the file as it is now, which the daemon was started with."""
        self._read_signature = _signature(self.path)
        self._text = _read_text(self.path)

    def reload_if_changed(self) -> None:
        """Read the file again, where it has changed."""
        signature = _signature(self.path)
        if signature == self._read_signature:
            return
        if signature != self._last_signature:
            self._last_signature, self._last_changed_s = signature, time.monotonic()
            return

        text = _read_text(self.path)
        # Nothing is left, or the beginning alone: the file may be half-written.
        is_beginning = len(text) < len(self._text) and self._text.startswith(text)
        is_recent = time.monotonic() - self._last_changed_s < TRUNCATION_LIMIT_S
        if (is_beginning and is_recent) if text.strip() else self._text.strip():
            self._report("it is empty, gone, or ends before what was read of it last; it seems to be written")
            return

        self._read_signature, self._text = signature, text
        try:
            self.configuration = load_configuration(self._path, self._managers)
        except GpuUsageError as error:
            self._report(str(error))
        else:
            self.error = None
            self.trusted_uids = _trusted_uids(self.configuration)
            _log.info("configuration read again: mode %s", self.configuration.mode)

    def _report(self, reason: str) -> None:
        """Log once why the last good configuration stays in force."""
        if reason != self.error:
            _log.warning("configuration unchanged: %s", reason)
        self.error = reason


def _trusted_uids(configuration: Configuration) -> frozenset[int]:
    """Return the ids of the users who may ask, with the daemon's own."""
    uids, unknown = known_uids(configuration.daemon.allowed_users)
    if unknown:
        _log.warning("daemon.allowed_users names users whom this host does not know: %s", ", ".join(unknown))
    return uids | {os.geteuid()}


def known_uids(users: Iterable[str]) -> tuple[frozenset[int], tuple[str, ...]]:
    """Return the ids of *users*, names or numbers, and the names that the host does not know."""
    uids: set[int] = set()
    unknown = []
    for user in users:
        # Other scripts' digits are digits to Python, too.
        if user.isascii() and user.isdigit():
            uids.add(int(user))
            continue
        try:
            uids.add(pwd.getpwnam(user).pw_uid)
        except (KeyError, ValueError):
            unknown.append(user)

    return frozenset(uids), tuple(unknown)


def kill_reason(path: str) -> str | None:
    """Return why nothing may be rewritten: *path* exists, or cannot be checked; ``None`` where it does not exist."""
    if not path:
        return None

    try:
        # A link that leads nowhere is a switch as well.
        Path(path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"the kill switch {path} cannot be read ({error.strerror})"
    return f"the kill switch is on ({path})"


def _read_text(path: Path) -> str:
    """Return the file's text, none where it is gone; `load_configuration` says why it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        return str(error)


def _signature(path: Path) -> object:
    """Return something that changes when the file does; files may be replaced within one tick of the clock."""
    # A file that is gone or cannot be read is a state as well.
    try:
        status = path.stat()
    except OSError as error:
        return error.errno

    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size
