"""What jobs did alone on a GPU becomes rows that the laboratory reads."""

from __future__ import annotations

import csv
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage.cli.pairs import read_pairs
from gpusage.store.opening import open_store
from gpusage_hooks.types import Allocation, JobIdentity, Usage, Workload
from gpusage_lab.learning.profiled import profiled
from gpusage_lab.measurements.tables import DataFolder
from records import RECORD, USAGE

NUMBER = "69215f4a0c3e"
SOLO = replace(
    USAGE, granted=Allocation(), alone_s=3595.0, gpu_utilization=0.97, started_at_s=1_700_000_000.0, number=NUMBER
)


@pytest.fixture
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/d.db"
    (tmp_path / "c.toml").write_text(f'[store]\nurl = "{url}"\n')
    monkeypatch.setenv("GPUSAGE_CONFIG", str(tmp_path / "c.toml"))
    workload = Workload(batch_size=64, steps=1000)
    with closing(open_store(url)) as store:
        store.record(replace(RECORD, number=NUMBER, model="torchvision:resnet50", workload=workload))
        store.record_usage([SOLO, replace(SOLO, job_id="8", gpu_utilization=0.5), replace(USAGE, job_id="9")])


@pytest.mark.usefixtures("_store")
def test_solo_runs_are_read_by_the_laboratory_and_a_slow_host_teaches_memory_alone(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["decisions", "--as-profile", str(tmp_path / "data")])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("2 of 3 runs were alone on a whole GPU: 2 rows")
    runs = [run for run in profiled(DataFolder(tmp_path / "data")).runs if run.campaign == "site-v100-sxm2-16gb"]
    figures = sorted((dict(run.figures) for run in runs), key=len)
    assert figures[0] == {"process_bytes": 2e9}
    assert figures[1] == {"process_bytes": 2e9, "step_time_s": pytest.approx(3.7), "gpu_utilization": 0.97}
    assert all(run.is_alone and run.key == "profile:torchvision:resnet50" for run in runs)


def shared(job: str, number: str, start_s: float, end_s: float, alone_s: float, **changes: object) -> Usage:
    """Return a run on half a GPU of one node; whoever is not alone all the time shared it."""
    times = {"started_at_s": start_s, "ended_at_s": end_s, "sampled_s": end_s - start_s, "alone_s": alone_s}
    half = Allocation(share_percent=50, division="percentage")
    return replace(SOLO, job_id=job, number=number, granted=half, sampled_on="n1", **times, **changes)


@pytest.mark.usefixtures("_store")
def test_runs_beside_one_other_are_pairs_by_runs_of_the_same_script_alone(tmp_path: Path) -> None:
    """1,000 s alone and 1,500 beside; of the other, which never ran alone, nothing is told but its name.

    A third run at that time hides who the partner was; a failed run, and another script's, are of other work. The last
    two were on two GPUs of the node, each beside a run that still goes on: they meet for five minutes.
    """
    numbers = {name: f"{place:012x}" for place, name in enumerate("abc", start=1)}
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        for name, number in numbers.items():
            identity = JobIdentity(user="ada", script_digest=f"script {name}")
            model = f"torchvision:resnet{18 if name == 'a' else 50}"
            run = Workload(batch_size=64)
            store.record(replace(RECORD, number=number, model=model, workload=run, identity=identity))
        store.record_usage(
            [
                shared("101", numbers["a"], 0.0, 1000.0, 1000.0),
                shared("102", numbers["a"], 5000.0, 6500.0, 0.0),
                shared("103", numbers["b"], 4000.0, 7000.0, 1500.0),
                shared("104", numbers["a"], 10_000.0, 12_000.0, 0.0),
                shared("105", numbers["b"], 10_000.0, 12_000.0, 0.0),
                shared("106", numbers["c"], 11_000.0, 13_000.0, 1000.0),
                shared("107", numbers["a"], 20_000.0, 20_900.0, 0.0, outcome="failed"),
                shared("108", numbers["c"], 20_000.0, 20_900.0, 0.0),
                shared("109", numbers["a"], 30_000.0, 31_200.0, 0.0),
                shared("110", numbers["b"], 30_900.0, 34_000.0, 0.0),
            ]
        )
    result = CliRunner().invoke(main, ["decisions", "--as-profile", str(tmp_path / "data")])
    assert "1 ran beside one other, and their scripts also alone" in " ".join(result.output.split())
    (pair,) = read_pairs(tmp_path / "data" / "pairs.csv")
    assert (pair.job.model, pair.partner.model) == ("torchvision:resnet18", "torchvision:resnet50")
    assert (pair.job.workload.batch_size, pair.slowdown, pair.gpu) == (64, 1.5, SOLO.gpu)


@pytest.mark.usefixtures("_store")
def test_no_cell_is_a_formula_or_acts_on_a_terminal(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        for job, model in enumerate(("=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\x1b[2Jx", "a\rb")):
            number = f"{job:012x}"
            store.record(replace(RECORD, number=number, model=model, workload=Workload(batch_size=64)))
            store.record_usage([replace(SOLO, job_id=str(100 + job), number=number)])
    CliRunner().invoke(main, ["decisions", "--as-profile", str(tmp_path / "data")])
    (table,) = (tmp_path / "data" / "profile").iterdir()
    text = table.read_bytes().decode()
    assert all(character.isprintable() or character == "\n" for character in text)
    with table.open(newline="") as file:
        models = [row["model"] for row in csv.DictReader(file)]
    assert {"'=cmd|' /C calc'!A0", "'+1", "'-1", "'@SUM(A1)", "?[2Jx", "a?b"} <= {*models}


@pytest.mark.usefixtures("_store")
def test_it_writes_all_or_nothing(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["decisions", "7", "--as-profile", str(tmp_path)])
    assert result.exit_code == 2
    assert "leave out JOBID" in result.output
