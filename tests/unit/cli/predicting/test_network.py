"""What the network between hosts carries: the job's word, the site's, and where neither is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpusage.cli import main
from gpusage.decisions.advisor import advisor

GPT2 = str(Path(__file__).parents[4] / "examples" / "models" / "gpt2.onnx")


def invoked(*words: str) -> Result:
    return CliRunner().invoke(main, ["predict", GPT2, "--gpu", "a100", "--gpus", "16", "--json", *words])


def step_s(*words: str) -> float:
    result = invoked(*words)
    assert result.exit_code == 0, result.stderr
    return float(json.loads(result.stdout)["predictions"][0]["needs"][0]["step_time_s"]["value"])


def write_site(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (folder / "gpusage.toml").write_text(text)
    monkeypatch.setenv("GPUSAGE_CONFIG", str(folder / "gpusage.toml"))
    advisor.cache_clear()


@pytest.fixture(autouse=True)
def site_of_this_host() -> Iterator[None]:
    """Forget the test's site at the end."""
    yield
    advisor.cache_clear()


def test_a_jobs_word_goes_before_the_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = step_s()
    assert step_s("--network", "200") == usual < step_s("--network", "5Gb/s")
    write_site(tmp_path, monkeypatch, "[network]\ngbit_per_s = { a100 = 5 }\n")
    assert step_s() == step_s("--network", "5") > usual
    assert step_s("--network", "200") == usual
    need = json.loads(invoked("--explain").stdout)["predictions"][0]["needs"][0]
    parts_s = need["explanation"]["step_time_s"] + need["explanation"]["exchange_s"]
    assert parts_s == pytest.approx(need["step_time_s"]["value"], rel=1e-3)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("gbit_per_s = { a100 = 0 }", "must be Gb/s above 0; got 0"),
        ("gbit_per_s = { a1000 = 5 }", "a1000"),
    ],
)
def test_a_rate_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, sentence: str
) -> None:
    write_site(tmp_path, monkeypatch, f"[network]\n{line}\n")
    result = invoked()
    assert result.exit_code == 1
    assert sentence in result.stderr


def test_the_header_and_json_have_the_unit_beside_the_rate() -> None:
    run = ["predict", GPT2, "--gpu", "a100", "--gpus", "16", "--network", "12.5"]
    shown = CliRunner().invoke(main, run).stdout
    assert "gpus 16, network 12.5 Gb/s," in " ".join(shown.split())
    workload = json.loads(invoked("--network", "12.5").stdout)["predictions"][0]["workload"]
    assert workload["network_bytes_per_s"] == 12.5e9 / 8
    assert "network" not in workload
