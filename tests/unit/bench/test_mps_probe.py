"""The bench of MPS runs from end to end without a GPU, on the stand-ins, and sees what they are known to do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "mps_probe.py"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_each_case_is_tried(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    subprocess.run([sys.executable, BENCH, "--stand-in", "--out", out], check=True, capture_output=True)
    rows = {row["case"]: row for row in json.loads(out.read_text())}
    seen = {case: row.get("sm_count") for case, row in rows.items()}
    # of 132 SMs, or of 16 chunks of 8 SMs
    assert (seen["percentage 25"], seen["partition 25"], seen["v3 50"]) == (33, 32, 66)
    assert seen["percentage 25 without a daemon"] == 132
    assert rows["percentage 50, cap 8 GiB"]["allocated"] == 8 * 2**30
    assert rows["no partition on a partitioned GPU"]["trouble"] == "a client cannot start: cuInit ended with 915"
