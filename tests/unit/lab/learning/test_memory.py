"""How the memory predictor is fitted: quantiles by sums without negative weights, rows that cannot be right."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("scipy")
pytest.importorskip("sklearn")

from gpusage.graphs.card.text import to_document
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.artifacts import MemoryParameters
from gpusage.predictors.memory.liveness import TRAINING_TERMS, terms, walk
from gpusage_hooks.types import Workload
from gpusage_hooks.units import MIB
from gpusage_lab.learning import memory
from gpusage_lab.learning.artifacts import rendered
from gpusage_lab.learning.memory_fit import HIGH_SHARE, fit_memory, quantile_fit
from gpusage_lab.learning.memory_rows import memory_rows
from gpusage_lab.learning.memory_tables import BASELINES
from gpusage_lab.measurements.tables import COLUMNS, DataFolder
from gpusage_planning.zoo import Zoo, dump_card
from graphs import convolution_graph

RANDOM = np.random.default_rng(0)


def test_the_middle_fit_finds_the_weights_whatever_a_few_rows_say() -> None:
    columns = RANDOM.uniform(1, 100, (300, 3))
    measured = columns @ np.array([2.0, 0.0, 5.0])
    measured[::20] *= 4
    assert quantile_fit(columns, measured, 0.5) == pytest.approx([2, 0, 5], abs=0.02)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_share_of_the_rows_lies_below_the_fit(share: float) -> None:
    """Each row counts by the inverse of what was measured, for distances are relative."""
    columns = np.column_stack([np.ones(2000), RANDOM.uniform(10, 100, 2000)])
    measured = columns[:, 1] * RANDOM.uniform(1, 2, 2000)
    is_below = measured < columns @ quantile_fit(columns, measured, share)
    below = (is_below / measured).sum() / (1 / measured).sum()
    assert below == pytest.approx(share, abs=0.04)


def test_no_weight_is_negative() -> None:
    columns = RANDOM.uniform(1, 2, (100, 4))
    measured = np.maximum(columns @ np.array([3.0, -1.0, 1.0, 0.0]), 0.1)
    assert (quantile_fit(columns, measured, 0.5) >= 0).all()


def test_the_ends_hold_most_rows_of_families_that_were_not_seen() -> None:
    terms = RANDOM.lognormal(20, 1, (600, len(TRAINING_TERMS)))
    measured = (terms.sum(axis=1) + 1e9) * RANDOM.lognormal(0, 0.1, 600)
    families = np.array([f"family{number % 12}" for number in range(600)])
    fitted = fit_memory(terms[:400], measured[:400], families[:400])
    low, point, high = fitted.predicted(terms[400:])
    assert ((low <= point) & (point <= high)).all()
    assert (measured[400:] > high).mean() <= 2 * (1 - HIGH_SHARE)
    assert (measured[400:] < low).mean() <= 0.2


def write(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=[*rows[0], *sorted(COLUMNS[path.name] - rows[0].keys())])
        writer.writeheader()
        writer.writerows(rows)


def peak(model: str, batch_size: int, mib: float, quality: str = "ok") -> dict[str, object]:
    return {
        "model": model,
        "batch_size": batch_size,
        "max_gpu_memory_MiB": mib,
        "quality": quality,
        "faketensor_after_backward_MiB": mib / 2,
    }


def test_rows_that_cannot_be_right_are_marked_and_the_others_counted(tmp_path: Path) -> None:
    models = ("grows", "flat", "small", "absent")
    peaks = [peak("grows", 8, 2000), peak("grows", 128, 5000), peak("grows", 256, 900, "decreasing_suspect_oom")]
    peaks += [peak("flat", 8, 2000), peak("flat", 128, 2010), peak("small", 128, 10), peak("absent", 8, 2000)]
    write(tmp_path / "gpumemnet_timm_memory.csv", peaks)
    write(tmp_path / "timm_static_features.csv", [{"model": name, "img_size_px": 56} for name in models])
    write(tmp_path / "timm_benchmark.csv", [{"model": "grows", "timm_module": "resnet"}])
    card = dump_card(to_document(convolution_graph(depth=10)))
    rows = memory_rows(DataFolder(tmp_path), Zoo({f"timm:{name}@56": card for name in models[:3]}))
    assert rows.model == ("grows", "grows", "flat", "flat", "small")
    assert rows.family == ("resnet", "resnet", "flat", "flat", "small")
    assert rows.flat.tolist() == [False, False, True, True, False]
    assert rows.impossible.tolist()[-1]
    assert rows.sound.tolist() == [True, True, False, False, False]
    assert rows.measured[0] == 2000 * MIB
    assert dict(rows.skipped) == {"falls as the batch grows, or near 40 GB": 1, "no card": 1}


@pytest.fixture
def measured_folder(tmp_path: Path) -> tuple[DataFolder, Zoo]:
    """Twelve networks of four families, whose peaks are a context, three times the weights and what they keep."""
    graphs_of = {f"net{depth}": convolution_graph(depth=depth, channels=8 * (1 + depth % 3)) for depth in range(1, 13)}
    peaks = []
    for name, graph in graphs_of.items():
        for size in (8, 32, 128):
            lowering = WorkloadAnalysis(graph, Workload(batch_size=size)).lowering
            values = dict(zip(TRAINING_TERMS, terms(lowering, walk(graph, lowering, size)), strict=True))
            noise = float(RANDOM.lognormal(0, 0.01))
            peaks.append(peak(name, size, noise * (1700 + (3 * values["weights"] + 1.2 * values["saved"]) / MIB)))
    write(tmp_path / "gpumemnet_timm_memory.csv", peaks)
    write(tmp_path / "timm_static_features.csv", [{"model": name, "img_size_px": 56} for name in graphs_of])
    families = [{"model": name, "timm_module": f"family{int(name[3:]) % 4}"} for name in graphs_of]
    write(tmp_path / "timm_benchmark.csv", families)
    cards = {f"timm:{name}@56": dump_card(to_document(graph)) for name, graph in graphs_of.items()}
    return DataFolder(tmp_path), Zoo(cards)


def test_the_fit_is_shipped_with_its_card_and_is_the_same_twice(
    measured_folder: tuple[DataFolder, Zoo], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, zoo = measured_folder
    monkeypatch.setattr(memory, "load_zoo", lambda: zoo)
    (artifact,), (again,) = memory.fit(data), memory.fit(data)
    assert rendered(artifact) == rendered(again)
    assert artifact.card.errors["unseen family, MAPE"] < 0.05
    assert "36 rows of 4 families" in artifact.card.fitted_on[0]
    assert isinstance(artifact.parameters, MemoryParameters)
    assert np.shape(artifact.parameters.weights) == (3, len(TRAINING_TERMS))
    assert list(artifact.parameters.required_factors) == sorted(artifact.parameters.required_factors)


def test_ours_stands_first_with_every_baseline_below(
    measured_folder: tuple[DataFolder, Zoo], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, zoo = measured_folder
    monkeypatch.setattr(memory, "load_zoo", lambda: zoo)
    sound, without_flat, everything, need, families = memory.evaluate(data)
    names = [row[0] for row in sound.rows]
    assert names[:2] == ["gpusage, unseen family", "gpusage, random rows"]
    assert names[2:] == list(BASELINES)
    errors = {row[0]: row[2] for row in sound.rows}
    assert isinstance(errors[names[0]], float)
    assert errors[names[0]] < 5 < errors["weights only"]
    assert [len(table.rows) for table in (without_flat, everything)] == [7, 7]
    above = [row[2] for row in need.rows if isinstance(row[2], float)]
    assert above == sorted(above, reverse=True)  # of the point, the high end and a share's end
    assert above[-1] == 0
    assert len(families.rows) == 4
