"""What GPUs wait for each other's gradients, by hand: boards without NVLink share their host's bus."""

from __future__ import annotations

from dataclasses import replace

import pytest

import gpusage
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.needs import predicted
from gpusage.predictors.question import question_of
from gpusage.predictors.times.replicas import Gradients, gradients_of, of_replicas, waiting_s
from gpusage_hooks.types import Interval, Workload

FIND = builtin_catalogue().find
T4 = FIND("t4")
TWO = Workload(gpus=2)
BUS = 13e9


def test_a_gradient_goes_up_and_down_twice_for_each_gpu_but_one() -> None:
    # no step to hide behind: 4 x (n - 1) x bytes over what 16 lanes carry
    assert waiting_s(Gradients(1e9, 0.0), 0.0, TWO, T4) == pytest.approx(4e9 / BUS)
    assert waiting_s(Gradients(1e9, 0.0), 0.0, replace(TWO, gpus=4), T4) == pytest.approx(12e9 / BUS)


def test_what_the_backward_pass_hides_is_not_waited_for_but_what_comes_last_is() -> None:
    needs_s = 4e9 / BUS
    assert waiting_s(Gradients(1e9, 0.0), 0.3, TWO, T4) == pytest.approx(needs_s - 0.2)
    assert waiting_s(Gradients(1e9, 0.0), 1.0, TWO, T4) == 0
    assert waiting_s(Gradients(0.0, 1e9), 1.0, TWO, T4) == pytest.approx(needs_s)


def test_of_steps_that_accumulate_one_sends_all_and_hides_no_more_than_itself() -> None:
    """What the other steps take hid a part of the exchange, too, and with many of them all of it."""
    gradients, each = Gradients(1e9, 1e8), replace(TWO, accumulate=8)
    assert waiting_s(gradients, 0.3, each, T4) == pytest.approx(waiting_s(gradients, 0.3, TWO, T4) / 8)


@pytest.mark.parametrize(
    ("gpu", "count"), [("a100-sxm4-40gb", 4), ("h100-nvl-94gb", 2), ("rtx-4090", 4), ("mi300x-192gb", 8), ("t4", 16)]
)
def test_links_newer_buses_and_several_hosts_are_not_judged(gpu: str, count: int) -> None:
    assert waiting_s(Gradients(1e9, 1e9), 0.0, Workload(gpus=count), FIND(gpu)) == 0


def test_a_model_sends_each_gradient_and_its_embeddings_come_last() -> None:
    graph = gpusage.read_model("hf:bert-base-uncased")
    lowering = question_of(graph, TWO).lowering
    early, late = gradients_of(lowering, TWO)
    # 30,522 words, 512 positions and 2 kinds of 768 numbers
    assert late == 4 * 768 * (30522 + 512 + 2)
    assert early + late == 4 * graph.parameter_count
    half = gradients_of(lowering, replace(TWO, precision="bf16-pure", trainable=0.5))
    assert half.late_bytes == late / 4
    assert gradients_of(lowering, replace(TWO, strategy="fsdp")).late_bytes == 1.5 * late


def test_a_step_on_several_gpus_has_what_they_wait_and_a_note_says_it() -> None:
    graph, run = gpusage.read_model("hf:bert-base-uncased"), Workload(batch_size=8)
    alone, two, four = (predicted(graph, replace(run, gpus=count), [T4])[0] for count in (1, 2, 4))
    assert alone.step_time_s.value < two.step_time_s.value < four.step_time_s.value
    waits_s = four.step_time_s.value - alone.step_time_s.value
    assert f"{waits_s * 1e3:.0f} ms are for gradients that cross the host's bus" in four.notes[-2]
    linked = predicted(graph, replace(run, gpus=4), [FIND("a100")])[0]
    assert linked.step_time_s.value == predicted(graph, run, [FIND("a100")])[0].step_time_s.value
    assert not any("bus" in note for note in (*alone.notes, *linked.notes))


def test_ends_keep_their_order_and_one_gpu_is_left_alone() -> None:
    step = Interval(value=1.0, low=0.8, high=1.3)
    several = of_replicas(step, replace(TWO, gpus=8), T4, Gradients(1e9, 1e8))
    assert several.low < several.value < several.high
    assert of_replicas(step, Workload(), T4, Gradients(1e9, 1e8)) == step
