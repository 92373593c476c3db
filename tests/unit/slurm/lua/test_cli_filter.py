"""gpusage_cli.lua in a stand-in for sbatch and srun; the real ones are in tests/slurm."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gpusage.graphs.card.error import encode_error
from gpusage.settings.configuration import CaptureMode
from gpusage_hooks.comment import MODEL_NAMES
from gpusage_slurm.install.lua_scripts import LUA_FOLDER, cli_filter_block, quoted
from gpusage_slurm.submission.request import decode_missing_card_reason
from gpusage_slurm.submission.script import run_record

Drive = Callable[..., dict[str, Any]]

SHARED = {"GPUSAGE_DECISION": "mps:40", "SLURM_JOB_ID": "7", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}
OPTIONS = """
  local store = %s
  -- As in Slurm, an option takes a text, and nil is an error.
  local options = setmetatable({}, { __index = store, __newindex = function(_, name, value)
    if type(value) ~= "string" then error("string expected, got " .. type(value)) end
    store[name] = value
  end })
"""
REPORT = """
  local report = { verdict = tostring(verdict) }
  for name, value in pairs(store) do report[name] = value end
  return report
"""


def srun(options: str) -> str:
    return (
        OPTIONS % options
        + "  require('gpusage_cli').wrap{}\n  local verdict = slurm_cli_pre_submit(options, 0)\n"
        + REPORT
    )


@pytest.mark.parametrize(
    ("option", "gres"),
    [
        ("gres = 'gres:gpu:1'", "mps:40"),
        ("gres = 'gres/gpu:1'", "mps:40"),
        ("gres = 'gres/gpu:v100:1,gres/nvme:2'", "mps:40,nvme:2"),
        ("gres = 'gpu'", "mps:40"),
        ("gpus = '1'", "mps:40"),
        ("gpus = 'v100:1'", "mps:40"),
        ("['gpus-per-node'] = '1'", "mps:40"),
        ("['gpus-per-task'] = '1', ['gpu-bind'] = 'per_task:1'", "mps:40"),
        ("['gpus-per-socket'] = 'v100'", "mps:40"),
        ("['mem-per-gpu'] = '100'", "mps:40"),
        ("gres = 'none', gpus = '1'", "none"),
    ],
)
def test_an_inner_srun_that_asks_for_the_gpu_gets_the_share(drive: Drive, option: str, gres: str) -> None:
    report = drive(srun(f"{{ type = 'srun', {option} }}"), **SHARED)
    emptied = {name: report.get(name, "") for name in report if name.startswith("gpus")}
    assert report["gres"] == gres
    assert set(emptied.values()) <= {""}
    assert report.get("mem-per-gpu", "0") == "0"
    assert report["verdict"] == "0"


def test_what_a_task_asks_for_beside_its_gpu_stays_and_a_task_per_gpu_is_a_task(drive: Drive) -> None:
    report = drive(srun("{ type = 'srun', ['tres-per-task'] = 'cpu:2,gres/gpu:1,gres/nvme:1' }"), **SHARED)
    assert (report["gres"], report["tres-per-task"]) == ("mps:40", "cpu:2,gres/nvme:1")
    report = drive(srun("{ type = 'srun', ['ntasks-per-gpu'] = '2', ['cpus-per-gpu'] = '0' }"), **SHARED)
    assert (report["gres"], report["ntasks"], report["ntasks-per-gpu"]) == ("mps:40", "2", "65534")


@pytest.mark.parametrize(
    "option", ["gpus = '1', ['gpu-bind'] = 'none'", "['gpus-per-task'] = '1'", "['tres-bind']='x'"]
)
def test_a_binding_to_gpus_is_one_to_the_share(drive: Drive, option: str) -> None:
    """22.05 has no option tres-bind: what is written there reads as nothing."""
    report = drive(srun(f"{{ type = 'srun', {option} }}"), **SHARED)
    assert report["tres-bind"] == "gres/mps:none"
    old = srun(f"{{ type = 'srun', {option} }}").replace("store[name] = value", "if name ~= 'tres-bind' then %s end")
    report = drive(
        old.replace("%s", "store[name] = value").replace("['tres-bind']='x'", "['gpu-bind']='none'"), **SHARED
    )
    assert report["gpu-bind"] == "closest"


@pytest.mark.parametrize(
    "option",
    [
        "ntasks = '2', ['ntasks-per-gpu'] = '-2', ['cpus-per-gpu'] = '0'",
        "gres = 'gres:nvme:1'",
        "gres = 'none'",
        "gpus = '2', ['gpu-bind'] = 'none'",
        "gres = 'gpu:0'",
        "gres = 'gpu:1', jobid = '8'",
    ],
)
def test_an_inner_srun_that_asks_for_anything_else_is_left_alone(drive: Drive, option: str) -> None:
    before = drive(srun(f"{{ type = 'srun', {option} }}"))
    assert drive(srun(f"{{ type = 'srun', {option} }}"), **SHARED) == before


@pytest.mark.parametrize("missing", sorted(SHARED))
def test_a_job_that_holds_no_share_of_ours_is_left_alone(drive: Drive, missing: str) -> None:
    report = drive(srun("{ type = 'srun', gres = 'gres:gpu:1' }"), **{**SHARED, missing: ""})
    assert report["gres"] == "gres:gpu:1"


def test_a_job_that_salloc_made_inside_one_of_ours_is_left_alone(drive: Drive) -> None:
    report = drive(srun("{ type = 'srun', gres = 'gres:gpu:1' }"), **SHARED, GPUSAGE_JOB="6")
    assert report["gres"] == "gres:gpu:1"
    report = drive(srun("{ type = 'srun', gres = 'gres:gpu:1' }"), **SHARED, GPUSAGE_JOB="7")
    assert report["gres"] == "mps:40"


def test_a_mark_that_is_no_share_is_not_put_into_a_request(drive: Drive) -> None:
    report = drive(srun("{ type = 'srun', gres = 'gres:gpu:1' }"), **{**SHARED, "GPUSAGE_DECISION": "gpu:8"})
    assert report["gres"] == "gres:gpu:1"


def stand_in(tmp_path: Path, body: str) -> Path:
    """Return a command that stands for `gpusage`, in a folder whose name needs quoting."""
    command = tmp_path / "it's a $folder" / "gpusage"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f"#!/bin/sh\n{body}\n")
    command.chmod(0o755)
    return command


def sbatch(
    command: Path, options: str, *, posix: bool = False, limit_s: float = 10, capture: CaptureMode = "opt-in"
) -> str:
    stand_in_posix = (
        "local set\n  package.preload['posix.stdlib'] = function()"
        + (
            " return { setenv = function(n, v) set = (set and set .. ' ' or '') .. n .. '=' .. v end }"
            if posix
            else " error('none here')"
        )
        + " end\n"
    )
    names = (*MODEL_NAMES, "*.acme", "acme.v2:*", "*.7z")
    block = cli_filter_block(LUA_FOLDER, str(command), limit_s, capture, names)
    return (
        stand_in_posix
        + OPTIONS % options
        + block
        + "  local verdict = slurm_cli_pre_submit(options, 0)\n"
        + REPORT.replace("return report", "report.set = set\n  return report")
    )


@pytest.mark.parametrize("kind", ["sbatch", "srun", "salloc"])
def test_a_dry_run_is_marked_as_one(drive: Drive, tmp_path: Path, kind: str) -> None:
    """Slurm does not tell job_submit of `--test-only`."""
    script = sbatch(tmp_path / "none", f"{{ type = '{kind}', ['test-only'] = 'set' }}", posix=True)
    assert drive(script)["set"] == "SLURM_GPUSAGE_DRY_RUN=1"
    assert "set" not in drive(script.replace("= 'set'", "= 'unset'"))


@pytest.mark.parametrize(
    ("comment", "variable", "line", "counts"),
    [
        ("model=c.onnx", "model=v.onnx", "#GPUSAGE model=s.onnx", "model=c.onnx"),
        ("rule_train", "model=v.onnx", "#GPUSAGE model=s.onnx", "model=v.onnx"),
        ("rule_train", "elsewhere", "#GPUSAGE model=s.onnx\n#GPUSAGE batch=4", "model=s.onnx,batch=4"),
        ("rule_train", "", "true\n#GPUSAGE model=s.onnx", None),
    ],
)
def test_what_is_said_to_us_is_in_the_comment_else_in_the_environment_else_in_the_script(
    drive: Drive, tmp_path: Path, comment: str, variable: str, line: str, counts: str | None
) -> None:
    command = stand_in(tmp_path, 'for word; do :; done; printf %s "$word" >"$0.seen"; echo QUJD')
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n{line}\ntrue\n")
    options = f"{{ type = 'sbatch', comment = '{comment}', parsable = 'set', argv = {{ '{script}' }} }}"
    answer = f"n == 'GPUSAGE_COMMENT' and '{variable}' or real(n)"
    own = f"local real = os.getenv\nos.getenv = function(n) return {answer} end\n"
    sent = str(drive(own + sbatch(command, options, posix=True)).get("set", ""))
    seen = command.with_name("gpusage.seen")
    assert (seen.read_text() if seen.exists() else None) == counts
    assert ("SLURM_GPUSAGE_COMMENT=" in sent) is (counts == "model=v.onnx")
    assert "SLURM_GPUSAGE_QUIET=1" in sent


@pytest.mark.parametrize("posix", [True, False])
def test_a_script_that_is_a_fifo_is_not_waited_for(drive: Drive, tmp_path: Path, *, posix: bool) -> None:
    """By then sbatch has read it, and nobody writes to it again."""
    fifo = tmp_path / "it's a fifo"
    os.mkfifo(fifo)
    report = drive(sbatch(tmp_path / "none", f'{{ type = "sbatch", argv = {{ "{fifo}" }} }}', posix=posix))
    assert "set" not in report


def test_sbatch_sends_the_card_in_the_environment(drive: Drive, tmp_path: Path) -> None:
    command = stand_in(tmp_path, 'printf "%s|" "$@" >"$0.seen"; echo QUJD+/==')
    comment = 'model=it\'s "odd" $(touch x) `id` \\.onnx,batch=4'
    report = drive(sbatch(command, f"{{ type = 'sbatch', comment = {quoted(comment)} }}", posix=True))
    assert report["set"] == "SLURM_GPUSAGE_CARD=QUJD+/=="
    assert "export" not in report
    assert command.with_name("gpusage.seen").read_text() == f"job-card|--limit-s|10.000|--|{comment}|"


@pytest.mark.parametrize(("folder", "seen"), [("", "."), ("it's here", "it's here"), ("not here", ".")])
def test_a_relative_path_is_looked_up_where_the_job_will_run(
    drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, seen: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "it's here").mkdir()
    command = stand_in(tmp_path, 'pwd >"$0.seen"')
    drive(sbatch(command, f"{{ type = 'sbatch', comment = 'r.onnx', chdir = {quoted(folder)} }}"), CDPATH=str(tmp_path))
    assert command.with_name("gpusage.seen").read_text().strip() == str((tmp_path / seen).resolve())


@pytest.mark.parametrize(
    ("export", "expected"),
    [
        ("", "ALL,GPUSAGE_CARD=QUJD"),
        ("export = 'ALL'", "ALL,GPUSAGE_CARD=QUJD"),
        ("export = 'NONE'", "NONE"),
        ("export = 'ALL,X=1'", "ALL,X=1"),
        ("export = 'HOME,X=1'", "HOME,X=1"),
    ],
)
def test_without_luaposix_the_users_own_export_stays(drive: Drive, tmp_path: Path, export: str, expected: str) -> None:
    command = stand_in(tmp_path, "echo QUJD")
    report = drive(sbatch(command, f"{{ type = 'sbatch', comment = 'r.onnx', {export} }}"))
    assert report["export"] == expected


@pytest.mark.parametrize(
    ("deadline", "sent"),
    [("2026-12-24T18:00:05", True), ("Unknown", False), ("24 Dec 18:00", False)],  # SLURM_TIME_FORMAT changes it
)
def test_the_deadline_travels_beside_the_card_in_seconds_since_1970(
    drive: Drive, tmp_path: Path, deadline: str, *, sent: bool
) -> None:
    options = f"{{ type = 'sbatch', comment = 'r.onnx', deadline = {quoted(deadline)} }}"
    seconds = f"{datetime(2026, 12, 24, 18, 0, 5).timestamp():.0f}"  # noqa: DTZ001 - Slurm's is of the host's clock
    with_posix = drive(sbatch(stand_in(tmp_path, "echo QUJD"), options, posix=True))
    assert with_posix["set"] == "SLURM_GPUSAGE_CARD=QUJD" + f" SLURM_GPUSAGE_DEADLINE={seconds}" * sent
    without = drive(sbatch(tmp_path / "it's a $folder" / "gpusage", options))
    assert without["export"] == "ALL,GPUSAGE_CARD=QUJD" + f",GPUSAGE_DEADLINE={seconds}" * sent


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("exit 3", "gpusage job-card on the host of the submission ended with status 3"),
        ("sleep 20; echo QUJD", "describing the model took longer than slurm.card_limit_s"),
        ("exit 127", "the host of the submission has no gpusage where"),
        ("echo 'not a card'", "ended with status unknown"),
        ("head -c 100000 /dev/zero | tr '\\0' A", "ended with status unknown"),
        (f"echo {encode_error('no such model')}", "no such model"),
    ],
)
def test_where_there_is_no_card_the_reason_travels_and_sbatch_goes_on(
    drive: Drive, tmp_path: Path, body: str, reason: str
) -> None:
    command = stand_in(tmp_path, body)
    report = drive(sbatch(command, "{ type = 'sbatch', comment = 'r.onnx' }", posix=True, limit_s=0.3))
    assert reason in str(decode_missing_card_reason(report["set"].removeprefix("SLURM_GPUSAGE_CARD=")))
    assert (report["verdict"], report["logged"]) == ("0", "")


def test_a_host_without_gpusage_says_so(drive: Drive, tmp_path: Path) -> None:
    options = "{ type = 'sbatch', comment = 'r.onnx' }"
    report = drive(sbatch(tmp_path / "none", options, posix=True))
    reason = decode_missing_card_reason(report["set"].removeprefix("SLURM_GPUSAGE_CARD="))
    assert reason == "the host of the submission has no gpusage where its cli_filter.lua looks for it"


def test_a_comment_that_job_card_has_nothing_to_say_to_sends_nothing(drive: Drive, tmp_path: Path) -> None:
    report = drive(sbatch(stand_in(tmp_path, "true"), "{ type = 'sbatch', comment = 'r.onnx' }", posix=True))
    assert "set" not in report


@pytest.mark.parametrize(
    ("comment", "called"),
    [
        ("r.onnx", True),
        (" /data/r.pt2 ", True),
        ("model=r,batch=2", True),
        ("timm:resnet50", True),
        ("hf:bert-base-uncased", True),
        ("/models/bert/config.json", True),
        ("project=x; gpusage: model=r", True),
        ("Gpusage: model=r", True),
        ("r.onnx,batch=2", True),
        ("batch=2, model=r", True),
        ("net.acme,batch=2", True),  # a plugin's, which the installer has named
        ("acme.v2:net", True),
        ("net.7z,batch=2", True),
        ("", False),
        ("project=x", False),
        ("r.onnx is my model", False),
        ("run 1.2", False),
        ("v1.2", False),
        ("https://example.org/ticket", False),
        ("ticket:1234", False),
        ("john.doe", False),
        ("nf-core:rnaseq", False),
        ("data.csv,x", False),
        ("x=r.onnx", False),
        ("ABC-1: try again", False),
    ],
)
def test_python_is_started_only_for_a_comment_that_may_be_ours(
    drive: Drive, tmp_path: Path, comment: str, *, called: bool
) -> None:
    command = stand_in(tmp_path, 'touch "$0.seen"')
    drive(sbatch(command, f"{{ type = 'sbatch', comment = {quoted(comment)} }}"))
    assert command.with_name("gpusage.seen").exists() is called


RUN = "{ type = 'sbatch', comment = %s, argv = { [0] = %s, 'epochs=3' } }"


def job_script(folder: Path, text: str) -> Path:
    script = folder / "job.sh"
    script.write_text(f"#!/bin/sh\n{text}\npython train.py\n")
    return script


@pytest.mark.parametrize(
    ("capture", "directive", "comment", "learns"),
    [
        ("opt-in", "", "", False),
        ("opt-in", "#GPUSAGE learn=on", "", True),
        ("opt-in", "", "learn=on", True),
        ("opt-in", "#GPUSAGE Learn=ON", "", True),
        ("opt-in", "#GPUSAGE learn=yes", "", True),
        ("opt-in", "", "project=7; gpusage: learn=on; more", True),
        ("opt-in", "", "gpusage: learn=on", True),
        ("opt-in", "", "learn=perhaps", False),
        ("opt-in", "#GPUSAGE learn=on", "learn=off", False),
        ("all", "", "", True),
        ("all", "", "project=7", True),
        ("all", "#GPUSAGE learn=off", "", False),
        ("all", "", "model=r.onnx", False),
        ("off", "#GPUSAGE learn=on", "learn=on", False),
    ],
)
def test_a_job_shows_its_model_if_it_or_its_site_says_so(
    drive: Drive, tmp_path: Path, capture: CaptureMode, directive: str, comment: str, *, learns: bool
) -> None:
    script = job_script(tmp_path, directive)
    options = RUN % (quoted(comment), quoted(str(script)))
    report = drive(
        sbatch(stand_in(tmp_path, "echo QQ=="), options, posix=True, capture=capture), XDG_CACHE_HOME=str(tmp_path)
    )
    path = report.get("set", "").partition("SLURM_GPUSAGE_LEARN=")[2].partition(" ")[0]
    assert path.startswith(f"{tmp_path}/gpusage/runs/") is learns


def test_a_job_whose_script_has_shown_its_model_has_that_comment_and_card(drive: Drive, tmp_path: Path) -> None:
    script = job_script(tmp_path, "#GPUSAGE learn=on")
    options = RUN % ("''", quoted(str(script)))
    command = stand_in(tmp_path, 'echo "model=/c/r.card.json,batch=2,first_run=7"; echo QQ==')
    first = drive(sbatch(command, options, posix=True), XDG_CACHE_HOME=str(tmp_path))
    assert "SLURM_GPUSAGE_COMMENT" not in first["set"]  # there is no record yet, so Python is not started
    record = Path(first["set"].partition("SLURM_GPUSAGE_LEARN=")[2].partition(" ")[0])
    record.mkdir(parents=True)
    second = drive(sbatch(command, options, posix=True), XDG_CACHE_HOME=str(tmp_path))
    assert "SLURM_GPUSAGE_COMMENT=model=/c/r.card.json,batch=2,first_run=7" in second["set"]
    assert "SLURM_GPUSAGE_CARD=QQ==" in second["set"]
    measured = stand_in(tmp_path, 'echo "learn=on,first_run=7"')
    without_card = drive(sbatch(measured, options, posix=True), XDG_CACHE_HOME=str(tmp_path))
    assert "SLURM_GPUSAGE_COMMENT=learn=on,first_run=7" in without_card["set"]
    assert "SLURM_GPUSAGE_CARD" not in without_card["set"]
    stale = drive(sbatch(stand_in(tmp_path, "echo"), options, posix=True), XDG_CACHE_HOME=str(tmp_path))
    assert "SLURM_GPUSAGE_COMMENT" not in stale["set"]
    other = drive(sbatch(command, options.replace("epochs=3", "epochs=4"), posix=True), XDG_CACHE_HOME=str(tmp_path))
    assert "SLURM_GPUSAGE_COMMENT" not in other["set"]


@pytest.mark.parametrize(("chdir", "absolute"), [("", ""), ("runs", "/runs"), ("/scratch/é", None)])
def test_validate_finds_the_record_of_a_script_and_its_arguments(
    drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chdir: str, absolute: str | None
) -> None:
    """Slurm makes the folder of --chdir a full path, and that of the command is the default."""
    monkeypatch.chdir(tmp_path)
    script = job_script(tmp_path, "#GPUSAGE learn=on\n# Größe 1")
    folder = chdir if absolute is None else f"{tmp_path}{absolute}"
    options = f"{{ type = 'sbatch', chdir = {quoted(folder)}, argv = {{ [0] = {quoted(str(script))}, '0.1', 'é' }} }}"
    report = drive(sbatch(stand_in(tmp_path, "echo"), options, posix=True), XDG_CACHE_HOME=str(tmp_path))
    record = report["set"].partition("SLURM_GPUSAGE_LEARN=")[2].partition(" ")[0]
    assert Path(record).name == run_record(script.read_text(), chdir, ["0.1", "é"])
    assert run_record("#" * 16384, chdir) == run_record("", chdir) == ""


@pytest.mark.parametrize("kind", ["salloc", "scron"])
def test_other_commands_are_left_alone(drive: Drive, tmp_path: Path, kind: str) -> None:
    command = stand_in(tmp_path, 'touch "$0.seen"')
    report = drive(sbatch(command, f"{{ type = '{kind}', comment = 'r.onnx', gres = 'gres:gpu:1' }}"), **SHARED)
    assert report["gres"] == "gres:gpu:1"
    assert not command.with_name("gpusage.seen").exists()


def test_the_installers_block_survives_that_gpusage_is_gone(drive: Drive, tmp_path: Path) -> None:
    block = cli_filter_block(tmp_path, "gpusage", 2, "opt-in")
    calls = "slurm_cli_setup_defaults() + slurm_cli_pre_submit({}, 0) + slurm_cli_post_submit()"
    report = drive(f"package.path = ''\n{block}\npackage.path = arg[1] .. '/?.lua'\nreturn {{ verdict = {calls} }}")
    assert "module 'gpusage_cli' not found" in report["logged"]
    assert report["verdict"] == "0"


def test_the_sites_own_filter_comes_first_and_may_refuse(drive: Drive) -> None:
    report = drive(
        OPTIONS % "{ type = 'srun', gres = 'gres:gpu:1' }"
        + """
        function slurm_cli_pre_submit() return slurm.ERROR end
        function slurm_cli_post_submit() return 5 end
        require("gpusage_cli").wrap{}
        return { verdict = slurm_cli_pre_submit(options, 0), post = slurm_cli_post_submit(), gres = options.gres,
                 defaults = slurm_cli_setup_defaults() }
        """,
        **SHARED,
    )
    assert (report["verdict"], report["post"], report["gres"], report["defaults"]) == ("-1", "5", "gres:gpu:1", "0")
