"""Offline validation: which scripts are at fault, which are left alone, and that nothing else happens."""

from __future__ import annotations

import json
import os
import time
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpusage.capture.captured import check_record
from gpusage.cli import main
from gpusage.cli.cards.first_run import keep_card, runs_folder, runs_of_job
from gpusage.cli.scripts import MAXIMUM_SCRIPT_BYTES, read_script
from gpusage.decisions.advisor import make_advisor
from gpusage.experience.identity import job_identity
from gpusage.store.opening import open_store
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Allocation, Submitter, Workload
from gpusage_slurm.submission.script import run_record
from recorded_runs import write_run
from records import RECORD, USAGE

MODEL = Path(__file__).parents[3] / "examples" / "models" / "dlrm.onnx"
SILENT = "#!/bin/bash\n#SBATCH --gres=gpu:2\nsrun train\n"
TYPO = "#!/bin/bash\n#SBATCH --gres=gpu:1 --comment=model=r.onnx,bach=3\n"
OFF = "#!/bin/bash\n#SBATCH --gres=gpu:1 --comment=model=absent.onnx,gpusage=off\n"
ABSENT = "#!/bin/bash\n#SBATCH --gres=gpu:1 --comment=model=absent.onnx\n"
SHARED = f"#!/bin/bash\n#SBATCH --gres=gpu:1 --comment=model={MODEL},batch=8,mode=infer,utilization=30\n"
CLUSTER = '[[pools]]\nsite_type = "v100"\ngpu_count = 4\nmps_per_gpu = 100\n'


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cluster.toml").write_text(CLUSTER)
    Path("gpusage.toml").write_text('mode = "enforce"\n')
    monkeypatch.setenv("GPUSAGE_CONFIG", "gpusage.toml")


def test_a_job_that_says_nothing_or_opts_out_is_left_alone() -> None:
    decisions = json.loads(_validate(SILENT, OFF, "--json").stdout)["decisions"]
    assert [decision["code"] for decision in decisions] == ["DECLINE", "DECLINE"]
    assert decisions[0] == {
        "script": "0.sbatch",
        "code": "DECLINE",
        "before": "gres/gpu:2",
        "after": "gres/gpu:2",
        "reasons": ["the job names no model"],
        "need": None,
        "notes": [],
        "prices": [],
    }


def test_a_job_whose_run_shows_its_model_is_kept_and_says_so_unless_the_site_observes_none() -> None:
    script = "#!/bin/bash\n#SBATCH --gres=gpu:1\n#GPUSAGE learn=on\npython train.py\n"
    (shown,) = json.loads(_validate(script, "--json").stdout)["decisions"]
    assert (shown["code"], shown["reasons"]) == ("KEEP", ["learn=on: this run shows the model"])
    with Path("gpusage.toml").open("a") as file:
        file.write('[learning]\ncapture = "off"\n')
    (left,) = json.loads(_validate(script, "--json").stdout)["decisions"]
    assert (left["code"], left["reasons"]) == ("DECLINE", ["the job names no model"])


@pytest.mark.parametrize(
    ("capture", "directive", "is_by_run"),
    [
        ("opt-in", "#GPUSAGE learn=on", True),
        ("opt-in", "# no word of learning", False),
        ("all", "# no word of learning", True),
        ("all", "#GPUSAGE learn=off", False),
        ("all", "#GPUSAGE model=r.onnx,batch=2", False),
        ("off", "#GPUSAGE learn=on", False),
    ],
)
def test_the_next_job_of_a_script_is_decided_by_what_its_run_showed_as_sbatch_decides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capture: str, directive: str, *, is_by_run: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    Path("r.onnx").write_bytes(MODEL.read_bytes())
    with Path("gpusage.toml").open("a") as file:
        file.write(f'[learning]\ncapture = "{capture}"\n')
    script = f"#!/bin/bash\n#SBATCH --gres=gpu:1\n{directive}\npython train.py\n"
    record = runs_folder() / run_record(script, "")
    write_run(record, "1234", Path("train.py"))
    (run,) = runs_of_job("1234")
    keys = {"batch": ("8", "seen"), "mode": ("infer", "seen")}
    captured = check_record({"keys": keys, "modules": [["Dlrm", 10]]})
    keep_card(run, captured, make_advisor().read(str(MODEL)))
    (shown,) = json.loads(_validate(script, "--json").stdout)["decisions"]
    assert ("as job 1234's run showed" in shown["reasons"], shown["code"] == "REWRITE") == (is_by_run, is_by_run)
    assert any(price["taken"] for price in shown["prices"]) is is_by_run
    Path("train.py").write_text("print(1)")
    (stale,) = json.loads(_validate(script, "--json").stdout)["decisions"]
    assert "as job 1234's run showed" not in stale["reasons"]


def test_the_user_s_variable_counts_as_for_sbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a comment, before the lines of the script."""
    Path("r.onnx").write_bytes(MODEL.read_bytes())
    monkeypatch.setenv("GPUSAGE_COMMENT", "model=r.onnx,batch=8,mode=infer,utilization=30")
    lines = SILENT.replace("srun", "#GPUSAGE model=absent.onnx\nsrun")
    shown = json.loads(_validate(SILENT.replace(":2", ":1"), lines.replace(":2", ":1"), OFF, "--json").stdout)
    assert [decision["code"] for decision in shown["decisions"]] == ["REWRITE", "REWRITE", "DECLINE"]


@pytest.mark.parametrize(("script", "subject"), [(TYPO, "Key 'bach'"), (ABSENT, "Model 'absent.onnx'")])
def test_a_script_with_an_error_is_named_and_the_others_are_still_judged(script: str, subject: str) -> None:
    result = _validate(script, SILENT)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"gpusage: error: 0.sbatch: {subject}")
    assert result.stderr.count("\n") == 1
    assert "1.sbatch\n  DECLINE: gres/gpu:2 is left as it is" in result.stdout


def test_with_json_the_document_tells_the_errors_beside_the_decisions() -> None:
    document = json.loads(_validate(TYPO, SILENT, "--json").stdout)
    assert document["error"]["code"] == "request"
    assert document["errors"][0]["script"] == "0.sbatch"
    assert [decision["script"] for decision in document["decisions"]] == ["1.sbatch"]
    assert document["cluster"]["origin"] == "file"


@pytest.mark.parametrize(
    ("options", "notes"),
    [
        ("--comment=model=r.onnx,batch=64,mode=infer,precision=fp16 --export=ALL,X=1", []),
        ("--comment=model=r.onnx,batch=64", ["assumed mode=train, precision=fp32"]),
        ("--comment=model=r.onnx,batch=1,mode=infer,precision=fp16 --export=NONE", ["--export=NONE: where the Lua of"]),
        ("--export=NONE", []),
    ],
)
def test_what_the_decision_rests_on_beside_the_script_is_said(options: str, notes: list[str]) -> None:
    Path("r.onnx").write_bytes(MODEL.read_bytes())
    script = f"#!/bin/bash\n#SBATCH --gres=gpu:1 {options}\n"
    (decision,) = json.loads(_validate(script, "--json").stdout)["decisions"]
    assert [note[: len(begin)] for note, begin in zip(decision["notes"], notes, strict=True)] == notes
    shown = " ".join(_validate(script).stdout.split())
    assert [note for note in notes if f" note: {note}" in shown] == notes


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_a_mode_that_changes_nothing_is_mentioned(mode: str) -> None:
    Path("gpusage.toml").write_text(f'mode = "{mode}"\n')
    assert f"Here nothing is changed in mode {mode}. Below is what mode 'enforce' would do." in _validate(SILENT).stdout


def test_a_kill_switch_that_is_on_is_mentioned() -> None:
    Path("gpusage.toml").write_text('mode = "enforce"\nkill_switch = "off"\n')
    assert "'enforce'" not in _validate(SILENT).stdout
    Path("off").touch()
    assert "Here the kill switch is on (off). Below is what mode 'enforce' would do." in _validate(SILENT).stdout


def test_without_a_slurm_it_says_that_the_cluster_is_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("0.sbatch").write_text(SILENT)
    monkeypatch.setenv("PATH", "")
    result = CliRunner().invoke(main, ["validate", "0.sbatch"])
    assert result.exit_code == 0
    assert result.stdout.startswith("Example cluster (name yours with --cluster): 8 t4, 8 v100, ")
    document = json.loads(CliRunner().invoke(main, ["validate", "0.sbatch", "--json"]).stdout)
    assert document["cluster"]["origin"] == "example"


def test_a_script_that_cannot_be_read_is_an_error_of_that_script(tmp_path: Path) -> None:
    result = _validate(SILENT, "absent.sbatch", str(tmp_path))
    assert result.exit_code == 1
    assert "'absent.sbatch' must be a readable file; got: No such file or directory." in result.stderr
    assert "must be a readable file; got: Is a directory." in result.stderr


def test_a_script_is_read_up_to_slurms_limit() -> None:
    Path("long").write_bytes(b"#" * (MAXIMUM_SCRIPT_BYTES + 1))
    with pytest.raises(RequestError, match="must be at most 4 MiB"):
        read_script("long")
    Path("binary").write_bytes(b"\xff\x00")
    assert read_script("binary") == "�\x00"  # sbatch will refuse it


def _validate(*words: str) -> Result:
    """Validate scripts by their texts; other words are passed on."""
    arguments = []
    for index, word in enumerate(words):
        if word.startswith("#!"):
            Path(f"{index}.sbatch").write_text(word)
        arguments.append(f"{index}.sbatch" if word.startswith("#!") else word)
    return CliRunner().invoke(main, ["validate", *arguments, "--cluster", "cluster.toml"])


def test_the_price_of_each_share_is_shown_with_why_it_was_not_taken() -> None:
    (decision,) = json.loads(_validate(SHARED, "--json").stdout)["decisions"]
    prices = decision["prices"]
    assert {(price["gpu"], price["share_percent"]) for price in prices} == {("v100", size) for size in (25, 33, 50, 75)}
    taken = [price for price in prices if price["taken"]]
    assert {price["share_percent"] for price in taken} == {decision["need"]["share_percent"]}
    assert all(price["slowdown"]["low"] >= 1 for price in prices)
    assert all(bool(price["reason"]) is not price["taken"] for price in prices)
    shown = _validate(SHARED).stdout
    assert "beside partners" in shown
    assert "taken" in shown


def test_what_this_host_s_store_tells_of_earlier_runs_counts_where_it_is_asked_for(tmp_path: Path) -> None:
    """A job without a name has its script's, and the user is who calls."""
    Path("gpusage.toml").write_text(f'mode = "enforce"\n[store]\nurl = "sqlite:///{tmp_path}/d.db"\n')
    submitter = Submitter(fields={"user": str(os.getuid()), "job_name": "0.sbatch"})
    identity = job_identity(submitter, graph=make_advisor().read(str(MODEL)))
    workload = Workload(batch_size=8, mode="infer")
    record = replace(RECORD, identity=identity, workload=workload, number="a" * 12, decided_at_s=time.time())
    usage = replace(USAGE, number="a" * 12, ended_at_s=time.time(), sampled_s=600, alone_s=600, gpu_utilization=0.25)
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        store.record(record)
        store.record_usage([replace(usage, outcome="completed", gpu="v100-sxm2-16gb", granted=Allocation())])
    plain = SHARED.replace(",utilization=30", "")
    (with_it,), (without,) = (
        json.loads(_validate(plain, "--json", *options).stdout)["decisions"] for options in (["--learned"], [])
    )
    assert any("1 earlier run was busy 25 % (" in reason for reason in with_it["reasons"])
    assert not any("earlier run" in reason for reason in without["reasons"])


@pytest.mark.parametrize("host_factor", [1.0, 4.0])
def test_a_calibration_that_moves_the_figures_is_noted(host_factor: float) -> None:
    today = date.today().isoformat()  # noqa: DTZ011 - as the command writes it
    measured = {"schema": "gpusage.calibration/1", "gpu": "v100", "device": "cuda", "measured_on": today}
    factors = {"host_factor": host_factor, "host_spread": 1.1, "gpu_factor": 1.0}
    Path("v100.json").write_text(json.dumps({**measured, **factors}))
    with Path("gpusage.toml").open("a") as file:
        file.write('[gpus]\ncalibration = ["v100.json"]\n')
    (decision,) = json.loads(_validate(SHARED.replace(",utilization=30", ""), "--json").stdout)["decisions"]
    is_noted = any("calibration, hosts take 4 times" in note for note in decision["notes"])
    assert is_noted == (host_factor > 1)
