"""A thread of the daemon that looks again and again; whatever goes wrong in one look, the next may succeed."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

from gpusage.error_text import sentence

_log = logging.getLogger(__name__)


class Watch(ABC):
    """Looks in a thread of its own.

    Args:
        name: Of the thread.
        complaint: What cannot be done when a look fails, for the log.

    Attributes:
        error: Why the last look failed; ``None`` where it did not.
    """

    def __init__(self, name: str, complaint: str) -> None:
        self.error: str | None = None
        self._name = name
        self._complaint = complaint
        self._stop = threading.Event()

    def start(self) -> None:
        """Look from now on."""
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """End the thread, soon."""
        self._stop.set()

    def look(self) -> None:
        """Look once, and complain of the same trouble once."""
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - an adapter, a plugin or a store may fail in any way
            trouble = sentence(error)
            if trouble != self.error:
                _log.warning("%s: %s", self._complaint, trouble)
            self.error = trouble
        else:
            self.error = None

    @abstractmethod
    def _look(self) -> None:
        """Look, and fail in any way."""

    @abstractmethod
    def _pause_s(self) -> float:
        """Return how long to wait before the next look."""

    def _is_due(self) -> bool:
        """Tell whether there is anything to look at."""
        return True

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s()):
            if self._is_due():
                self.look()
