"""Commands that run inside a sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from gpusage_sandboxes.layout import Layout
from gpusage_sandboxes.sandbox import Sandbox


class Plain(Sandbox):
    """A sandbox of nothing."""

    manager = "none"

    @property
    def environment(self) -> dict[str, str]:
        """Return where programs are."""
        return {"PATH": os.environ["PATH"]}

    def nodes(self) -> list[str]:
        """Return none."""
        return []

    def start(self) -> None:
        """Start nothing."""

    def processes(self) -> list[int]:
        """Return none."""
        return []

    def end_daemons(self) -> None:
        """End nothing."""

    def last_words(self, daemons: Iterable[str]) -> str:
        """Return none."""
        del daemons
        return ""


def test_bytes_that_are_no_text_do_not_stop_a_sandbox(tmp_path: Path) -> None:
    """A job with such a name kept `sandbox down` from ending the cluster."""
    sandbox = Plain(layout=Layout(tmp_path))
    sandbox.layout.jobs.mkdir()
    done = sandbox.run("printf", r"JobName=bad\377 JobState=PENDING", timeout_s=10)
    assert done.stdout == "JobName=bad\ufffd JobState=PENDING"
