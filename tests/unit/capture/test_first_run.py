"""A program that shows its model in its own run computes the same, whatever fails in the observation."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.capture import ON_START
from gpusage.cli.cards.first_run import comment_of_run
from gpusage.devices.catalogue import builtin_catalogue
from waiting import wait_until

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.long]
HERE = Path(__file__).parent
NEEDS = {
    **dict.fromkeys(("generate", "masked"), "transformers"),
    **dict.fromkeys(("trainer", "accelerated"), "accelerate"),
    "with_timm": "timm",
    "with_lightning": "lightning",
    "with_deepspeed": "deepspeed",
}
"""Libraries that scripts import."""
TRAINS = {"mode": "train", "precision": "fp32"}
BF16 = {**TRAINS, "precision": "bf16"}
BY_FSDP = {"gpus": "2", "strategy": "fsdp"}
SEEN = {
    "plain": {"batch": "32", **TRAINS, "optimizer": "momentum"},
    "amp": {"batch": "16", **TRAINS, "optimizer": "adamw"},
    "accumulation": {"batch": "12", **TRAINS, "optimizer": "adam", "accumulate": "4"},
    "gan": {"batch": "24", **TRAINS, "optimizer": "adam"},
    "two_optimizers": {"batch": "48", **TRAINS, "optimizer": "adam"},
    "ddp": {"batch": "32", **TRAINS, "optimizer": "sgd", "gpus": "2", "strategy": "ddp"},
    "fsdp": {"batch": "8", **TRAINS, "optimizer": "adamw", **BY_FSDP},
    "fully_sharded": {"batch": "8", **BF16, "optimizer": "adamw", "accumulate": "2", **BY_FSDP},
    "compiled": {"batch": "8", **TRAINS, "precision": "bf16-pure", "optimizer": "adamw", "compile": "on"},
    "checkpointed": {"batch": "8", **TRAINS, "precision": "tf32", "optimizer": "adamw", "checkpointing": "on"},
    "channels_last": {"batch": "4", **TRAINS, "optimizer": "sgd", "layout": "channels_last"},
    "frozen": {"batch": "8", **TRAINS, "optimizer": "momentum", "trainable": "0.1"},
    "inference": {"batch": "5", "mode": "infer", "precision": "fp16-pure"},
    "generate": {"batch": "2", "mode": "infer", "precision": "fp32", "generate": "8+16"},
    "masked": {"batch": "4", **TRAINS, "optimizer": "adamw"},
    "evaluates_first": {"batch": "5", **TRAINS, "optimizer": "sgd"},
    "by_hand": {"batch": "7", **TRAINS, "optimizer": "sgd"},
    "peculiar": {"batch": "6", **TRAINS, "optimizer": "sgd"},
    "varying": {"batch": "2", "mode": "infer", "precision": "fp32"},
    "unrelated": {"batch": "6", **TRAINS, "optimizer": "sgd"},
    "fluent": {"batch": "9", **TRAINS, "optimizer": "sgd"},
    "hidden_on_gpu": {"batch": "10", **TRAINS, "optimizer": "adam"},
    "autocast_inside": {"batch": "12", **TRAINS, "precision": "bf16", "optimizer": "adamw"},
    "toggled": {"batch": "24", **TRAINS, "optimizer": "adam"},
    "lora": {"batch": "6", **TRAINS, "precision": "bf16-pure", "optimizer": "adamw", "trainable": "0.0381"},
    "teacher": {"batch": "32", **TRAINS, "optimizer": "adam"},
    "penalized": {"batch": "16", **TRAINS, "optimizer": "momentum"},
    "own_loss": {"batch": "12", **TRAINS, "optimizer": "adam"},
    "rollouts": {"batch": "32", **TRAINS, "optimizer": "adam"},
    "optimizer_each": {"batch": "32", **TRAINS, "optimizer": "adamw"},
    "with_timm": {"batch": "4", **TRAINS, "optimizer": "adam", "layout": "channels_last"},
    "trainer": {"batch": "4", **TRAINS, "optimizer": "adamw", "accumulate": "2"},
    "accelerated": {"batch": "10", **TRAINS, "precision": "bf16", "optimizer": "adamw", "accumulate": "3"},
    "with_deepspeed": {"batch": "8", **BF16, "optimizer": "adamw", "accumulate": "2", "gpus": "2", "strategy": "zero2"},
    "with_lightning": {"batch": "16", **TRAINS, "optimizer": "momentum", "accumulate": "2"},
}
"""The keys of each script on a processor, where autocast of a GPU has no say."""
SHOWS_NOTHING = ("lstm", "failing", "no_model", "values", "fx", "compiled_step", "gives_up")
"""Scripts that end too early, whose model decides by values, or whose modules a tracer or compiler calls."""
BREAKING = (
    "begin",
    "_count",
    "_after_step",
    "_cycle_passes",
    "_write",
    "_observation",
    "_write_record",
    "in_another_process",
)


def run_lines(names: list[str], *options: str) -> list[Mapping[str, Any]]:
    """Return a line for each script that can run here, and for each method that breaks."""
    names = [name for name in names if name not in NEEDS or find_spec(NEEDS[name])]
    scripts = [str(HERE / "scripts" / f"{name}.py") for name in names]
    command = [sys.executable, str(HERE / "observe_all.py"), *options, *scripts]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return [*map(json.loads, done.stdout.splitlines())]


@pytest.fixture(scope="module")
def lines() -> Mapping[str, Mapping[str, Any]]:
    return {line["name"]: line for line in run_lines([*SEEN, *SHOWS_NOTHING])}


@pytest.mark.parametrize("name", [*SEEN, *SHOWS_NOTHING])
def test_an_observed_program_computes_the_same_to_the_last_bit(
    name: str, lines: Mapping[str, Mapping[str, Any]]
) -> None:
    if name not in lines:
        pytest.skip(f"{NEEDS[name]} is not installed")
    line = lines[name]
    assert line["observed"] == line["alone"]
    assert line["observed"]["is_restored"]


@pytest.mark.parametrize("name", SEEN)
def test_a_program_shows_its_job(name: str, lines: Mapping[str, Mapping[str, Any]]) -> None:
    if name not in lines:
        pytest.skip(f"{NEEDS[name]} is not installed")
    record = Path(lines[name]["record"])

    def recorded_keys() -> Mapping[str, str]:
        keys = json.loads(record.with_name(f"{name}.json").read_text())["keys"]
        return {key: value for key, (value, _) in keys.items()}

    wait_until(record.with_name(f"{name}.json").exists)
    if name == "evaluates_first":  # its evaluation wrote a record before
        wait_until(lambda: recorded_keys()["mode"] == "train")
    assert recorded_keys() == SEEN[name]
    assert record.with_name(f"{name}.card.json").exists()


@pytest.mark.parametrize("keeps_weights", [True, False])
def test_what_fsdp_keeps_in_rows_is_made_whole(*, keeps_weights: bool) -> None:
    """With its `use_orig_params` or without: a model in two processes, its layer apart, a tied weight, a frozen one."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from gpusage.capture.inside.another_process import undivide
    from gpusage.capture.inside.observer import weights_of

    model = nn.Sequential(nn.Embedding(10, 16), nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), nn.Linear(16, 10))
    model[2].weight = model[0].weight
    model[1][1].requires_grad_(not keeps_weights)
    expected = [(tuple(weight.shape), weight.requires_grad) for weight in model.parameters()]
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        words = {"device_id": "cpu", "use_orig_params": keeps_weights}
        model[1] = FullyShardedDataParallel(model[1], **words)
        cast = MixedPrecision(param_dtype=torch.bfloat16)
        wrapper = FullyShardedDataParallel(model, mixed_precision=cast, **words)
        policies = undivide([model], [wrapper])
    finally:
        torch.distributed.destroy_process_group()
    assert [policy.param_dtype for policy in policies] == [torch.bfloat16, None]
    assert [(tuple(weight.shape), weight.requires_grad) for weight in weights_of(model)] == expected
    assert model(torch.zeros(3, dtype=torch.int64, device="meta")).shape == (3, 10)


def test_two_processes_of_torchrun_compute_the_same_and_show_their_model(tmp_path: Path) -> None:
    """The script that divides its model is the hardest; `test_an_observed_program...` has others with two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(HERE / "observe_all.py"), "--here", str(HERE / "scripts" / "fully_sharded.py")]

    def run_lines_of_ranks(**variables: str) -> list[Mapping[str, str]]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return sorted(map(json.loads, done.stdout.splitlines()), key=lambda line: str(line["rank"]))

    alone = run_lines_of_ranks()
    record = tmp_path / "record"
    learn = {"GPUSAGE_LEARN": str(record), "GPUSAGE_LEARN_JOB": "JOB", "JOB": "1", "PYTHONPATH": str(ON_START)}
    assert run_lines_of_ranks(**learn) == alone
    assert [line["error"] for line in alone] == ["", ""]
    wait_until(record.with_name("record.json").exists)
    keys = json.loads(record.with_name("record.json").read_text())["keys"]
    assert {key: value for key, (value, _) in keys.items()} == SEEN["fully_sharded"]


def test_whatever_fails_the_program_does_not_notice() -> None:
    lines = run_lines(["plain", "inference"], "--breaking", ",".join(BREAKING))
    for line in lines:
        assert line["observed"] == line["alone"]
        assert line["observed"]["error"] == ""
    folder = Path(lines[0]["record"]).parent
    wait_until(lambda: {path.stem for path in folder.glob("*.called")} == {*BREAKING}, lambda: [*folder.iterdir()])


def run_python(folder: Path, program: str, **variables: str) -> str:
    """Return what *program* prints; it imports no PyTorch but a stand-in in *folder*."""
    environment = {**os.environ, "PYTHONPATH": f"{ON_START}:{folder}", **variables}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_the_users_own_sitecustomize_runs_as_if_ours_were_not_there(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('own', __file__)")
    for learn in ("", str(tmp_path / "record")):
        text = run_python(tmp_path, "import sitecustomize; print(sitecustomize.__file__)", GPUSAGE_LEARN=learn)
        assert text == f"own {tmp_path}/sitecustomize.py\n{tmp_path}/sitecustomize.py\n"


@pytest.mark.parametrize("python", ["python2.7", "python3.6", "python3.8"])
def test_old_pythons_run_our_sitecustomize_without_a_word(tmp_path: Path, python: str) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ON_START}:{tmp_path}", "GPUSAGE_LEARN": str(tmp_path / "r")}
    try:
        done = subprocess.run([python, "-c", "print(1)"], env=environment, capture_output=True, text=True, check=False)
    except OSError:
        pytest.skip(f"{python} is not installed")
    if "command not found" in done.stderr:
        pytest.skip(f"{python} is not installed")  # pyenv's own stand-in says so
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_old_pythons_can_read_our_sitecustomize() -> None:
    source = (ON_START / "sitecustomize.py").read_text()
    assert not [node for node in ast.walk(ast.parse(source, feature_version=(3, 4))) if isinstance(node, ast.AnnAssign)]
    assert "->" not in source
    assert 'f"' not in source


def test_nothing_of_ours_stays_where_nobody_asked_for_it_or_where_it_is_not_the_first_process(tmp_path: Path) -> None:
    program = "import sys; print(sum('sitecustomize' in str(type(each)) for each in sys.meta_path), sys.path[1:2])"
    path = f"[{str(tmp_path)!r}]"
    assert run_python(tmp_path, program) == f"0 {path}\n"
    assert run_python(tmp_path, program, GPUSAGE_LEARN="/r", RANK="1") == f"0 {path}\n"
    assert run_python(tmp_path, program, GPUSAGE_LEARN="/r", RANK="0") == f"1 {path}\n"


@pytest.mark.parametrize("name", ["statistics", "secrets", "json5"])
def test_a_module_of_the_programs_own_is_not_imported_for_us(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(f"print('{name}')")
    (tmp_path / "with_torch.py").write_text("import torch")
    assert run_python(tmp_path, "import with_torch", GPUSAGE_LEARN=str(tmp_path / "r")) == run_python(
        tmp_path, "import with_torch"
    )


def test_torch_is_found_and_loaded_as_without_us(tmp_path: Path) -> None:
    """Our observation cannot begin with this one, which the program does not notice."""
    (tmp_path / "torch.py").write_text("value = 3")
    program = """
        import importlib.util, sys
        assert importlib.util.find_spec("torch").origin.endswith("torch.py")
        import torch
        print(torch.value, type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__)
        print([each for each in sys.meta_path if "sitecustomize" in str(type(each)) and "Torch" in str(type(each))])
    """
    assert (
        run_python(tmp_path, program, GPUSAGE_LEARN=str(tmp_path / "r")) == "3 SourceFileLoader SourceFileLoader\n[]\n"
    )


KEYS = {
    "batch": ["16", "seen"],
    "mode": ["train", "seen"],
    "precision": ["fp32", "seen"],
    "optimizer": ["adamw", "seen"],
}


def write_record(folder: Path, **changes: Any) -> Path:
    """Write a record of a program of its own, and return its path less its suffix."""
    program = folder / "train.py"
    program.write_text("print()")
    document = {
        "job": "1234",
        "program": str(program),
        "keys": KEYS,
        "modules": [["Linear", 10]],
        "program_digest": hashlib.sha256(b"print()").hexdigest(),
    }
    (folder / "r.json").write_text(json.dumps({**document, **changes}))
    (folder / "r.card.json").write_text("{}")
    return folder / "r"


def test_the_comment_of_the_next_job_is_what_was_seen_and_measured(tmp_path: Path) -> None:
    record = write_record(tmp_path)
    seen = f"model={record}.card.json,batch=16,mode=train,precision=fp32,optimizer=adamw"
    assert comment_of_run(record, builtin_catalogue()) == f"{seen},first_run=1234"
    digest = json.loads((tmp_path / "r.json").read_text())["program_digest"]
    measured = {"program_digest": digest, "step_time_s": 0.0123, "gpu": "Tesla V100-SXM2-16GB"}
    (tmp_path / "r.measured.json").write_text(json.dumps(measured))
    assert comment_of_run(record, builtin_catalogue()) == f"{seen},step_time=12.3ms@v100-sxm2-16gb,first_run=1234"
    (tmp_path / "r.measured.json").write_text(json.dumps({**measured, "program_digest": "of the program before"}))
    assert comment_of_run(record, builtin_catalogue()) == f"{seen},first_run=1234"


@pytest.mark.parametrize(
    "changes",
    [
        {"varies": True},
        {"program_digest": "0"},
        {"program": "/nowhere"},
        {"program": "/dev/zero"},
        {"keys": {"model": ["/etc/passwd", "seen"]}},
        {"keys": {**KEYS, "batch": ["16,gpusage=off", "seen"]}},
        {"job": "1,slo=1ms"},
        {"modules": "none"},
    ],
)
def test_a_record_that_no_longer_holds_or_is_forged_says_nothing(tmp_path: Path, changes: Mapping[str, Any]) -> None:
    assert comment_of_run(write_record(tmp_path, **changes), builtin_catalogue()) is None


def test_a_record_that_others_may_write_says_nothing(tmp_path: Path) -> None:
    record = write_record(tmp_path)
    (tmp_path / "r.json").chmod(0o666)
    assert comment_of_run(record, builtin_catalogue()) is None
    (tmp_path / "r.json").unlink()
    assert comment_of_run(record, builtin_catalogue()) is None


PARTS = st.fixed_dictionaries(
    {
        "job": st.sampled_from("12"),
        "program_digest": st.sampled_from("ab"),
        "keys": st.sampled_from([{"mode": ["train", "seen"]}, {"mode": ["infer", "seen"]}]),
        "modules": st.sampled_from([[["A", 1]], [["B", 2]]]),
    }
)


@given(
    known=st.builds(lambda parts, varies: {**parts, **({"varies": True} if varies else {})}, PARTS, st.booleans()),
    seen=PARTS,
)
def test_of_two_runs_the_record_holds_one_and_is_marked_if_the_same_program_showed_something_else(
    known: dict[str, Any], seen: dict[str, Any]
) -> None:
    from gpusage.capture.inside.record import record_of  # needs PyTorch

    record = {**record_of(known, seen)}
    varies = record.pop("varies", False)
    record.pop("programs", None)
    was_varying = known.pop("varies", False)
    assert record in (known, seen)
    is_same_job, is_same_program = (known[name] == seen[name] for name in ("job", "program_digest"))
    if is_same_job and known["keys"] != seen["keys"]:
        assert record["keys"]["mode"][0] == "train"
    elif is_same_program:
        differ = (known["keys"], known["modules"]) != (seen["keys"], seen["modules"])
        assert varies == (differ or was_varying)
    else:
        assert varies == is_same_job  # several programs of one job train
    assert record_of({}, seen) == seen


def test_a_record_stays_marked_while_each_job_runs_the_same_two_programs() -> None:
    from gpusage.capture.inside.record import record_of  # needs PyTorch

    record: Mapping[str, Any] = {}
    for job, program in ("1a", "1b", "2a", "2b", "3a"):
        keys = {"mode": ["train", "seen"]}
        record = record_of(record, {"job": job, "program_digest": program, "keys": keys, "modules": []})
        assert record.get("varies", False) == ((job, program) != ("1", "a"))
    fresh = record_of(record, {"job": "4", "program_digest": "c", "keys": keys, "modules": []})
    assert "varies" not in fresh
