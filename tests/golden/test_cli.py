"""What each command prints, for people and for programs, compared whole.

Predictions change when predictors do: `--update-golden` remakes the files, and the difference is read like code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage.plugins.loading import ENTRY_POINT_GROUP

ROOT = Path(__file__).parents[2]
SCRIPTS = [f"tests/golden/scripts/{name}.sbatch" for name in ("share", "whole", "several", "silent", "typo")]
COMMANDS = {
    "predict": [
        "predict",
        "examples/models/resnet50.onnx,batch=64",
        "examples/models/bert_base.onnx,batch=8,precision=bf16,optimizer=adamw",
        *("--gpu", "v100", "--gpu", "h100"),
    ],
    "explain": ["predict", "examples/models/resnet18.onnx,batch=32", "--gpu", "v100", "--explain"],
    "colocate": [
        "colocate",
        "examples/models/resnet18.onnx,batch=16",
        "examples/models/bert_base.onnx,batch=1,mode=infer",
        *("--gpu", "a100"),
    ],
    "validate": ["validate", *SCRIPTS, "--cluster", "tests/golden/cluster.toml"],
    "card": ["card", "examples/models/resnet50.onnx", "examples/models/lstm_lm.onnx"],
    "plugins": ["plugins"],
}
STATUS = {"validate": 1}
"""One script has an error."""


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_plugins: None) -> None:
    configuration = tmp_path / "gpusage.toml"
    configuration.write_text('mode = "advise"\n')
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("GPUSAGE_CONFIG", str(configuration))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize("command", sorted(COMMANDS))
@pytest.mark.parametrize("form", ["txt", "json"])
def test_a_command_prints_its_golden_file(command: str, form: str, golden: Callable[[str, str], None]) -> None:
    result = CliRunner().invoke(main, [*COMMANDS[command], *(["--json"] if form == "json" else [])])
    assert result.exit_code == STATUS.get(command, 0), result.stderr
    golden(f"{command}.{form}", _without_deflated(result.stdout) if command == "card" else result.stdout)


def test_predict_fits_a_terminal_of_80_columns(
    golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(main, COMMANDS["predict"])
    assert max(map(len, result.stdout.splitlines())) <= 80
    golden("predict-80.txt", result.stdout)


SITE_PLUGIN = """
from gpusage_hooks import hookimpl
from gpusage_hooks.samples import gpus

@hookimpl
def describe_gpus():
    return gpus()

@hookimpl
def predict_needs(graph, workload, gpus, known):
    raise RuntimeError("a golden file rests on this plugin")
"""


def test_a_plugin_that_is_installed_beside_changes_no_golden_file(
    golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As docs/plugins.md says to install one, in the checkout's own .venv."""
    (tmp_path / "site_of_ours.py").write_text(SITE_PLUGIN)
    metadata = tmp_path / "site_of_ours-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: site-of-ours\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[gpusage]\nsite = site_of_ours\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "site" in {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}
    for command in ("plugins", "predict"):
        golden(f"{command}.txt", CliRunner().invoke(main, COMMANDS[command]).stdout)


def _without_deflated(text: str) -> str:
    """Leave out what zlib's release decides: the packed card and its length."""
    return re.sub(r'(?<="card": ")[^"]+|(?<="byte_count": )\d+|\d+(?= B )', "0", text)
