"""Rows of slowdowns: a measurement that no GPU explains is left out."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from gpusage_lab.learning.slowdown_rows import MISO, MOST_ABOVE_LINE, PARVAGPU, RAPP, slowdown_rows
from gpusage_lab.measurements.tables import DataFolder

WHOLE_MS, STEEPNESS = 10.0, 0.2
ZOO: Any = {"torchvision:resnet50@224"}


def line_ms(percent: int) -> float:
    """Return the straight line in 1 / percentage from 10 % to the whole GPU."""
    return WHOLE_MS * (1 + STEEPNESS * (100 / percent - 1))


@pytest.mark.parametrize(("above", "is_left"), [(0.7, True), (1.0, True), (1.19, True), (1.21, False)])
def test_a_row_far_above_the_line_from_the_smallest_share_to_the_whole_is_left_out(
    tmp_path: Path, above: float, is_left: bool
) -> None:
    assert MOST_ABOVE_LINE == 1.2
    times = {10: line_ms(10), 20: above * line_ms(20), 50: line_ms(50), 90: WHOLE_MS, 100: WHOLE_MS}
    rows = "".join(f"resnet50,8,{percent},100,{ms}\n" for percent, ms in times.items())
    header = "model,batch_size,mps_percent,time_quota_percent,latency_ms\n"
    (tmp_path / RAPP).write_bytes(gzip.compress((header + rows).encode()))
    (tmp_path / PARVAGPU).write_text(
        "model,mig_slices,batch_size,process_count,throughput_samples_per_s,latency_s\nunknown,1,1,1,80,0.01\n"
    )
    (tmp_path / MISO).write_text(
        "mig_slice,model,batch_size,num_iterations,iter_time_mean_s,iter_time_median_s,sm_util_pct_a100_solo\n"
        "1g.5gb,unknown,1,9,0.6,0.6,78\n"
    )
    shares = [round(row.part * 100) for row in slowdown_rows(DataFolder(tmp_path), ZOO)]
    assert shares == ([10, 20, 50] if is_left else [10, 50])
