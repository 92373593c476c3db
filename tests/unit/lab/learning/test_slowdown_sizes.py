"""Predicted against measured prices, part by part."""

from __future__ import annotations

import numpy as np
import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage_hooks.types import Workload
from gpusage_lab.learning.slowdown_rows import RAPP, SlowdownColumns, SlowdownRow
from gpusage_lab.learning.slowdown_sizes import by_part

GPU = builtin_catalogue().find("v100")


def row(part: float, slowdown: float, source: str = RAPP) -> SlowdownRow:
    return SlowdownRow(
        source=source,
        key="torchvision:alexnet@224",
        family="alexnet",
        workload=Workload(mode="infer"),
        gpu=GPU,
        share=GPU,
        part=part,
        alone_s=0.01,
        slowdown=slowdown,
    )


def test_each_part_has_a_line_of_its_own_with_what_each_plainer_rule_misses_by() -> None:
    rows = (row(0.5, 1.25), row(0.25, 2.0), row(0.5, 1.25), row(0.5, 9.0, source="another"))
    ones = np.ones(len(rows))
    columns = SlowdownColumns(
        rows=rows,
        busy_s=ones,
        step_s=ones,
        growth=ones,
        sm_activity=0.75 * ones,
        kernel_count=ones,
        by_step_time=ones,
    )
    predicted = np.array([[1.0, 2.1, 1.2, 1.0], [1.5, 3.0, 1.25, 1.0], [1.6, 3.3, 1.3, 1.0]])
    table = by_part(columns, RAPP, predicted)
    # 25 %: 3 for 2; no slowdown says 1, in proportion 4, an activity of 75 % says 3. 50 %: 1.5 and 1.25 for 1.25.
    assert table.rows[0] == pytest.approx((25, 1, 100, 200, 50, 0, 50, 100, 50))
    assert table.rows[1] == pytest.approx((50, 2, 25, 37.5, 10, 100, 20, 60, 20))
    assert len(table.columns) == len(table.rows[0])
