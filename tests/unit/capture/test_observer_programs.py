"""Odd and hostile programs end alike without and with the observer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from observed_programs import CI, PROGRAMS, ForkServer, broken, differences, run
from recorded_runs import OBSERVER

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """Return a Python that has imported PyTorch."""
    with closing(ForkServer()) as server:
        yield server


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in CI else pytest.mark.nightly) for name in PROGRAMS]
)
def test_a_program_ends_as_it_does_without_the_observer(name: str, tmp_path: Path, server: ForkServer) -> None:
    program, record = PROGRAMS[name], tmp_path / "runs/1234"
    alone = run(program, tmp_path / "job", server, record=None)
    observed = run(program, tmp_path / "job", server, record=record)
    unequal = differences(alone, observed)
    assert unequal.keys() <= ({"hooks", "variables"} if program.waits else set()), unequal
    written = [*record.glob("*.json")] if record.exists() else []
    assert len(written) <= 1
    assert program.shows is None or bool(written) is program.shows
    for path in written:
        assert path.stat().st_mode & 0o777 == 0o600
        assert json.loads(path.read_text())["job"] == "7"


def test_generated_scripts_do_not_fill_the_home_of_their_user(tmp_path: Path, server: ForkServer) -> None:
    for number in range(300):
        folder = tmp_path / f"runs/{number}"
        folder.mkdir(parents=True)
        (folder / "1.2.json").touch()
        os.utime(folder, (number, number))
    observed = run(PROGRAMS["plain"], tmp_path / "job", server, record=tmp_path / "runs/new")
    assert observed.status == 0
    left = {each.name for each in (tmp_path / "runs").iterdir()}
    assert len(left) == 300
    assert "new" in left
    assert "299" in left


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
@pytest.mark.parametrize("place", ["runs/1234", "runs", "."])
def test_another_user_leaves_nothing_in_a_user_s_home(tmp_path: Path, server: ForkServer, place: str) -> None:
    """``sudo -E python train.py`` in the job of somebody."""
    folder = tmp_path / "home" / place
    folder.mkdir(parents=True)
    os.chown(folder, 12345, 12345)
    assert run(PROGRAMS["plain"], tmp_path / "job", server, record=tmp_path / "home/runs/1234").status == 0
    assert [*folder.iterdir()] == []


def test_an_array_of_jobs_does_not_fill_the_home_of_its_user(tmp_path: Path, server: ForkServer) -> None:
    record = tmp_path / "runs/1234"
    record.mkdir(parents=True)
    for number in range(64):
        (record / f"{number}.json").touch()
    observed = run(PROGRAMS["plain"], tmp_path / "job", server, record=record)
    assert observed.status == 0
    assert len([*record.iterdir()]) == 64


@pytest.mark.parametrize(
    "how",
    [
        "raise SystemExit(9)",
        pytest.param("raise Exception", marks=pytest.mark.nightly),
        pytest.param("raise GeneratorExit", marks=pytest.mark.nightly),
        pytest.param("raise MemoryError", marks=pytest.mark.nightly),
        pytest.param("raise RecursionError", marks=pytest.mark.nightly),
        pytest.param("sys.modules['time'].sleep(0.001)", marks=pytest.mark.nightly),
        pytest.param("return ...", marks=pytest.mark.nightly),
        pytest.param("return [[{...: type}]]", marks=pytest.mark.nightly),
    ],
)
def test_an_observer_that_fails_anywhere_changes_nothing(how: str, tmp_path: Path, server: ForkServer) -> None:
    program = PROGRAMS["plain"]
    alone = run(program, tmp_path / "job", server, record=None)
    # The spared pass on what PyTorch asked for, and catch what all others raise.
    observers = broken(OBSERVER.read_text(), how, spared=("__get__", "__missing__", "guarded", "call"))
    assert len(observers) > 100
    # A few in each place where CI has little time, all of them at night.
    for number, observer in enumerate(observers[:: 20 if how.startswith("raise SystemExit") else 1]):
        observed = run(program, tmp_path / "job", server, record=tmp_path / f"runs/{number}", observer=observer)
        left = {"hooks", "variables", "files"} if how != "sys.modules['time'].sleep(0.001)" else set()
        unequal = differences(alone, observed)
        assert unequal.keys() <= left, (observer, unequal)
