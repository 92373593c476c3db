"""Commands that run inside a sandbox."""

from __future__ import annotations

import os
from pathlib import Path

from gpusage_sandboxes.sandbox import Inside


def test_bytes_that_are_no_text_do_not_stop_a_sandbox(tmp_path: Path) -> None:
    """A job with such a name kept `sandbox down` from ending the cluster."""
    inside = Inside(environment={"PATH": os.environ["PATH"]}, folder=tmp_path, logs=tmp_path)
    done = inside.run(("printf", r"JobName=bad\377 JobState=PENDING"), check=True, timeout_s=10)
    assert done.stdout == "JobName=bad\ufffd JobState=PENDING"
