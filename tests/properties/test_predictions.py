from __future__ import annotations

from dataclasses import replace
from math import isfinite

from hypothesis import given
from hypothesis import strategies as st

import graphs
from gpusage.decisions.advisor import Advisor
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.plugins.loading import make_hooks
from gpusage_hooks.types import GpuNeed, Interval, ModelGraph, Workload
from gpusage_hooks.units import MIB

GPUS = tuple(builtin_catalogue())
ADVISOR = Advisor(hooks=make_hooks(), catalogue=builtin_catalogue())

models = st.sampled_from(graphs.ALL)
workloads = st.builds(
    Workload,
    batch_size=st.integers(1, 4096),
    mode=st.sampled_from(["train", "infer"]),
    precision=st.sampled_from(["fp32", "tf32", "fp16", "bf16"]),
    optimizer=st.sampled_from(["none", "sgd", "momentum", "adam", "adamw", "adafactor"]),
)


def figures(need: GpuNeed) -> dict[str, Interval]:
    return {
        "step_time_s": need.step_time_s,
        "memory_bytes": need.memory_bytes,
        "gpu_utilization": need.gpu_utilization,
        "sm_activity": need.sm_activity,
        "dram_activity": need.dram_activity,
        "throughput_samples_per_s": need.throughput_samples_per_s,
    }


@given(graph=models, workload=workloads)
def test_every_figure_is_finite_positive_and_inside_its_interval(graph: ModelGraph, workload: Workload) -> None:
    for need in ADVISOR.predict(graph, workload, GPUS):
        for name, figure in figures(need).items():
            assert isfinite(figure.high), name
            assert 0 < figure.low <= figure.value <= figure.high, name
        assert max(need.gpu_utilization.high, need.sm_activity.high, need.dram_activity.high) <= 1


@given(graph=models, workload=workloads, trainable=st.floats(0.01, 1.0), checkpointing=st.booleans())
def test_a_run_takes_at_least_what_it_fails_below(
    graph: ModelGraph, workload: Workload, trainable: float, checkpointing: bool
) -> None:
    if workload.mode == "train":
        workload = replace(workload, trainable=trainable, checkpointing=checkpointing)
    for need in ADVISOR.predict(graph, workload, GPUS):
        for end in ("low", "value", "high"):
            assert getattr(need.required_bytes, end) <= getattr(need.memory_bytes, end), end


@given(graph=models, workload=workloads, more=st.integers(1, 4096))
def test_a_larger_batch_never_needs_less_memory_or_time(graph: ModelGraph, workload: Workload, more: int) -> None:
    larger = Workload(
        batch_size=workload.batch_size + more,
        mode=workload.mode,
        precision=workload.precision,
        optimizer=workload.optimizer,
    )
    small, large = (ADVISOR.predict(graph, each, GPUS) for each in (workload, larger))
    for before, after in zip(small, large, strict=True):
        assert after.memory_bytes.value >= before.memory_bytes.value
        assert after.memory_bytes.high >= before.memory_bytes.high
        # learned efficiencies rise with the batch, and may do so a little faster than a tiny kernel's work
        assert after.step_time_s.value >= before.step_time_s.value * 0.95


@given(graph=models, workload=workloads)
def test_a_step_of_training_never_needs_less_than_one_of_inference(graph: ModelGraph, workload: Workload) -> None:
    forward = Workload(batch_size=workload.batch_size, precision="fp32", mode="infer")
    step = Workload(batch_size=workload.batch_size, precision="fp32", mode="train", optimizer=workload.optimizer)
    for less, more in zip(ADVISOR.predict(graph, forward, GPUS), ADVISOR.predict(graph, step, GPUS), strict=True):
        assert more.step_time_s.value >= less.step_time_s.value
        assert more.memory_bytes.value >= less.memory_bytes.value


@given(data=st.data(), count=st.integers(1, 4))
def test_colocated_jobs_never_run_faster_than_alone(data: st.DataObject, count: int) -> None:
    gpu = data.draw(st.sampled_from(GPUS))
    needs = [ADVISOR.predict(data.draw(models), data.draw(workloads), [gpu])[0] for _ in range(count)]
    answer = ADVISOR.colocate(needs, gpu)
    assert len(answer.normalised_throughput) == len(answer.mps_thread_percent) == len(answer.memory_cap_bytes) == count
    for throughput in answer.normalised_throughput:
        assert 0 < throughput.low <= throughput.value <= throughput.high <= 1
    assert sum(answer.mps_thread_percent) <= 100
    caps = zip(needs, answer.memory_cap_bytes, strict=True)
    assert answer.fits == all(need.required_bytes.high < cap_bytes + MIB for need, cap_bytes in caps)


@given(graph=models, workload=workloads)
def test_a_prediction_does_not_depend_on_which_other_gpus_are_asked_for(graph: ModelGraph, workload: Workload) -> None:
    together = ADVISOR.predict(graph, workload, GPUS)
    for gpu, need in zip(GPUS[::7], together[::7], strict=True):
        alone = ADVISOR.predict(graph, workload, [gpu])[0]
        assert abs(alone.step_time_s.value / need.step_time_s.value - 1) < 1e-9
        assert alone.memory_bytes == need.memory_bytes
