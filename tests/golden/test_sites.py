"""What becomes of six jobs on thirteen kinds of sites, as the best admin would write it, each with its reason.

The files in `sites/` have the form of what sites publish, not their text. Jobs: inference of a small model, training of
a large one, the small one with a GPU type, a language model that serves, training on two GPUs, and on two nodes of two
GPUs what FSDP does not fit into any V100.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import main

HERE = Path(__file__).parent
TYPES = {
    "mila": "h100",
    "mig_only": "nvidia_a100_80gb_pcie_3g.40gb",
    "profiles": "h100",
    "narval": "a100",
    "cedar": "v100l",
    "fir": "h100",
    "grace": "a100",
    "della": "a100",
    "perlmutter": "a100",
    "lumi": "mi250",
    "jean_zay": "h100",
    "deepops": "nvidia_h100_80gb_hbm3",
    "lab": "h100",
}
"""The GPU type that the third job names."""
LARGE_BATCHES = {"della": "512", "perlmutter": "512"}
"""Where 256 fits on each GPU."""
JOBS = ("small", "large", "typed", "serve", "several", "sharded")


@pytest.mark.parametrize("site", TYPES)
def test_six_jobs_get_what_the_best_admin_would_write(
    site: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_plugins: None, request: pytest.FixtureRequest
) -> None:
    """`pytest --update-golden` remakes the files; read the difference before you commit it."""
    configuration = tmp_path / "gpusage.toml"
    configuration.write_text('mode = "enforce"\n')
    monkeypatch.setenv("GPUSAGE_CONFIG", str(configuration))
    monkeypatch.chdir(HERE.parents[1])
    for job in JOBS:
        text = (HERE / "sites" / "jobs" / f"{job}.sbatch").read_text()
        text = text.replace("TYPE", TYPES[site]).replace("COUNT", LARGE_BATCHES.get(site, "256"))
        (tmp_path / f"{job}.sbatch").write_text(text)
    scripts = [str(tmp_path / f"{job}.sbatch") for job in JOBS]
    result = CliRunner().invoke(main, ["validate", *scripts, "--cluster", f"tests/golden/sites/{site}.conf", "--json"])
    assert result.exit_code == 0, result.stderr

    document = json.loads(result.stdout)
    lines = [f"note: {note}" for note in document["cluster"]["notes"]]
    for job, decision in zip(JOBS, document["decisions"], strict=True):
        change = f" -> {decision['after']}" if decision["code"] == "REWRITE" else ""
        lines += [f"{job}: {decision['code']} {decision['before']}{change}"]
        lines += [f"  {reason}" for reason in decision["reasons"]]
    text = "".join(f"{line}\n" for line in lines)
    path = HERE / "sites" / f"{site}.txt"
    if request.config.getoption("--update-golden", default=False):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
