"""`gpusage calibrate` from the command line to predictions."""

from __future__ import annotations

import json
from math import nan
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage.cli.calibrate import host_figures
from gpusage.decisions.advisor import advisor
from gpusage_hooks.errors import RequestError

pytestmark = pytest.mark.torch
MODEL = str(Path(__file__).parents[3] / "examples" / "models" / "resnet50.onnx")


def test_a_model_that_does_not_wait_for_its_host_is_left_out_and_one_alone_shows_nothing() -> None:
    assert host_figures([nan, 1.5, 2.0]) == {"host_factor": 1.75, "host_spread": 2.0 / 1.5}
    for hosts in ([nan, nan, nan], [nan, 1.5, nan]):
        with pytest.raises(
            RequestError, match=r"^Two models' steps must wait for their host; got [01]\. Leave this GPU"
        ):
            host_figures(hosts)


def test_a_trial_runs_to_its_end_and_no_prediction_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file, words = tmp_path / "v100.json", ["predict", MODEL, "--gpu", "v100", "--json"]
    usual = CliRunner().invoke(main, words).stdout
    result = CliRunner().invoke(main, ["calibrate", "--device", "cpu", "-o", str(file), "--json"])
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document == json.loads(file.read_text())
    assert (document["gpu"], document["device"], len(document["models"])) == ("v100-sxm2-16gb", "cpu", 6)
    assert all(each["step_s"] > 0 and each["kernels"] > 100 for each in document["models"].values())
    assert result.stderr.startswith("gpusage calibrate: a trial, convolutions, batch 1")
    assert result.stderr.count("gpusage calibrate: a trial, ") == 6

    # A site that names it anyway is told so, and its predictions go on without it.
    settings = tmp_path / "gpusage.toml"
    settings.write_text(f"[gpus]\ncalibration = ['{file}']\n")
    monkeypatch.setenv("GPUSAGE_CONFIG", str(settings))
    advisor.cache_clear()
    try:
        assert CliRunner().invoke(main, words).stdout == usual
        assert "'device' of a calibration must be 'cuda', not a trial; got cpu. Run 'gpusage calibrate'" in caplog.text
        listed = CliRunner().invoke(main, ["gpus"])
        assert (listed.exit_code, "v100-sxm2-16gb" in listed.stdout, len(caplog.records)) == (0, True, 1)
        document |= {"device": "cuda", "host_factor": 3.0, "host_spread": 1.2, "gpu_factor": 1.1}
        file.write_text(json.dumps(document))
        advisor.cache_clear()
        slow, fast = (
            json.loads(each)["predictions"][0]["needs"][0]["step_time_s"]
            for each in (CliRunner().invoke(main, words).stdout, usual)
        )
        assert slow["value"] > fast["value"]
    finally:
        advisor.cache_clear()


def test_a_node_without_a_gpu_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["calibrate"])
    assert result.exit_code == 1
    assert "Device 'cuda' must be an idle GPU; got none. Run it alone on a node with a GPU." in result.stderr
    assert not [*tmp_path.iterdir()]
