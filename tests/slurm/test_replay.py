"""`bench/replay.py` on a real Slurm, short: every job runs on an emulated GPU, with gpusage and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from replays import check_replay

pytestmark = [pytest.mark.slurm, pytest.mark.one_release]


@pytest.mark.usefixtures("slurm_release")
def test_every_job_runs_on_an_emulated_gpu_with_gpusage_and_without(tmp_path: Path) -> None:
    check_replay(tmp_path, "slurm", 4)
