"""Every Python on this host starts as it does without the observer, and imports a PyTorch as it does without."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpusage.capture import ON_START
from gpusage_hooks.errors import RequestError
from observed_programs import broken
from pythons import python_of

PYTHONS = sorted({sys.executable, *map(str, Path.home().glob(".pyenv/versions/*/bin/python"))})
"""Of pyenv, where it is installed."""
SOURCE = """
import os, sys
print(sorted(sys.modules), sys.path, [type(each) for each in sys.meta_path if type(each).__name__ != "_Finder"])
print(sorted(name for name in os.environ if "GPUSAGE" not in name and name != "PYTHONPATH"))
import torch
print(torch.name, sorted(sys.modules), type(getattr(torch, "__spec__", None)), sys.path)
print([type(each) for each in sys.meta_path])
"""
TORCHES = {
    "failing": "raise ImportError('no such library')",
    "odd": "class nn: Module = None\nname = 1",
}
# With -I, Python sees neither of them, but the PyTorch that is installed.
STARTS = pytest.mark.parametrize(
    ("torch", "options"),
    [*((torch, options) for options in ([], ["-S"]) for torch in TORCHES), ("failing", ["-I"])],
    ids=str,
)


@pytest.fixture(scope="module")
def newest() -> str:
    """Return the Python of Debian's next release, 3.14 in 2026; skip the test where it cannot be fetched."""
    try:
        return str(python_of("forky"))
    except RequestError as error:
        pytest.skip(str(error))


@STARTS
@pytest.mark.parametrize("python", PYTHONS)
def test_it_starts_and_ends_alike(tmp_path: Path, python: str, torch: str, options: list[str]) -> None:
    if python.split("/")[-3].startswith("2.") and "-I" in options:
        pytest.skip("Python 2 has no -I")
    check_start(tmp_path, python, torch, options)


@pytest.mark.nightly
@STARTS
def test_it_starts_and_ends_alike_on_the_newest_python(
    tmp_path: Path, newest: str, torch: str, options: list[str]
) -> None:
    check_start(tmp_path, newest, torch, options)


def check_start(tmp_path: Path, python: str, torch: str, options: list[str]) -> None:
    """Check that a program which imports *torch* on *python* ends alike without and with the observer."""
    (tmp_path / "torch.py").write_text(TORCHES[torch])
    (tmp_path / "main.py").write_text(SOURCE)
    shadowed = (
        "pluggy",
        "hmac",
        "secrets",
        "hashlib",
        "json",
        "importlib",
        "observer",
        "gpusage",
        "threading",
        "atexit",
    )
    for name in shadowed:
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    endings = []
    for paths in ([], [str(ON_START)]):
        variables = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "GPUSAGE_LEARN_JOB": "JOB"}
        variables |= {"PYTHONPATH": paths[0], "GPUSAGE_LEARN": str(tmp_path / "runs/1")} if paths else {}
        done = subprocess.run(
            [python, *options, "main.py"], cwd=tmp_path, env=variables, capture_output=True, check=False, timeout=60
        )
        # Without its `site`, Python reads PYTHONPATH and no sitecustomize, which would take our folder off again.
        output = done.stdout.decode().replace(f"{str(ON_START)!r}, ", "") if "-S" in options else done.stdout.decode()
        endings.append((done.returncode, output, done.stderr))
    assert endings[0] == endings[1]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("error", "is_raised"),
    [
        ("TimeoutError", True),  # as another thread raises it in this one
        ("TimeoutError(110, 'late')", False),
        ("KeyError", False),
        ("type('Late', (KeyError,), {'__module__': 'train'})", True),
        ("KeyboardInterrupt", True),
    ],
)
def test_an_error_in_the_observer_is_the_program_s_if_nothing_here_can_raise_it(error: str, is_raised: bool) -> None:
    assert is_raised_by_a_signal(error) is is_raised


def test_a_handler_without_code_of_its_own_hides_no_other_signal() -> None:
    class Cached:
        @cache  # noqa: B019 - a program may
        def end(self, *_: object) -> None:
            """Do nothing."""

    before = signal.signal(signal.SIGUSR2, Cached().end)
    try:
        assert is_raised_by_a_signal("KeyboardInterrupt")
        assert not is_raised_by_a_signal("KeyError")
    finally:
        signal.signal(signal.SIGUSR2, before)


def is_raised_by_a_signal(error: str) -> bool:
    """Return whether the observer takes *error*, raised in its file, for one of a handler or of another thread."""
    site = str(ON_START / "sitecustomize.py")
    start: dict[str, Any] = {"__name__": "gpusage start", "__file__": site}
    with suppress(KeyError):  # it is no module here
        exec(compile(Path(site).read_text(), site, "exec"), start)  # noqa: S102 - our own
    try:
        exec(compile(f"raise {error}", site, "exec"), {})  # noqa: S102 - in the place of the observer's own line
    except BaseException as raised:
        ours = raised.with_traceback(raised.__traceback__ and raised.__traceback__.tb_next)
    return bool(start["_is_of_signal"](ours))


@pytest.mark.parametrize(
    "how",
    [
        "raise SystemExit(9)",
        pytest.param("raise Exception", marks=pytest.mark.nightly),
        pytest.param("return ...", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("torch", TORCHES)
def test_a_start_that_fails_anywhere_changes_nothing(tmp_path: Path, torch: str, how: str) -> None:
    (tmp_path / "torch.py").write_text(TORCHES[torch])
    (tmp_path / "main.py").write_text("import torch\nprint(torch.name)")

    def ending(text: str) -> tuple[int, bytes, bytes]:
        variables = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        if text:
            shutil.copytree(ON_START, tmp_path / "start", dirs_exist_ok=True)
            (tmp_path / "start/sitecustomize.py").write_text(text)
            variables |= {"PYTHONPATH": str(tmp_path / "start"), "GPUSAGE_LEARN": str(tmp_path / "runs/1")}
        done = subprocess.run(
            [sys.executable, "main.py"], cwd=tmp_path, env=variables, capture_output=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    alone, text = ending(""), (ON_START / "sitecustomize.py").read_text()
    # The spared are Python's own way through the import; what `find_spec` returns, Python takes.
    spared = ("_initializing", "_run_next", "_is_of_signal", *(("find_spec",) if how == "return ..." else ()))
    texts = [each for each in broken(text, how, spared=spared) if f"{how}\n        return None" not in each]
    assert len(texts) > 8
    for each in texts[:: 4 if how.startswith("raise SystemExit") else 1]:
        assert ending(each) == alone, each
    assert ending(text.replace("observer.py", "removed.py")) == alone
