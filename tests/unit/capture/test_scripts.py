"""Scripts as users write them, each captured without a change."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gpusage.capture.captured import check_record
from gpusage_hooks.errors import RequestError

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.long]
HERE = Path(__file__).parent
NEEDS = {
    **dict.fromkeys(("generate", "masked"), "transformers"),
    **dict.fromkeys(("trainer", "accelerated"), "accelerate"),
    "with_timm": "timm",
    "with_lightning": "lightning",
    "with_deepspeed": "deepspeed",
    **dict.fromkeys(("with_keras", "keras_loop"), "keras"),
    "with_jax": "jax",
    "with_tensorflow": "tensorflow",
}
"""Libraries that scripts import."""
TRAINS = {"mode": "train", "precision": "fp32"}
"""Keys that most scripts have."""
BF16 = {**TRAINS, "precision": "bf16"}
BY_FSDP = {"gpus": "2", "strategy": "fsdp"}
WITHOUT_GRAPH = ["values_again", "values_at_last", "values_throughout", "values_too_late", "values_to_the_end"]
"""Scripts whose model has no graph at the end."""
EXPECTED = {
    "plain": {"batch": "32", **TRAINS, "optimizer": "momentum"},
    "amp": {"batch": "16", **TRAINS, "precision": "fp16", "optimizer": "adamw"},
    "accumulation": {"batch": "12", **TRAINS, "precision": "bf16", "optimizer": "adam", "accumulate": "4"},
    "lstm": {"batch": "20", "mode": "train?", "precision": "fp32", "optimizer": "sgd?"},
    "gan": {"batch": "24", **TRAINS, "optimizer": "adam"},
    "two_optimizers": {"batch": "48", **TRAINS, "optimizer": "adam~"},  # Adadelta keeps two numbers, too
    "ddp": {"batch": "32", **TRAINS, "optimizer": "sgd", "gpus": "2", "strategy": "ddp"},
    "fsdp": {"batch": "8", **TRAINS, "optimizer": "adamw", **BY_FSDP},
    "fully_sharded": {"batch": "8", **BF16, "optimizer": "adamw", "accumulate": "2", **BY_FSDP},
    "compiled": {"batch": "8", **TRAINS, "precision": "bf16-pure", "optimizer": "adamw", "compile": "on"},
    "checkpointed": {"batch": "8", **TRAINS, "precision": "tf32", "optimizer": "adamw", "checkpointing": "on"},
    "channels_last": {"batch": "4", **TRAINS, "optimizer": "sgd", "layout": "channels_last"},
    "resumes": {"batch": "14", **BF16, "optimizer": "adamw"},
    "pooled": {"batch": "7", **TRAINS, "optimizer": "adam"},
    "own_forward": {"batch": "18", **TRAINS, "optimizer": "adam"},
    "frozen": {"batch": "8", **TRAINS, "optimizer": "momentum~", "trainable": "0.1"},  # 1,000 of 10,000
    "inference": {"batch": "5", "mode": "infer?", "precision": "fp16-pure"},
    "generate": {"batch": "2", "mode": "infer?", "precision": "fp32", "generate": "8+16"},
    "masked": {"batch": "4", **TRAINS, "optimizer": "adamw"},
    "values": {"batch": "6", **TRAINS, "optimizer": "adam"},
    "values_within": {"batch": "6", "mode": "infer?", "precision": "fp32"},
    **{name: {"batch": "6?", **TRAINS, "optimizer": "sgd"} for name in WITHOUT_GRAPH},
    "values_to_the_end": {"batch": "6?", "mode": "infer?", "precision": "fp32"},
    "failing": {"batch": "6", "mode": "train?", "precision": "fp32", "optimizer": "adam?"},
    "hidden_on_gpu": {"batch": "10", **TRAINS, "optimizer": "adam"},
    "autocast_inside": {"batch": "12", **TRAINS, "precision": "bf16", "optimizer": "adamw"},
    "casts": {"batch": "6", **BF16, "optimizer": "adamw"},
    "compiled_step": {"batch": "4", **TRAINS, "optimizer": "sgd", "compile": "on"},
    "toggled": {"batch": "24", **TRAINS, "optimizer": "adam"},
    "peculiar": {"batch": "6", **TRAINS, "optimizer": "sgd"},
    "spawned": {"batch": "16", **TRAINS, "optimizer": "sgd", "accumulate": "2", "gpus": "2", "strategy": "ddp"},
    "images": {"batch": "2?", **TRAINS, "optimizer": "momentum"},
    "lora": {"batch": "6", **TRAINS, "precision": "bf16-pure", "optimizer": "adamw", "trainable": "0.0381"},
    "teacher": {"batch": "32", **TRAINS, "optimizer": "adam~"},
    "penalized": {"batch": "16", **TRAINS, "optimizer": "momentum~"},
    "own_loss": {"batch": "12", **TRAINS, "optimizer": "adam"},
    "rollouts": {"batch": "32", **TRAINS, "optimizer": "adam"},
    "optimizer_each": {"batch": "32", **TRAINS, "optimizer": "adamw"},
    "with_timm": {"batch": "4", **TRAINS, "precision": "fp16", "optimizer": "adam~", "layout": "channels_last"},
    "trainer": {"batch": "4", **TRAINS, "precision": "bf16", "optimizer": "adamw", "accumulate": "2"},
    "accelerated": {"batch": "10", **TRAINS, "precision": "bf16", "optimizer": "adamw", "accumulate": "3"},
    "with_deepspeed": {"batch": "8", **BF16, "optimizer": "adamw", "accumulate": "2", "gpus": "2", "strategy": "zero2"},
    "with_keras": {"batch": "16", **BF16, "optimizer": "momentum"},
    "keras_loop": {"batch": "24", **TRAINS, "optimizer": "adam", "accumulate": "2"},
    "with_lightning": {"batch": "16", **TRAINS, "precision": "bf16", "optimizer": "momentum", "accumulate": "2"},
}
"""The keys of each script; ``?`` marks what is guessed, ``~`` what is mapped."""
MODULES = {
    "plain": [("Sequential", 20 * 64 + 64 + 64 * 2 + 2)],
    "lstm": [("Language", 50 * 16 + 4 * 32 * (16 + 32 + 2) + 4 * 32 * (32 + 32 + 2) + 33 * 50)],
    "gan": [("Sequential", 64 * 32 + 32 + 32 + 1), ("Sequential", 10 * 32 + 32 + 32 * 64 + 64)],
    "two_optimizers": [("Linear", 33 * 8), ("Linear", 9 * 32), ("Linear", 33 * 32)],
    "frozen": [("Adapted", 10_000)],
    "toggled": [("Linear", 11 * 64), ("Linear", 65)],
    "peculiar": [("DataParallel", 9 * 4 + 2 * 4)],
    "images": [("Detector", 28 * 4)],
    "teacher": [("Linear", 84), ("Sequential", 21 * 256 + 257 * 4)],
    "own_loss": [("Linear", 65 * 16), ("Linear", 9 * 64)],
    "values_within": [("Linear", 3), ("Model", 20 + 10)],
    "values_to_the_end": [("Branching", 10)],
}
OTHER_FRAMEWORKS = ("with_jax", "with_tensorflow")
ENDINGS = {
    **dict.fromkeys(EXPECTED, "cycle"),
    "lstm": "by hand",
    "inference": "inference",
    "values_within": "inference",
    "values_to_the_end": "end",
    "generate": "inference",
    "failing": "failed",
}


@pytest.fixture(scope="module")
def records() -> Mapping[str, Mapping[str, Any]]:
    """Return the record of each script."""
    names = [name for name in [*EXPECTED, "no_model", *OTHER_FRAMEWORKS] if name not in NEEDS or find_spec(NEEDS[name])]
    command = [sys.executable, str(HERE / "capture_all.py"), *(str(HERE / "scripts" / f"{name}.py") for name in names)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return {record["name"]: record for record in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_script_shows_its_job(name: str, records: Mapping[str, Mapping[str, Any]]) -> None:
    if name not in records:
        pytest.skip(f"{NEEDS[name]} is not installed")
    captured = check_record(records[name])
    marks = {"seen": "", "mapped": "~", "guessed": "?"}
    assert {key: value + marks[mark] for key, (value, mark) in captured.keys.items()} == EXPECTED[name]
    assert captured.ending == ENDINGS[name]
    assert list(captured.modules) == MODULES.get(name, list(captured.modules))
    if name in WITHOUT_GRAPH:
        assert "must take the same way whatever the values of its inputs are" in captured.graph_failure
        assert captured.graph is None
    else:
        assert captured.graph is not None
        assert captured.graph.parameter_count == sum(count for _, count in captured.modules)


def test_a_program_without_a_model_shows_nothing(records: Mapping[str, Mapping[str, Any]]) -> None:
    assert records["no_model"] == {"name": "no_model", "ending": "end", "failure": "", "frameworks": []}


@pytest.mark.parametrize("name", OTHER_FRAMEWORKS)
def test_a_program_of_another_framework_is_named(name: str, records: Mapping[str, Mapping[str, Any]]) -> None:
    if name not in records:
        pytest.skip(f"{NEEDS[name]} is not installed")
    assert "keys" not in records[name]
    assert records[name]["frameworks"][:1] == [NEEDS[name]]


@pytest.mark.parametrize(
    "forged",
    [
        {},
        {"keys": {"batch": ["32,gpusage=off", "seen"]}, "modules": []},
        {"keys": {"model": ["/etc/passwd", "seen"]}, "modules": []},
        {"keys": {"batch": ["32", "sworn"]}, "modules": []},
        {"keys": {"batch": ["many", "seen"]}, "modules": []},
        {"keys": ["batch"], "modules": []},
        {"keys": {"batch": ["32", "seen"]}, "modules": [["Linear", "x"]]},
        {"keys": {"batch": ["32", "seen"]}, "modules": [], "graph": {"kinds": "none"}},
    ],
)
def test_a_forged_record_is_refused_in_one_sentence(forged: Mapping[str, Any]) -> None:
    with pytest.raises(RequestError, match="Record of the program must be one that") as caught:
        check_record(forged)
    assert "\n" not in str(caught.value)
