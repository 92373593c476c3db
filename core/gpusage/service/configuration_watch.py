"""The configuration as its file has it now, with those who may ask by it.

Invariants:

1. A file is read again once it has changed and then stays the same for one look: somebody may be writing still.
2. A file that cannot be used changes nothing but `ConfigurationWatch.trouble`.
"""

from __future__ import annotations

import logging
from pathlib import Path

from gpusage.configuration import Configuration
from gpusage.configuration_file import Managers, configuration_path, load_configuration
from gpusage.service.peer import allowed_uids
from gpusage_hooks.errors import GpuUsageError

_log = logging.getLogger(__name__)


class ConfigurationWatch:
    """Keeps the newest configuration that can be used.

    Args:
        configuration: What the daemon was started with.
        managers: Whose sections may be in the file.
        path: The configuration's file, ``None`` for the usual one.

    Attributes:
        configuration: The newest one.
        trusted_uids: Who may ask; looked up only when a configuration is new, because a directory service may take its
            time.
        trouble: Why the file as it is now cannot be used; ``None`` where it can.
    """

    def __init__(self, configuration: Configuration, managers: Managers, path: Path | None) -> None:
        self.configuration = configuration
        self.trusted_uids = _trusted_uids(configuration)
        self.trouble: str | None = None
        self._managers = managers
        self._path = path
        self._read_as: object = None
        self._seen_as: object = None

    @property
    def path(self) -> Path:
        """Return where the file is, or would be."""
        return self._path or configuration_path()

    def start(self) -> None:
        """Take the file as it is now for what the daemon was started with."""
        self._read_as = _signature(self.path)

    def look(self) -> None:
        """Read the file again, where it has changed."""
        signature = _signature(self.path)
        if signature == self._read_as:
            return
        if signature != self._seen_as:
            self._seen_as = signature
            return
        self._read_as = signature
        try:
            self.configuration = load_configuration(self._path, self._managers)
        except GpuUsageError as error:
            self.trouble = str(error)
            _log.warning("configuration unchanged: %s", error)
        else:
            self.trouble = None
            self.trusted_uids = _trusted_uids(self.configuration)
            _log.info("configuration read again: mode %s", self.configuration.mode)


def _trusted_uids(configuration: Configuration) -> frozenset[int]:
    uids, unknown = allowed_uids(configuration.daemon.allowed_users)
    if unknown:
        _log.warning("daemon.allowed_users names users whom this host does not know: %s", ", ".join(unknown))
    return uids


def _signature(path: Path) -> object:
    """Return something that changes when the file does; files may be replaced within one tick of the clock."""
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size
