"""What one run shows of a job, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.experience.identity import family, settings_key
from gpusage.experience.profile_rows import profile_row
from gpusage.experience.runs import model_runs, run_of
from gpusage.store.rows import Observation
from gpusage_hooks.types import Allocation, Decoding, Usage, Workload
from records import RECORD
from runs import V100, WHO

DECIDED = replace(RECORD, identity=WHO, predicted_utilization=0.8)
USAGE = Usage(
    number="",
    manager="slurm",
    job_id="1",
    user="ada",
    gpu=V100,
    outcome="completed",
    started_at_s=1e9,
    ended_at_s=1e9 + 600,
    sampled_s=600,
    alone_s=600,
    gpu_utilization=0.4,
    memory_bytes=10**9,
)


def test_a_run_alone_to_its_end_tells_everything() -> None:
    run = run_of(USAGE, DECIDED, 60)
    assert run is not None
    assert (run.utilization, run.duration_s, run.predicted_utilization) == (0.4, 600, 0.8)
    assert run.settings == "infer,64,fp32,momentum"


@pytest.mark.parametrize("change", [{"alone_s": 500}, {"gpu_utilization": None}])
def test_beside_others_a_utilization_is_nobody_s_own(change: dict[str, float | None]) -> None:
    run = run_of(replace(USAGE, **change), DECIDED, 60)  # type: ignore[arg-type]
    assert run is not None
    assert (run.utilization, run.memory_bytes) == (None, 10**9)


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param(replace(USAGE, outcome="failed"), id="failed"),
        pytest.param(replace(USAGE, outcome="cancelled"), id="cancelled"),
        pytest.param(replace(USAGE, sampled_s=59), id="too short"),
    ],
)
def test_what_did_not_do_its_work_or_was_hardly_looked_at_teaches_nothing(usage: Usage) -> None:
    assert not [*model_runs([Observation(usage=usage, decision=DECIDED)], 60)]


def test_a_record_without_a_model_teaches_nothing() -> None:
    assert not [*model_runs([Observation(usage=USAGE, decision=RECORD)], 60)]


def test_out_of_memory_teaches_however_short_it_was_and_tells_of_memory_alone() -> None:
    run = run_of(replace(USAGE, outcome="out_of_memory", sampled_s=1, alone_s=1), DECIDED, 60)
    assert run is not None
    assert (run.out_of_memory, run.utilization, run.duration_s) == (True, None, None)


def test_a_training_that_its_time_limit_ends_tells_no_duration() -> None:
    run = run_of(replace(USAGE, outcome="timed_out"), DECIDED, 60)
    assert run is not None
    assert (run.utilization, run.duration_s) == (0.4, None)


def test_what_was_predicted_for_another_gpu_is_not_compared() -> None:
    run = run_of(replace(USAGE, gpu="t4"), DECIDED, 60)
    assert run is not None
    assert run.predicted_utilization is None


@pytest.mark.parametrize(
    ("name", "kind"), [("ResNet50", "resnet"), ("timm:vit_base", "vit"), ("/m/gpt2.onnx", "gpt"), ("7", "")]
)
def test_a_family_is_the_first_word_of_a_name(name: str, kind: str) -> None:
    assert family(name) == kind


@pytest.mark.parametrize(
    ("granted", "percent"),
    [
        (Allocation(division="percentage", share_percent=33, thread_percent=66), 66),
        (Allocation(division="percentage", share_percent=33), 33),
        (Allocation(division="whole", share_percent=33, trouble="no MPS"), 100),
    ],
)
def test_what_counts_is_how_much_of_the_gpu_a_job_could_use(granted: Allocation, percent: int) -> None:
    run = run_of(replace(USAGE, granted=granted), DECIDED, 60)
    assert run is not None
    assert run.share_percent == percent


def test_training_with_frozen_weights_is_another_manner_and_no_row_for_predictors() -> None:
    plain = Workload(batch_size=8)
    assert settings_key(plain) == "train,8,fp32,momentum"
    assert settings_key(replace(plain, accumulate=4, trainable=0.02)) == (
        "train,8,fp32,momentum,accumulate=4,trainable=0.02"
    )
    assert profile_row(USAGE, replace(DECIDED, workload=plain), 60) is not None
    assert profile_row(USAGE, replace(DECIDED, workload=replace(plain, trainable=0.02)), 60) is None
    writing = replace(plain, mode="infer", generate=Decoding(prompt_tokens=512, new_tokens=128))
    assert settings_key(writing) == "infer,8,fp32,momentum,generate=512+128"
    assert settings_key(replace(plain, compile=True)).endswith("compile=True")
    assert profile_row(USAGE, replace(DECIDED, workload=writing), 60) is None


def test_a_run_on_two_nodes_is_one_run_with_the_memory_of_the_fuller_one() -> None:
    first = replace(USAGE, number="1", gpu_count=4)
    second = replace(first, started_at_s=USAGE.started_at_s + 0.2, memory_bytes=2 * 10**9)
    again = replace(first, started_at_s=USAGE.ended_at_s + 9, ended_at_s=USAGE.ended_at_s + 609)
    observations = [Observation(usage=each, decision=DECIDED) for each in (again, second, first)]
    assert sorted(run.memory_bytes or 0 for _, run in model_runs(observations, 60)) == [10**9, 2 * 10**9]
