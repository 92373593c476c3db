"""Odd and hostile programs end alike without and with the observer."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from observed_programs import CI, PROGRAMS, ForkServer, differences, run
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
    # In a Python of its own its budget may end it.
    assert program.starts or program.shows is None or bool(written) is program.shows
    for path in written:
        assert path.stat().st_mode & 0o777 == 0o600
        assert json.loads(path.read_text())["job"] == "7"


def test_an_array_of_jobs_does_not_fill_the_home_of_its_user(tmp_path: Path, server: ForkServer) -> None:
    record = tmp_path / "runs/1234"
    record.mkdir(parents=True)
    for number in range(64):
        (record / f"{number}.json").touch()
    observed = run(PROGRAMS["plain"], tmp_path / "job", server, record=record)
    assert observed.status == 0
    assert len([*record.iterdir()]) == 64


def broken_observers(how: str) -> list[str]:
    """Return the text of the observer with one of its statements broken, for each statement of a function."""
    text = OBSERVER.read_text()
    lines = text.splitlines()
    broken = []
    for function in ast.walk(ast.parse(text)):
        # These pass on what PyTorch asked for, and catch what all others raise.
        if not isinstance(function, ast.FunctionDef) or function.name in ("__get__", "__missing__", "guarded", "call"):
            continue
        for each in ast.walk(function):
            is_statement = isinstance(each, ast.stmt) and not isinstance(each, ast.FunctionDef)
            if is_statement and each not in function.body[:1] and "elif " not in lines[each.lineno - 1]:
                indent = " " * each.col_offset
                changed = [*lines[: each.lineno - 1], *(f"{indent}{line}" for line in how.split("\n"))]
                broken.append("\n".join([*changed, *lines[each.lineno - 1 :]]))
    return broken


@pytest.mark.parametrize(
    "how",
    [
        "raise SystemExit(9)",
        pytest.param("raise Exception", marks=pytest.mark.nightly),
        pytest.param("raise GeneratorExit", marks=pytest.mark.nightly),
        pytest.param("raise RecursionError", marks=pytest.mark.nightly),
        pytest.param("sys.modules['time'].sleep(0.001)", marks=pytest.mark.nightly),
        pytest.param("return ...", marks=pytest.mark.nightly),
    ],
)
def test_an_observer_that_fails_anywhere_changes_nothing(how: str, tmp_path: Path, server: ForkServer) -> None:
    program = PROGRAMS["plain"]
    alone = run(program, tmp_path / "job", server, record=None)
    observers = broken_observers(how)
    assert len(observers) > 100
    # A few in each place where CI has little time, all of them at night.
    for number, observer in enumerate(observers[:: 20 if how.startswith("raise SystemExit") else 1]):
        observed = run(program, tmp_path / "job", server, record=tmp_path / f"runs/{number}", observer=observer)
        left = {"hooks", "variables", "files"} if how != "sys.modules['time'].sleep(0.001)" else set()
        unequal = differences(alone, observed)
        assert unequal.keys() <= left, (observer, unequal)
