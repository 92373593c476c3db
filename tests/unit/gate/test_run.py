"""`gpusage gate -- COMMAND`, as a user runs it: the real commands in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpusage.gate.busy_flags import BusyFlags

SCRIPT = """
import sys, helper
assert __name__ == "__main__" and sys.argv[1:] == ["--lr", "1"]
import torch
model = torch.nn.Linear(2, 2)
with torch.no_grad():
    model(torch.ones(1, 2))
hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
print(helper.WORD, __file__, len(hooks))
sys.exit(3)
"""


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "helper.py").write_text("WORD = 'helped'", encoding="utf-8")
    environment = os.environ | {"GPUSAGE_GATE": str(tmp_path / "gate")}
    command = [sys.executable, "-m", "gpusage.cli", "gate", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)


@pytest.mark.torch
def test_a_script_runs_as_ever_with_its_arguments_folder_and_exit_status(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    result = run(tmp_path, "--", sys.executable, str(script), "--lr", "1")
    assert result.stdout == f"helped {script} 1\n"
    assert (result.returncode, result.stderr) == (3, "")


@pytest.mark.torch
def test_who_serves_needs_no_change_of_its_code(tmp_path: Path) -> None:
    result = run(tmp_path, "--serve", "--", sys.executable, str(tmp_path / "train.py"), "--lr", "1")
    assert result.stdout.endswith("train.py 0\n")
    (path,) = (tmp_path / "gate").iterdir()
    assert path.read_bytes()[0] == 1
    assert not BusyFlags(path).is_served()


def test_a_gate_that_cannot_work_lets_the_program_run(tmp_path: Path) -> None:
    (tmp_path / "gate").mkdir(mode=0o755)
    (tmp_path / "gate").chmod(0o755)
    (tmp_path / "plain.py").write_text("print('ran')", encoding="utf-8")
    result = run(tmp_path, "--", sys.executable, str(tmp_path / "plain.py"))
    assert (result.stdout, result.returncode) == ("ran\n", 0)
    assert result.stderr.startswith("gpusage gate: not used: Gate's folder")


def test_a_python_without_gpusage_runs_the_program_all_the_same(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 1\necho "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    result = run(tmp_path, "--", str(python), "train.py")
    assert result.stdout == "train.py\n"
    assert "cannot import gpusage" in result.stderr


def test_what_is_no_python_program_is_refused_before_it_runs(tmp_path: Path) -> None:
    result = run(tmp_path, "--", "echo", "hello")
    assert (result.stdout, result.returncode) == ("", 1)
    assert result.stderr.startswith("gpusage: error: Command of 'gpusage gate' must be Python and a program")
