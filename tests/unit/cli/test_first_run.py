"""Records of a script's runs -> the comment of its next job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpusage.cli.cards import first_run
from gpusage.cli.cards.first_run import comment_of_run
from gpusage.devices.catalogue import Catalogue, describe_gpus
from gpusage_hooks.comment import parse_comment, parse_first_run, parse_learn
from recorded_runs import write_run

GPUS = Catalogue(describe_gpus())
TIMED = {"step_time_s": 0.031, "gpu": "Tesla V100-SXM2-16GB"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of one script's records."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return first_run.runs_folder() / "1234"


def put(folder: Path, job: int, program: str = "train.py", **seen: object) -> None:
    """Write the record of *job*, the later the higher its number."""
    os.utime(write_run(folder, str(job), folder.parents[2] / program, **seen), (job, job))


def test_the_runs_of_a_job_are_found_by_its_number_alone(folder: Path) -> None:
    put(folder, 7)
    record = json.loads(next(folder.iterdir()).read_text())
    (folder / "8.forged.json").write_text(json.dumps({**record, "job": "8", "calls": None}).replace('"calls"', '"x"'))
    assert [run.job for run in first_run.runs_of_job("7")] == ["7"]
    assert first_run.runs_of_job("8") == first_run.runs_of_job("*") == first_run.runs_of_job("**") == []


def test_the_newest_jobs_on_whole_gpus_count_and_the_step_time_of_one_of_them(folder: Path) -> None:
    for job in range(1, 20):
        put(folder, job)
    put(folder, 20, **TIMED)
    put(folder, 21, share="40")
    comment = comment_of_run(folder, GPUS) or ""
    assert comment == "learn=on,first_run=20+19+18+17,step_time=31ms@v100-sxm2-16gb"
    assert len([*folder.iterdir()]) == first_run.MAXIMUM_RUNS + 1
    assert (parse_comment(comment), parse_learn(comment)) == (None, None)  # it names no model
    request = parse_first_run(comment)
    assert request is not None
    assert (request.model, request.first_run, request.workload.alone.step_time_s) == ("", "20+19+18+17", 0.031)


def test_runs_on_shares_push_out_none_on_a_whole_gpu(folder: Path) -> None:
    put(folder, 1, **TIMED)
    for job in range(2, 40):
        put(folder, job, share="40")
    assert comment_of_run(folder, GPUS) == "learn=on,first_run=1,step_time=31ms@v100-sxm2-16gb"
    assert len([*folder.iterdir()]) == 1 + first_run.MAXIMUM_RUNS


def test_an_edited_program_takes_its_jobs_with_it(folder: Path) -> None:
    put(folder, 1)
    put(folder, 2)
    put(folder, 2, "evaluate.py")
    (folder.parents[2] / "evaluate.py").write_text("print(1)")
    assert comment_of_run(folder, GPUS) == "learn=on,first_run=1"
    (folder.parents[2] / "train.py").write_text("print(1)")
    assert comment_of_run(folder, GPUS) is None


def test_runs_of_one_program_that_differ_decide_nothing(folder: Path) -> None:
    put(folder, 1)
    put(folder, 2, share="40", optimizers=["torch.optim.sgd.SGD"])
    assert comment_of_run(folder, GPUS) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"schema": "gpusage.first-run/2"}', "{" * 9999])
def test_a_forged_record_is_none(folder: Path, text: str) -> None:
    put(folder, 1)
    (folder / "2.x.json").write_text(text)
    assert comment_of_run(folder, GPUS) == "learn=on,first_run=1"
    assert comment_of_run(folder.parent / "other", GPUS) is None


@pytest.mark.parametrize("job", ["7,batch=8", "7;x", "$(id)", "7 8", "x" * 300])
def test_a_forged_number_makes_no_comment(folder: Path, job: str) -> None:
    path = write_run(folder, "1", folder.parents[2] / "train.py")
    path.write_text(path.read_text().replace('"job":"1"', f'"job":"{job}"'))
    assert comment_of_run(folder, GPUS) is None


@pytest.mark.parametrize("text", ["plain", 'a"b\\c', "Größe 火 \U0001f525", "\x00\x1f\x7f", "\udc80"])
def test_the_observer_s_own_json_is_json(folder: Path, text: str) -> None:
    write_run(folder, "1", folder.parents[2] / "train.py", calls=[{"class": text, text: [None, True, 1, -1.5e-9]}])
