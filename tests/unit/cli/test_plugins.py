"""`gpusage plugins`: what is wrong with a plugin is said, and the exit status tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage.decisions.advisor import advisor
from gpusage.graphs.card.text import decode
from sites import announced

MODEL = Path(__file__).parents[3] / "examples/models/resnet18.onnx"


def test_a_plugin_that_is_set_aside_is_listed_with_the_reason(install: Callable[[EntryPoint], None]) -> None:
    install(announced(gpusage_api=3))
    result = CliRunner().invoke(main, ["plugins", "--json"])
    assert result.exit_code == 1
    rows = {row["name"]: row for row in json.loads(result.stdout)["plugins"]}
    assert rows["site"]["hooks"] == []
    assert "gpusage_api must be 1" in rows["site"]["trouble"]
    assert rows["gpusage.policies.stages"]["hooks"] == ["decide"]
    assert "none: set aside" in CliRunner().invoke(main, ["plugins"]).stdout


def test_other_commands_work_beside_a_broken_plugin(install: Callable[[EntryPoint], None]) -> None:
    install(announced(decide_fitt=lambda: None))
    result = CliRunner().invoke(main, ["gpus", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["gpus"]


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda gpus: {}[gpus[0].name], "raise nothing but a GpuUsageError; it raised KeyError: 'v100-sxm2-16gb'"),
        (lambda gpus: [], "the answer must have one entry per GPU; got 0 for 1"),
        (lambda gpus: {"v100": 1.0}, "predict_needs must be Sequence or None; got dict"),
    ],
)
def test_predict_names_the_plugin_that_breaks_the_contract(
    function: Callable[..., object], sentence: str, install: Callable[[EntryPoint], None]
) -> None:
    """One sentence and status 1: no traceback, and no bug of gpusage."""
    install(announced(predict_needs=function))
    advisor.cache_clear()
    try:
        result = CliRunner().invoke(main, ["predict", str(MODEL), "--gpu", "v100"])
    finally:
        advisor.cache_clear()
    assert result.exit_code == 1
    assert result.stderr.startswith("gpusage: error: Plugin 'site', hook 'predict_needs', must ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_job_card_makes_a_card_beside_a_plugin_that_cannot_be_imported(tmp_path: Path) -> None:
    """In a process of its own: what cli_filter.lua reads is the card, and the warning goes to standard error."""
    metadata = tmp_path / "broken_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[gpusage]\nbroken = broken_plugin\n")
    (tmp_path / "broken_plugin.py").write_text("1 / 0\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "gpusage.cli", "job-card", f"model={MODEL}"]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert decode(finished.stdout.strip()).name
    assert finished.stderr.count("gpusage: warning: Plugin 'broken' of broken-plugin 1.0 must be imported") == 1
