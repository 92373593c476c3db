"""The rows of timm's benchmark that no fit uses: older releases, channels last, compiled; each kind's own error.

They are predicted as they stand, as if eager, by the fit that has not seen their family. So they show how far the
figures of the other tables reach. One row in `EVERY` is drawn, by its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gpusage_lab.learning.seal import is_sealed
from gpusage_lab.learning.step_flat import Array, Sample
from gpusage_lab.learning.step_rows import TIMM_DEVICES, TIMM_PRECISIONS, StepRow, eager_rows, timm_row
from gpusage_lab.learning.step_samples import sample_of
from gpusage_lab.measurements.tables import DataFolder, Table
from gpusage_planning.zoo import Zoo

EVERY = 8
"""One row in so many is drawn."""


class LeftOut(NamedTuple):
    """Rows that are predicted and never fitted, and the samples made of them."""

    rows: list[StepRow]
    samples: list[Sample]


def left_out_rows(data: DataFolder, zoo: Zoo) -> LeftOut:
    """Return the drawn rows whose model is in the zoo."""
    table = data.read("timm_benchmark.csv")
    used = eager_rows(table).index
    others = table[table.device.isin(list(TIMM_DEVICES)) & table.precision.isin(list(TIMM_PRECISIONS))].drop(index=used)
    rows = [timm_row(row, zoo, f", {_kind(row)}") for row in others[_is_sampled(others)].to_dict("records")]
    rows = [row for row in rows if row.key in zoo and not (data.is_sealed and is_sealed(row.family))]
    return LeftOut(rows, [sample_of(row, zoo) for row in rows])


def _is_sampled(table: Table) -> Array:
    columns = (table.model, table.device, table.torch_version, table.memory_layout, table.torch_compile)
    names = (" ".join(map(str, row)) for row in zip(*columns, strict=True))
    return np.array([int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % EVERY == 0 for name in names], dtype=bool)


def _kind(row: Mapping[str, Any]) -> str:
    if row["torch_compile"]:
        return "compiled"
    return "channels last" if row["memory_layout"] == "nhwc" else "older release"
