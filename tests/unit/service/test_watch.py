"""A thread that looks again and again."""

from __future__ import annotations

import logging
import threading

import pytest

from gpusage.service.watch import Watch
from waiting import LIMIT_S


class Counted(Watch):
    """Fails at its first two looks; each is due."""

    def __init__(self) -> None:
        super().__init__("counted", "nothing can be counted")
        self.count = 0
        self.enough = threading.Event()

    def _look(self) -> None:
        self.count += 1
        if self.count <= 2:
            raise OSError("full disk")  # noqa: EM101, TRY003 - any
        if self.count > 3:
            self.enough.set()  # the look before this one succeeded

    def _pause_s(self) -> float:
        return 0.001


def test_a_look_that_fails_is_told_once_and_the_next_may_succeed(caplog: pytest.LogCaptureFixture) -> None:
    watch = Counted()
    with caplog.at_level(logging.WARNING):
        watch.look()
        watch.look()
        assert watch.error is not None
        watch.start()
        assert watch.enough.wait(LIMIT_S)
        watch.stop()
    assert (watch.error, len(caplog.messages)) == (None, 1)
    assert caplog.messages[0].startswith("nothing can be counted: ")
