"""The laboratory's commands where its plugin is not installed: `python -m gpusage_lab`."""

from __future__ import annotations

import subprocess
import sys

from waiting import LIMIT_S


def test_a_lent_machine_needs_neither_an_installation_nor_msgspec() -> None:
    script = "import runpy, sys; sys.modules['msgspec'] = None; runpy.run_module('gpusage_lab', run_name='__main__')"
    command = [sys.executable, "-c", script, "profile", "--dry-run", "--device", "cpu"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert "builtin:tiny-mlp" in run.stdout


def test_what_is_wrong_is_one_sentence_there_too() -> None:
    command = [sys.executable, "-m", "gpusage_lab", "profile", "--dry-run", "resnet50,batch"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert run.returncode == 1
    assert run.stderr.startswith("gpusage: error: ")
