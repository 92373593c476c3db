"""A background thread of the daemon that runs one task again and again; after a failed run the next may succeed."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

from gpusage.plugins.hooks import sentence

_log = logging.getLogger(__name__)


class PeriodicTask(ABC):
    """Runs in a thread of its own.

    Args:
        name: Of the thread.
        failure_message: The consequence of a failed run, for the log.

    Attributes:
        error: Why the last run failed; ``None`` where it did not.
        runs_at_start: Whether the first run comes before the first interval.
    """

    runs_at_start = False

    def __init__(self, name: str, failure_message: str) -> None:
        self.error: str | None = None
        self._name = name
        self._failure_message = failure_message
        self._stop = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._loop, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """End the thread, soon."""
        self._stop.set()

    def run_once(self) -> None:
        """Run the task once; log a failure, unless the last run failed in the same way."""
        try:
            self.execute()
        except Exception as error:  # an adapter, a plugin or a store may fail in any way
            # A server that is away for a day is one line in the log.
            reason = sentence(error)
            if reason != self.error:
                _log.warning("%s: %s", self._failure_message, reason)
            self.error = reason
        else:
            self.error = None

    @abstractmethod
    def execute(self) -> None:
        """Do the work; any exception is logged."""

    @abstractmethod
    def interval_s(self) -> float:
        """Return how long to wait before the next run."""

    def is_due(self) -> bool:
        """Return whether there is anything to do."""
        return True

    def _loop(self) -> None:
        if self.runs_at_start:
            self.run_once()
        while not self._stop.wait(self.interval_s()):
            if self.is_due():
                self.run_once()
