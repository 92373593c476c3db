"""Widths of intervals by kind of workload: conformal quantiles of misses that no fit has seen."""

from __future__ import annotations

from math import hypot
from pathlib import Path

import numpy as np
import pytest

from gpusage.predictors.artifacts import StepTimeDeviations, pretrained
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.published.intervals import LEAST_ROWS, Miss, fit, widths

DEVIATIONS = StepTimeDeviations(known=0.1, unseen_gpu=0.2, short=0.5)


def misses(kind: str, count: int, scale: float = 1.0, short: float = 0.0) -> list[Miss]:
    """So many misses, evenly from 0 to *scale*, beside what *short* explains."""
    sizes = (scale * np.arange(1, count + 1) / count).tolist()
    return [Miss(kind=kind, group="one", miss=hypot(size, DEVIATIONS.short * short), short=short) for size in sizes]


def test_nine_of_ten_and_a_new_row_lie_within_a_kinds_width() -> None:
    rows = misses("answer, eager", 99)
    assert widths(rows, DEVIATIONS) == {"answer, eager": pytest.approx(90 / 99)}  # 90 of the 100 with the new one


def test_what_short_kernels_explain_is_not_counted_twice() -> None:
    rows = misses("infer, compiled", 99, short=0.3)
    assert widths(rows, DEVIATIONS) == {"infer, compiled": pytest.approx(90 / 99)}


def test_a_kind_of_few_rows_has_the_width_of_those_whose_names_begin_alike() -> None:
    several = "answer, eager, several GPUs"
    rows = misses("answer, eager", LEAST_ROWS) + misses(several, LEAST_ROWS - 1, scale=3.0)
    actual = widths(rows, DEVIATIONS)
    assert actual["answer, eager"] < 1 < actual[several]
    alone = widths([*rows, *misses(several, 1, scale=3.0)], DEVIATIONS)
    assert alone["answer, eager"] == actual["answer, eager"]
    assert alone[several] > actual[several]  # its own now
    assert widths(misses(several, LEAST_ROWS - 1), DEVIATIONS) == {}
    assert widths(misses("pass, engine", LEAST_ROWS - 1) + rows, DEVIATIONS) == actual


def test_a_folder_without_a_kinds_rows_leaves_the_widths_and_fits_no_fold(tmp_path: Path) -> None:
    # One run of the record, eager, and none of the files that a fold is fitted on.
    row = {
        "mode": "infer",
        "precision": "amp",
        "memory_layout": "nchw",
        "torch_version": 110,
        "device": "RTX3090",
        "torch_compile": 0,
        "model": "tinynet_e",
        "timm_module": "efficientnet",
        "img_size_px": 106,
        "batch_size": 8,
        "samples_per_s": 400,
        "step_time_ms": 20,
        "param_count_millions": 2,
        "gmacs_per_image": 1,
        "activations_millions_per_image": 1,
        "source_file": "own",
        "source_commit": "own",
    }
    lines = (",".join(row), ",".join(map(str, row.values())), "")
    (tmp_path / "timm_benchmark.csv").write_text("\n".join(lines), encoding="utf-8")
    (fitted,) = fit(DataFolder(tmp_path))
    assert fitted.parameters.deviations.of_settings == pretrained().step_time.deviations.of_settings
