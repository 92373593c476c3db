"""The line on the terminal of whoever waits."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest

from gpusage.cli.progress import AFTER_S, progress


def test_on_a_terminal_what_takes_long_is_named_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as stderr, os.fdopen(ours, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stderr", stderr)
        with progress("A short one"):
            pass
        begun_s = time.monotonic()
        with progress("A long one"):
            assert screen.read(1000) == b"A long one ...\r\n"  # waits for it
        assert time.monotonic() >= begun_s + AFTER_S


def test_where_nobody_looks_there_is_no_line_and_no_thread(capsys: pytest.CaptureFixture[str]) -> None:
    threads = threading.active_count()
    with progress("A long one"):
        assert threading.active_count() == threads
    assert capsys.readouterr() == ("", "")
