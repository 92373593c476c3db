"""submitit itself writes the example's job script, and gpusage reads the model in it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import main

EXAMPLES = Path(__file__).parents[3] / "examples"
SBATCH = '#!/bin/sh\nfor script; do :; done\ncp "$script" "{copy}"\necho "Submitted batch job 7"\n'

pytest.importorskip("submitit")


@pytest.mark.filterwarnings("ignore::DeprecationWarning:submitit")
def test_the_script_that_submitit_writes_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "copy.sbatch"
    for name, text in (("sbatch", SBATCH.format(copy=copy)), ("srun", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    spec = importlib.util.spec_from_file_location("with_submitit", EXAMPLES / "with_submitit.py")
    assert spec
    assert spec.loader
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "with_submitit", example)
    spec.loader.exec_module(example)
    assert example.submit(EXAMPLES / "models/dlrm.onnx", tmp_path / "logs").job_id == "7"
    result = CliRunner().invoke(main, ["validate", str(copy), "--manager", "slurm", "--json"])
    assert result.exit_code == 0, result.output
    (decision,) = json.loads(result.stdout)["decisions"]
    assert decision["before"]
    assert decision["code"] in ("REWRITE", "KEEP")
    assert decision["need"] is not None  # the model was found by the comment, and read
