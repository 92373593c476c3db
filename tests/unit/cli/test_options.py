"""What a word on the command line asks for, and what a shell completes."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from gpusage.cli import main
from gpusage.cli.options import read_request
from gpusage_hooks.errors import RequestError


def test_the_commands_options_hold_for_what_a_word_leaves_open() -> None:
    options = {"batch": 16, "mode": "infer", "precision": None, "shape": ("seq=128",)}
    first, second = (read_request(each, options) for each in ("a.onnx", "b.onnx,batch=64,shape=seq=512"))
    assert (first.workload.batch_size, second.workload.batch_size) == (16, 64)
    assert (first.workload.mode, second.workload.mode) == ("infer", "infer")
    assert (first.workload.shape, second.workload.shape) == ((("seq", (128,)),), (("seq", (512,)),))


def test_a_word_that_says_the_default_overrides_the_commands_option() -> None:
    request = read_request("a.onnx,mode=train", {"mode": "infer"})
    assert request.workload.mode == "train"


def test_a_file_with_a_comma_in_its_name_is_a_model_where_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a,batch=2.onnx").touch()
    request = read_request("a,batch=2.onnx", {"batch": 8})
    assert (request.model, request.workload.batch_size) == ("a,batch=2.onnx", 8)


def test_a_model_that_opts_out_cannot_be_predicted() -> None:
    with pytest.raises(RequestError, match="got 'gpusage=off'"):
        read_request("a.onnx,gpusage=off", {})


def test_a_shell_completes_model_files_and_looks_into_a_lone_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models/inner").mkdir(parents=True)
    for name in ("models/inner/a.onnx", "models/inner/b.pt2", "models/inner/notes.txt", "modes.txt"):
        Path(name).touch()
    assert _completed(["predict"], "mo") == ["models/inner/a.onnx", "models/inner/b.pt2"]
    assert _completed(["colocate", "x.onnx"], "models/inner/b") == ["models/inner/b.pt2"]
    assert _completed(["predict"], "absent/") == []


def test_a_shell_completes_gpus_and_commands() -> None:
    assert "v100-sxm2-16gb" in _completed(["predict", "m.onnx", "--gpu"], "v100")
    assert all(name.startswith("h1") for name in _completed(["predict", "m.onnx", "--gpu"], "H1"))
    assert _completed([], "col") == ["colocate"]


def _completed(words: list[str], incomplete: str) -> list[str]:
    assert isinstance(main, click.Group)
    items = ShellComplete(main, {}, "gpusage", "_GPUSAGE_COMPLETE").get_completions(words, incomplete)
    return [item.value for item in items]


def test_what_is_known_of_a_share_is_a_wish_of_each_model_that_says_nothing_else() -> None:
    inputs = {"slowdown": "1.5", "utilization": "60", "step_time": None}
    first, second = (read_request(each, inputs) for each in ("r.onnx", "s.onnx,slowdown=2"))
    assert (first.workload.slowdown, first.workload.alone.utilization) == (1.5, 0.6)
    assert second.workload.slowdown == 2.0


def test_how_a_model_is_trained_is_an_option_of_each_model_that_says_nothing_else() -> None:
    inputs = {"accumulate": 8, "trainable": "0.02", "checkpointing": "on"}
    first, second = (read_request(each, inputs) for each in ("r.onnx", "s.onnx,accumulate=4"))
    assert (first.workload.accumulate, second.workload.accumulate) == (8, 4)
    assert (first.workload.trainable, second.workload.trainable) == (0.02, 0.02)
    assert first.workload.checkpointing is True


def test_several_gpus_are_options_of_each_model_that_says_nothing_else() -> None:
    first, second = (read_request(each, {"gpus": 4, "strategy": "fsdp"}) for each in ("r.onnx", "s.onnx,gpus=2"))
    assert (first.workload.gpus, second.workload.gpus) == (4, 2)
    assert (first.workload.strategy, second.workload.strategy) == ("fsdp", "fsdp")
