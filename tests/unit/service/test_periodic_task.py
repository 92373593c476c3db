"""A thread that runs a task again and again."""

from __future__ import annotations

import logging
import threading

import pytest

from gpusage.service.periodic_task import PeriodicTask
from waiting import LIMIT_S


class Counted(PeriodicTask):
    """Fails in its first two runs."""

    def __init__(self) -> None:
        super().__init__("counted", "nothing can be counted")
        self.count = 0
        self.enough = threading.Event()

    def execute(self) -> None:
        """Fail twice, then succeed."""
        self.count += 1
        if self.count <= 2:
            raise OSError("full disk")
        if self.count > 3:
            self.enough.set()  # the run before this one succeeded

    def interval_s(self) -> float:
        """Return a moment."""
        return 0.001


def test_a_run_that_fails_is_logged_once_and_the_next_may_succeed(caplog: pytest.LogCaptureFixture) -> None:
    task = Counted()
    with caplog.at_level(logging.WARNING):
        task.run_once()
        task.run_once()
        assert task.error is not None
        task.start()
        assert task.enough.wait(LIMIT_S)
        task.stop()
    assert (task.error, len(caplog.messages)) == (None, 1)
    assert caplog.messages[0].startswith("nothing can be counted: ")
