"""The experiments of the seeds read their sources: small tables of the same columns stand in for the measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from gpusage.decisions.advisor import Advisor
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.plugins.loading import make_hooks
from gpusage_hooks.types import Workload
from gpusage_lab.measurements.tables import COLUMNS, DataFolder
from gpusage_lab.seeds import kace, yeung
from gpusage_lab.seeds.ardagna_runs import ours, runs
from gpusage_planning.zoo import load_zoo

pytest.importorskip("pandas")


def written(folder: Path, file: str, rows: Sequence[Mapping[str, object]]) -> DataFolder:
    """Write *rows* as one of the measurements' tables, the columns that they leave out empty."""
    empty = dict.fromkeys(sorted(COLUMNS.get(file, frozenset()) - rows[0].keys()), "")
    rows = [{**row, **empty} for row in rows]
    lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
    (folder / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return DataFolder(folder)


def test_gavels_steps_are_those_of_each_gpu_and_failed_jobs_are_left_out(tmp_path: Path) -> None:
    common = {"source_file_tag": "simulation_2020", "gpu": "V100", "consolidated": "yes", "model": "ResNet-18"}
    rows = [
        common | {"batch_size": 32, "num_gpus": 4, "throughput_steps_per_s": 20.0},
        common | {"batch_size": 64, "num_gpus": 1, "throughput_steps_per_s": 0.0},
        common | {"source_file_tag": "oracle_2019", "batch_size": 64, "num_gpus": 1, "throughput_steps_per_s": 9.0},
    ]
    (run,) = runs(written(tmp_path, "gavel_solo.csv", rows))
    assert (run.gpu, run.gpu_count, run.batch_size, run.step_s) == ("v100-sxm2-16gb", 4, 32, pytest.approx(4 / 20))
    assert run.peak_tflop_per_s == pytest.approx(15.7, abs=0.2)


def test_sias_placements_on_more_than_one_host_are_left_out(tmp_path: Path) -> None:
    common = {"app": "cifar10", "gpu": "T4 (g4dn.12xlarge)", "kind": "placements", "local_batch_size": 64}
    rows = [common | {"placement": 2, "step_time_s": 0.2}, common | {"placement": 22, "step_time_s": 0.3}]
    (run,) = runs(written(tmp_path, "sia_step_times.csv", rows))
    assert (run.gpu, run.gpu_count, run.step_s) == ("t4", 2, 0.2)


def test_zeus_counts_at_the_full_power_limit(tmp_path: Path) -> None:
    common = {"gpu": "A40", "dataset": "imagenet", "network": "resnet50", "batch_size": 128}
    rows = [
        common | {"power_limit_W": 300, "time_per_epoch_s": 3000.0},
        common | {"power_limit_W": 100, "time_per_epoch_s": 9000.0},
    ]
    (run,) = runs(written(tmp_path, "zeus_power_time.csv", rows))
    assert run.step_s == pytest.approx(3000 * 128 / 1_281_167)


def test_several_gpus_take_what_gpusage_predicts_of_them() -> None:
    """They exchanged at 10 GB/s, whatever links they have, and hid nothing of it."""
    from gpusage_planning.named_jobs import GAVEL  # beside its one use

    catalogue, job = builtin_catalogue(), GAVEL["ResNet-50"]
    workload = Workload(batch_size=32, optimizer=job.optimizer, gpus=4)
    for name in ("v100-sxm2-16gb", "v100-pcie-16gb"):
        advisor = Advisor(hooks=make_hooks(), catalogue=catalogue)
        (need,) = advisor.predict(load_zoo().graph(job.key), workload, [catalogue.find(name)])
        assert ours(job, name, 4, 32) == pytest.approx(need.step_time_s.value)


def test_lucids_runs_carry_what_the_shipped_predictor_says(tmp_path: Path) -> None:
    rows = [
        {"model": "ResNet50", "batch_size": 64, "amp": 0, "gpu_util_pct": 98.0},
        {"model": "TD3", "batch_size": 64, "amp": 1, "gpu_util_pct": 12.0},
    ]
    actual = yeung.real_runs(written(tmp_path, "lucid_solo.csv", rows))
    assert actual.kinds == ("ResNet50", "TD3")
    assert actual.measured.tolist() == [98.0, 12.0]
    assert actual.shipped is not None
    assert actual.shipped[0] > actual.shipped[1]
    assert yeung.select_runs(actual, np.array([1])).shipped == actual.shipped[1]


@pytest.mark.parametrize("name", ["random forest, grid search", "neural network", "AutoML-like search"])
def test_each_of_kaces_learners_prefers_the_lighter_partner(name: str) -> None:
    pytest.importorskip("sklearn")
    from gpusage.devices.catalogue import builtin_catalogue  # beside its one use
    from gpusage_lab.learning.pairs import Pairs

    activity = np.linspace(0.05, 0.95, 10)
    sums = 2.0 - 0.5 * (activity[:, np.newaxis] + activity)
    np.fill_diagonal(sums, np.nan)
    jobs = tuple((f"model {row}", 1, False) for row in range(10))
    gpu = builtin_catalogue().find("v100")
    features = np.tile(activity[:, np.newaxis], (1, 6))
    pairs = Pairs(jobs=jobs, needs=(), features=features, sums=sums, parts=sums / 2, failed=(), gpu=gpu)
    output = kace.learners()[f"KACE: {name}"](pairs, np.arange(10) != 4, 4)
    assert output[0] > output[9]
