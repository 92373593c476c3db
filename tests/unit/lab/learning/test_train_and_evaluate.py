"""`gpusage train` and `gpusage evaluate`, whole, on a few invented rows and a table of `gpusage profile`."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage.experience.profile_rows import COLUMNS
from gpusage_hooks.errors import RequestError
from gpusage_lab.learning import step_fit, step_samples
from gpusage_lab.learning.artifacts import FOLDER
from gpusage_lab.learning.profiled import WITHOUT_GPU, profiled
from gpusage_lab.learning.step_time import fitted_by_family
from gpusage_lab.learning.targets import TARGETS
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.profiling.crew import Measured
from gpusage_lab.profiling.items import Item, Side
from gpusage_lab.profiling.suites import TINY, job
from gpusage_lab.profiling.table import CsvTable, rows_of
from measurements import write_measurements

pytest.importorskip("sklearn")
ARTIFACTS = TARGETS.keys() - {"intervals"}  # which widens those of step_time


def invoked(*arguments: str | Path) -> str:
    """Standard output of a command that went well."""
    result = CliRunner().invoke(main, [str(word) for word in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def trial_on_the_cpu(path: Path) -> Path:
    """Three networks alone, alone in a share, and in pairs, as a trial without a GPU writes them."""
    sides = [Side(job=job(text)) for text in TINY]
    items = [Item(kind="solo", sides=(side,), seconds=0.05) for side in sides]
    items += [Item(kind="share", sides=(Side(job=side.job, percent=100),), seconds=0.05) for side in sides]
    items += [Item(kind="pair", sides=(sides[0], other), seconds=0.05) for other in sides[1:]]
    table = CsvTable(path, COLUMNS)
    table.open()
    for item in items:
        answers = tuple({"status": "ok", "step_time_s": 0.001, "steps_per_s": 1000.0} for _ in item.sides)
        table.append(rows_of(item, Measured(answers=answers), "cpu", {"device": "cpu"}))
    return path


def as_gpu_runs(source: Path, target: Path) -> Path:
    """The same table with a GPU's name, invented readings of NVML, and invented times, which no load here changes."""
    with source.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row |= {"device": "cuda", "gpu": "NVIDIA H200", "sharing": "none" if row["kind"] == "solo" else "mps"}
        row |= {"step_time_s": "0.002", "steps_per_s": "300" if row["kind"] == "pair" else "500"}
        row |= {"process_bytes": str(10**9), "gpu_utilization": "0.5", "sm_activity": "0.2", "dram_activity": "0.1"}
    target.parent.mkdir(exist_ok=True)
    with target.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return target


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of measurements, a table that looks like a GPU's among them, and in ``artifacts`` the fit.

    The step time is fitted in a few iterations: what the figures are is not asked here.
    """
    folder = write_measurements(tmp_path_factory.mktemp("data"))
    table = trial_on_the_cpu(folder / "cpu.csv")
    as_gpu_runs(table, folder / "profile" / "lent.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_samples, "fit", partial(step_fit.fit, iterations=10))
        invoked("train", "--data", folder, "--output", folder / "artifacts")
        yield folder


def test_a_cpus_table_teaches_nothing(tmp_path: Path) -> None:
    trial_on_the_cpu(tmp_path / "profile" / "cpu.csv")
    actual = profiled(DataFolder(tmp_path))
    assert (actual.runs, actual.left_out) == ((), {WITHOUT_GPU: 3 + 3 + 2 * 2})
    assert actual.note == f"10 {WITHOUT_GPU}"


def test_a_gpus_table_is_learned_from_and_scored_as_a_campaign(trained: Path) -> None:
    taught_by_profiles = [name for name in ARTIFACTS if name != "slowdown"]  # the trial has no run on a part of a GPU
    for name in taught_by_profiles:
        card = json.loads((trained / "artifacts" / f"{name}.json").read_text())["card"]
        assert any(line.startswith("profile lent") for line in card["fitted_on"]), name

    text = invoked("evaluate", "--data", trained)
    assert "profile lent train: h200-sxm5-141gb" in text  # as a GPU that no other row is of
    assert "Memory: measured by gpusage profile" in text


def test_two_targets_share_the_fits_of_families(trained: Path) -> None:
    data = DataFolder(trained)
    assert fitted_by_family(data) is fitted_by_family(data)


def test_training_twice_gives_the_same_bytes_and_the_shipped_artifacts_are_left_alone(
    trained: Path, tmp_path: Path
) -> None:
    shipped = contents(FOLDER)
    invoked("train", "--data", trained, "--output", tmp_path)
    assert contents(tmp_path) == contents(trained / "artifacts")
    assert sorted(contents(tmp_path)) == sorted(f"{name}.json" for name in ARTIFACTS)
    assert contents(FOLDER) == shipped


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.json")}


def refusal(*arguments: str | Path) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.exit_code == 1
    document: dict[str, Any] = json.loads(result.stdout)["error"]
    return document


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    error = refusal("evaluate", "--data", tmp_path, "--target", "memory")
    assert error["message"].startswith(f"Data folder '{tmp_path}' must have the file gpumemnet_timm_memory.csv; got no")


def test_a_table_in_the_folder_that_is_not_of_gpusage_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "mine.csv").write_text("model,ms\nresnet50,12\n")
    with pytest.raises(RequestError, match=r"Table '.*mine\.csv' must be one that 'gpusage profile'"):
        profiled(DataFolder(tmp_path))
