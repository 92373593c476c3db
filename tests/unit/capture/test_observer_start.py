"""Every Python on this host starts as it does without the observer, and imports a PyTorch as it does without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpusage.capture import ON_START
from observed_programs import broken

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
STARTS = [*((torch, options) for options in ([], ["-S"]) for torch in TORCHES), ("failing", ["-I"])]


@pytest.mark.parametrize(("torch", "options"), STARTS, ids=str)
@pytest.mark.parametrize("python", PYTHONS)
def test_it_starts_and_ends_alike(tmp_path: Path, python: str, torch: str, options: list[str]) -> None:
    if python.split("/")[-3].startswith("2.") and "-I" in options:
        pytest.skip("Python 2 has no -I")
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
