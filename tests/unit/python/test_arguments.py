"""What a caller of the Python API hands in wrong is said in one sentence."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpusage
from gpusage.python.arguments import Run, read_workload
from gpusage_hooks.errors import GraphError, RequestError
from gpusage_hooks.job_keys import JOB_KEYS
from gpusage_hooks.types import Workload
from graphs import convolution_graph

GRAPH = convolution_graph()


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"share": 0}, "'share' must be a whole number of percent, 1 to 100; got 0"),
        ({"share": 33.3}, "'share' must be a whole number of percent, 1 to 100; got 33.3"),
        ({"share": 50, "utilization": 60}, "'utilization' must be above 0 and at most 1, as 0.6 for 60 %; got 60"),
        ({"share": 50, "utilization": 0}, "'utilization' must be above 0 and at most 1, as 0.6 for 60 %; got 0"),
        ({"share": 50, "utilization": (0.6, 0)}, "'utilization' must have a batch size, as"),
        ({"share": 50, "utilization": (60, 32)}, "'utilization' must be above 0 and at most 1, as 0.6 for 60 %; got"),
        (
            {"share": 50, "utilization": (0.6, 1, 2)},
            "'utilization' must be above 0 and at most 1, as 0.6 for 60 %; got",
        ),
        ({"share": 50, "step_time_s": 10**400}, "'step_time_s' must be a number of seconds above 0; got 1"),
        ({"trainable": 10**400}, "'trainable' must be above 0 and at most 1, as 0.02; got 1"),
        ({"share": 50, "step_time_s": -1}, "'step_time_s' must be a number of seconds above 0; got -1"),
        ({"share": 50, "step_time_s": float("nan")}, "'step_time_s' must be a number of seconds above 0; got nan"),
        ({"batch_size": 0}, "'batch_size' must be a whole number, at least 1 and at most 1000000000; got 0"),
        ({"batch_size": -8}, "'batch_size' must be a whole number, .*; got -8"),
        ({"batch_size": 2.5}, "'batch_size' must be a whole number, .*; got 2.5"),
        ({"batch_size": "64"}, "'batch_size' must be a whole number, .*; got '64'"),
        ({"accumulate": 0}, "'accumulate' must be a whole number, .*; got 0"),
        ({"accumulate": 8, "mode": "infer"}, "'accumulate' belongs to a training job; got 8"),
        ({"gpus": 0}, "'gpus' must be a whole number, .*; got 0"),
        (
            {"gpus": 4, "mode": "infer"},
            "'gpus' must stand beside 'generate' .*; got 4. Add 'generate=\\(512, 128\\)'.",
        ),
        ({"gpus": 4, "strategy": "tensor"}, "'strategy' must be one of ddp, zero1, .*; got 'tensor'"),
        ({"gpus": 4, "strategy": "pipeline"}, "where 'pipeline' counts .*; got 'pipeline'. Write 'pipeline=2'."),
        ({"gpus": 4, "tensor": 3}, "'gpus' must be a multiple of tensor x context x pipeline, 3; got 4"),
        (
            {"gpus": 8, "expert": 3},
            "'expert' must divide the number of GPUs that train .* = 8; got 3",
        ),
        ({"gpus": 2, "tensor": 2, "lora": 8}, "'lora' must not stand beside 'tensor', .*; got 8"),
        ({"gpus": 2, "expert": 2, "lora": 8}, "'lora' must not stand beside 'expert', .*; got 8"),
        ({"tensor": 2}, "'tensor' must stand beside 'gpus'; got 2"),
        ({"gpus": 2, "pipeline": 2, "generate": (8, 8)}, "'pipeline' belongs to a training job; got 2"),
        ({"gpus": 4, "strategy": "fsdp", "generate": (8, 8)}, "'strategy' must be pipeline in inference; got 'fsdp'"),
        ({"strategy": "fsdp"}, "'strategy' must stand beside 'gpus'; got 'fsdp'"),
        ({"precision": "int4"}, "of quantised weights must stand beside adapters in training; got 'int4'"),
        (
            {"precision": "fp8-mixed", "mode": "infer"},
            "must be fp8-mixed in training alone; .* Write \"precision='fp8'\".",
        ),
        (
            {"gpus": 4, "mode": "infer", "network_bytes_per_s": 1e9, "generate": (8, 8)},
            "Remove 'network_bytes_per_s' or",
        ),
        ({"precision": "int4", "trainable": 1}, "of quantised weights must stand beside adapters in training"),
        ({"lora": 16, "trainable": 0.1}, "'lora' must not stand beside 'trainable'; got 16"),
        ({"generate": 512, "mode": "infer"}, "'generate' must be tokens of the prompt and new tokens"),
        ({"generate": (512, 0), "mode": "infer"}, "'generate' must be tokens of the prompt and new tokens"),
        (
            {"generate": (512, 128), "mode": "train"},
            "belongs to an inference job; got \\(512, 128\\). Add \"mode='infer'\"",
        ),
        ({"trainable": 0}, "'trainable' must be above 0 and at most 1, as 0.02; got 0"),
        ({"compile": 1}, "'compile' must be True or False; got 1"),
        ({"checkpointing": "on"}, "'checkpointing' must be True or False; got 'on'"),
        ({"mode": "trian"}, "'mode' must be one of train, infer; got 'trian'"),
        ({"mode": ["train"]}, "'mode' must be one of train, infer; got \\['train'\\]"),
        ({"precision": "fp64"}, "'precision' must be one of fp32, tf32, fp16, bf16.*; got 'fp64'"),
        ({"engine": "vllm", "mode": "train"}, "'engine' belongs to an inference job; got 'vllm'"),
        ({"optimizer": "Adamix"}, "'optimizer' must be one of none, sgd, .*; got 'Adamix'"),
        ({"batch": 8}, "'batch' must be one that gpusage knows; got 'batch'. Did you mean 'batch_size'\\?"),
        ({"tensor_parallel": 2}, "got 'tensor_parallel'. Did you mean 'tensor'\\?"),
        ({"TENSOR": 2}, "got 'TENSOR'. Did you mean 'tensor'\\?"),
        ({"network": 2}, "got 'network'. Did you mean 'network_bytes_per_s'\\?"),
        ({"tensor": 2, "pipeline": 4}, "'tensor' must stand beside 'gpus'; got 2. Add 'gpus=8' or remove 'tensor'."),
        ({"gpus": 4, "sequence_parallel": True}, "must stand beside 'tensor'; got True. Add 'tensor=2'"),
        ({"gpus": 3, "tensor": 2}, "must be a multiple of .*, 2; got 3. Write 'gpus=2' or a multiple of it."),
        ({"gpus": 16, "network_bytes_per_s": 0}, "at least 1 byte per second, as 25e9 for 200 Gb/s; got 0"),
        ({"gpus": 16, "network_bytes_per_s": 1e-300}, "at least 1 byte per second"),
        ({"gpu": 100}, "'gpu' must be a name such as 'a100', or a list of names; got 100"),
        ({"gpu": []}, "'gpu' must be a name such as 'a100', or a list of names; got \\[\\]"),
        ({"graph": 3}, "'graph' must be what gpusage.read_model returns, a path or a name; got 3"),
    ],
)
def test_a_wrong_argument_gets_one_sentence(arguments: dict[str, Any], rule: str) -> None:
    with pytest.raises(RequestError, match=rule):
        gpusage.predict(**{"graph": GRAPH, "gpu": "a100", **arguments})


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"gpu": ["a100"]}, "'gpu' must be a name such as 'a100'; got"),
        ({"shares": 50}, "'shares' must be a list of percents; got 50"),
        ({"shares": [0]}, "'share' must be a whole number of percent, 1 to 100; got 0"),
        ({"mode": "banana"}, "'mode' must be one of train, infer; got 'banana'"),
    ],
)
def test_explain_checks_its_arguments_too(arguments: dict[str, Any], rule: str) -> None:
    with pytest.raises(RequestError, match=rule):
        gpusage.explain(**{"graph": GRAPH, "gpu": "a100", **arguments})


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"shape": [128]}, "'shape' must map names to sizes, as {'seq': 128}; got \\[128\\]"),
        ({"shape": {"seq": 0}}, "'shape' must have whole numbers above 0 for 'seq'.*; got 0"),
        ({"shape": {"seq": "128"}}, "'shape' must have whole numbers above 0 for 'seq'.*; got '128'"),
        ({"shape": {1: 128}}, "'shape' must have texts as names.*; got 1"),
        ({"example_inputs": (3,)}, "'example_inputs' must be left out where the model is a path"),
    ],
)
def test_read_model_checks_its_arguments_too(arguments: dict[str, Any], rule: str) -> None:
    with pytest.raises(RequestError, match=rule):
        gpusage.read_model("examples/models/resnet18.onnx", **arguments)


def test_what_is_no_need_is_not_colocated() -> None:
    wrong: Any = [GRAPH]
    with pytest.raises(RequestError, match="'needs' must be a list of what "):
        gpusage.predict_colocation(wrong)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2)
)


@given(st.dictionaries(st.sampled_from([*Run.__annotations__, "gpu", "share", "utilization", "step_time_s"]), VALUES))
def test_any_argument_is_taken_or_refused_in_one_sentence(arguments: dict[str, Any]) -> None:
    try:
        gpusage.predict(**{"graph": GRAPH, "gpu": "a100", **arguments})
    except gpusage.GpuUsageError as error:
        assert "\n" not in str(error)  # noqa: PT017 - whether it is raised is not asked


def test_each_field_of_a_workload_is_an_argument_with_a_type() -> None:
    rows = [row for row in JOB_KEYS.values() if row.group in ("known", "accepted") or row.name in ("shape", "steps")]
    elsewhere = {target.partition(".")[0] for row in rows for target in row.targets}
    names = {field.name for field in fields(Workload)} - elsewhere
    assert set(Run.__annotations__) == names
    assert names <= set(inspect.signature(gpusage.predict).parameters)
    assert names <= set(inspect.signature(gpusage.explain).parameters)


def test_a_share_is_predicted_as_documented_and_numbers_of_numpy_will_do() -> None:
    known = gpusage.predict(GRAPH, gpu="a100", share=50, batch_size=64, utilization=0.6)
    wide: Any = np.int64(50)
    timed = gpusage.predict(GRAPH, gpu="a100", share=wide, batch_size=np.int64(64), step_time_s=np.float32(0.5))  # type: ignore[typeddict-item]
    assert (known.share_percent, timed.share_percent) == (50, 50)
    assert 1.0 <= timed.slowdown.value < known.slowdown.value
    same = gpusage.predict(GRAPH, gpu="a100", share=50, batch_size=64, utilization=(0.6, 64))
    smaller = gpusage.predict(GRAPH, gpu="a100", share=50, batch_size=64, utilization=(0.6, 8))
    assert same == known
    assert smaller.gpu_utilization.low < smaller.gpu_utilization.value < smaller.gpu_utilization.high


def test_a_model_that_is_no_path_is_said_not_to_be_one() -> None:
    with pytest.raises(GraphError, match="Model 'nowhere"):
        gpusage.predict("nowhere.onnx", gpu="a100")


@pytest.mark.parametrize(("written", "precision"), [("bf16", "bf16-pure"), ("bf16-mixed", "bf16")])
def test_frozen_weights_below_adapters_have_two_bytes_unless_they_are_cast(written: str, precision: str) -> None:
    assert read_workload({"lora": 8, "precision": written}).precision == precision
