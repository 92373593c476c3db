"""What is known of a workload takes the place of what would be predicted, and the rest follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpusage.decisions.advisor import Advisor
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.plugins.loading import make_hooks
from gpusage.predictors.intervals import exact_interval, speedup
from gpusage.predictors.known import implausible_step_time, min_step_s
from gpusage_hooks import samples
from gpusage_hooks.types import Figure, Gpu, Mode, ObservedFigures, Precision, SoloRun, Workload
from graphs import convolution_graph
from sites import announced

GRAPH = convolution_graph(depth=16, channels=128)
V100, H100, A100, RTX_3090 = map(builtin_catalogue().find, ("v100", "h100", "a100", "rtx-3090"))
RUN = Workload(batch_size=32)


def knowing(**figures: float) -> Advisor:
    """Return an advisor with a plugin that knows *figures* on V100s."""
    known = ObservedFigures(
        **{name: Figure(interval=exact_interval(value), source="earlier runs") for name, value in figures.items()}
    )

    def find_observed_figures(gpus: Sequence[Gpu]) -> list[ObservedFigures]:
        return [known if gpu == V100 else ObservedFigures() for gpu in gpus]

    hooks = make_hooks([announced(find_observed_figures=find_observed_figures)])
    return Advisor(hooks=hooks, catalogue=builtin_catalogue())


PLAIN = Advisor(hooks=make_hooks(), catalogue=builtin_catalogue())
V100_NEED, H100_NEED = PLAIN.predict(GRAPH, RUN, [V100, H100])


def test_a_plugin_that_knows_the_step_time_alone_changes_all_that_follows_from_it() -> None:
    """Ten times as long: a tenth of the samples, a tenth as busy, no speed-up, and a share costs less."""
    advisor = knowing(step_time_s=10 * V100_NEED.step_time_s.value)
    on_v100, on_h100 = advisor.predict(GRAPH, RUN, [V100, H100])
    assert on_h100.step_time_s.value == on_v100.step_time_s.value, "it waits for its host on both"
    assert on_v100.step_time_s == exact_interval(10 * V100_NEED.step_time_s.value)
    assert on_v100.throughput_samples_per_s.value == pytest.approx(V100_NEED.throughput_samples_per_s.value / 10)
    assert on_v100.dram_activity.value == pytest.approx(V100_NEED.dram_activity.value / 10)
    assert on_v100.gpu_utilization.value == pytest.approx(0.1, rel=0.01), "its kernels fill a tenth of the step"
    busier = on_v100.gpu_utilization.value / V100_NEED.gpu_utilization.value
    assert on_v100.sm_activity.value == pytest.approx(V100_NEED.sm_activity.value * busier)
    assert speedup(on_h100, on_v100).value == pytest.approx(1.0)
    ((known_price,),), ((price,),) = (one.price(GRAPH, RUN, [V100], [25]) for one in (advisor, PLAIN))
    assert known_price.slowdown.value < price.slowdown.value
    assert on_v100.notes[-1] == "The step time is known from earlier runs."


def test_a_known_step_time_is_the_base_of_a_share_s() -> None:
    (quarter,) = knowing(step_time_s=1.0).predict_shares(GRAPH, RUN, [V100], [25])
    assert quarter.step_time_s.value == pytest.approx(quarter.slowdown.value)


def test_a_known_utilization_scales_what_is_busy_and_leaves_the_step_time() -> None:
    (need,) = knowing(gpu_utilization=V100_NEED.gpu_utilization.value / 2).predict(GRAPH, RUN, [V100])
    assert need.gpu_utilization == exact_interval(V100_NEED.gpu_utilization.value / 2)
    assert need.sm_activity.value == pytest.approx(V100_NEED.sm_activity.value / 2)
    step, before = need.step_time_s, V100_NEED.step_time_s
    assert (step.low, step.value, step.high) == pytest.approx((before.low, before.value, before.high), rel=1e-12)


def test_a_known_memory_decides_whether_the_job_fits() -> None:
    (need,) = knowing(memory_bytes=1.01 * V100.memory_bytes).predict(GRAPH, RUN, [V100])
    assert (need.fits, V100_NEED.fits) == (False, True)


def test_a_shorter_step_than_predicted_keeps_nothing_busier_than_all_of_it() -> None:
    (need,) = knowing(step_time_s=V100_NEED.step_time_s.value / 100).predict(GRAPH, RUN, [V100])
    assert need.gpu_utilization.value == pytest.approx(1.0, abs=0.05)
    assert need.gpu_utilization.high == 1.0
    assert need.dram_activity.value <= 1.0
    assert need.sm_activity.high <= 1.0


def test_what_the_user_wrote_is_known_on_the_gpu_that_it_is_of() -> None:
    step_time_s = V100_NEED.step_time_s.value
    run = Workload(batch_size=32, alone=SoloRun(step_time_s=step_time_s, gpu="V100"))
    on_v100, on_h100 = PLAIN.predict(GRAPH, run, [V100, H100])
    assert (on_v100.step_time_s, on_h100.step_time_s) == (exact_interval(step_time_s), H100_NEED.step_time_s)


def test_a_site_s_plugin_is_heard_before_the_user_figure_by_figure() -> None:
    run = Workload(batch_size=32, alone=SoloRun(step_time_s=2.0, utilization=0.25))
    (need,) = knowing(step_time_s=3.0).predict(GRAPH, run, [V100])
    assert (need.step_time_s, need.gpu_utilization) == (exact_interval(3.0), exact_interval(0.25))


def test_nothing_known_changes_nothing() -> None:
    assert knowing().predict(GRAPH, RUN, [V100, H100]) == (V100_NEED, H100_NEED)
    assert samples.knowledge()[0] == ObservedFigures()


def test_a_step_that_waits_for_its_host_does_so_beside_any_gpu() -> None:
    """A newer GPU gains such a job nothing, and its shares are cheap everywhere."""
    run = replace(RUN, alone=SoloRun(step_time_s=100 * V100_NEED.step_time_s.value, gpu=V100.name))
    on_v100, on_h100 = PLAIN.predict(GRAPH, run, [V100, H100])
    assert on_h100.step_time_s.value == on_v100.step_time_s.value
    assert on_h100.step_time_s.low < on_v100.step_time_s.low < on_h100.step_time_s.high
    ((half,),) = PLAIN.price(GRAPH, run, [H100], [50])
    assert half.slowdown.value < 1.01


def h100_time_from_v100(times: float, batch_size: int) -> float:
    """Return the H100's step where the V100's is so many times the predicted one."""
    plain = Workload(batch_size=batch_size)
    (there,) = PLAIN.predict(GRAPH, plain, [V100])
    run = replace(plain, alone=SoloRun(step_time_s=times * there.step_time_s.value, gpu=V100.name))
    return PLAIN.predict(GRAPH, run, [H100])[0].step_time_s.value


@given(times=st.floats(0.3, 8.0), batch_size=st.sampled_from([1, 8, 64]))
@settings(max_examples=40, deadline=None)
def test_a_step_that_takes_a_little_longer_on_one_gpu_takes_a_little_longer_on_another(
    times: float, batch_size: int
) -> None:
    """It jumped to the known step where that left its interval: from 14 to 64 ms for a ResNet-50."""
    one, more = (h100_time_from_v100(each, batch_size) for each in (times, 1.01 * times))
    assert one <= more <= 1.1 * one


@given(times=st.floats(1.0, 30.0), batch_size=st.sampled_from([1, 8, 64]))
@settings(max_examples=40, deadline=None)
def test_a_slower_gpu_takes_at_least_what_is_predicted_and_at_most_in_proportion(times: float, batch_size: int) -> None:
    """In between it may fall, the longer the known step is: this speaks for a host, which such a GPU need not await."""
    plain = Workload(batch_size=batch_size)
    there, predicted = PLAIN.predict(GRAPH, plain, [H100, V100])
    run = replace(plain, alone=SoloRun(step_time_s=times * there.step_time_s.value, gpu=H100.name))
    step_time_s = PLAIN.predict(GRAPH, run, [V100])[0].step_time_s
    assert step_time_s.low <= step_time_s.value <= step_time_s.high
    assert predicted.step_time_s.value <= step_time_s.value * 1.000001
    assert step_time_s.value <= times * predicted.step_time_s.value * 1.000001


def test_kernels_that_take_longer_than_predicted_do_so_on_every_gpu() -> None:
    """A step half as long again is explained by its GPU: 1.2 to 1.5 times as much on a newer one, and not all of it."""
    run = replace(RUN, batch_size=256)
    there, here = PLAIN.predict(GRAPH, run, [V100, H100])
    known = replace(run, alone=SoloRun(step_time_s=1.5 * there.step_time_s.value, gpu=V100.name))
    (need,) = PLAIN.predict(GRAPH, known, [H100])
    assert need.step_time_s.value == pytest.approx(1.5 * here.step_time_s.value, rel=0.05)
    assert need.gpu_utilization.value == pytest.approx(here.gpu_utilization.value, rel=0.05)
    assert f"The step time is known from the step on {V100.name}, which takes longer than predicted." in need.notes


def test_a_step_time_that_no_gpu_can_reach_is_not_used_and_said_to_be_impossible() -> None:
    min_s = min_step_s(GRAPH, RUN, V100)
    assert 0 < min_s < V100_NEED.step_time_s.low
    plain = PLAIN.predict(GRAPH, RUN, [V100])[0]
    for name in ("v100", V100.name):
        run = replace(RUN, alone=SoloRun(step_time_s=min_s / 2, gpu=name))
        (need,) = PLAIN.predict(GRAPH, run, [V100])
        assert need.step_time_s == plain.step_time_s
        (note,) = need.notes[len(plain.notes) :]
        assert note.startswith("The step time that you gave, ")
        assert "is not used: even at its peak, v100-sxm2-16gb needs " in note
        assert implausible_step_time(GRAPH, run, V100) == note
    possible = replace(RUN, alone=SoloRun(step_time_s=min_s * 1.01, gpu="v100"))
    assert implausible_step_time(GRAPH, possible, V100) == ""
    assert PLAIN.predict(GRAPH, possible, [V100])[0].step_time_s == exact_interval(min_s * 1.01)


@pytest.mark.parametrize("batch", [1, 8, 256])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_what_is_impossible_is_far_below_what_is_predicted(batch: int, precision: Precision) -> None:
    for mode in ("infer", "train"):
        run = Workload(batch_size=batch, precision=precision, mode=mode)
        for need, gpu in zip(PLAIN.predict(GRAPH, run, [V100, H100]), (V100, H100), strict=True):
            assert min_step_s(GRAPH, run, gpu) < need.step_time_s.low


def with_step(times: float, run: Workload, measured_on: Gpu) -> Workload:
    """Return *run* with a known step of so many times the predicted one."""
    (there,) = PLAIN.predict(GRAPH, run, [measured_on])
    return replace(run, alone=SoloRun(step_time_s=times * there.step_time_s.value, gpu=measured_on.name))


def test_a_known_step_that_is_the_predicted_one_moves_no_other_gpu_s() -> None:
    for batch_size in (1, 32):
        run = Workload(batch_size=batch_size)
        (before,) = PLAIN.predict(GRAPH, run, [H100])
        (need,) = PLAIN.predict(GRAPH, with_step(1.0, run, V100), [H100])
        assert need.step_time_s.value == pytest.approx(before.step_time_s.value)
        assert need.step_time_s.low >= before.step_time_s.low * 0.999999
        assert need.step_time_s.high <= before.step_time_s.high * 1.000001
        assert (need.memory_bytes, need.required_bytes) == (before.memory_bytes, before.required_bytes)


@given(
    times=st.floats(0.3, 30.0),
    batch_size=st.sampled_from([1, 8, 64]),
    mode=st.sampled_from(["infer", "train"]),
    gpus=st.permutations([V100, H100, A100, RTX_3090]),
)
@settings(max_examples=40, deadline=None)
def test_a_known_step_turns_no_ratio_round(times: float, batch_size: int, mode: Mode, gpus: list[Gpu]) -> None:
    """60 ms on a V100, predicted at 91, left the A100 at 63: it seemed to be slower, and was 1.45 times as fast."""
    run = Workload(batch_size=batch_size, mode=mode)
    before = [need.step_time_s.value for need in PLAIN.predict(GRAPH, run, gpus)]
    after = [need.step_time_s.value for need in PLAIN.predict(GRAPH, with_step(times, run, gpus[0]), gpus)]
    ranked = [after[place] for place in sorted(range(len(gpus)), key=before.__getitem__)]
    assert all(faster <= slower * 1.000001 for faster, slower in pairwise(ranked))
    if times < 1:
        assert after == pytest.approx([times * each for each in before])


def test_bytes_are_as_many_however_long_the_step_takes() -> None:
    for run in (with_step(0.5, RUN, V100), replace(with_step(3.0, RUN, V100), mode="infer")):
        plain = PLAIN.predict(GRAPH, replace(run, alone=SoloRun()), [V100, H100])
        for before, after in zip(plain, PLAIN.predict(GRAPH, run, [V100, H100]), strict=True):
            shorter = before.step_time_s.value / after.step_time_s.value
            most = after.gpu_utilization.value
            assert after.dram_activity.value == pytest.approx(min(before.dram_activity.value * shorter, most))


@given(times=st.floats(0.3, 4.0), mode=st.sampled_from(["infer", "train"]))
@example(times=2.524, mode="infer")
@settings(max_examples=40, deadline=None)
def test_a_price_does_not_jump_where_a_step_becomes_a_little_longer(times: float, mode: Mode) -> None:
    """Neither where a short step begins to count as an engine's, nor where a host explains it better than a GPU.

    The example is the steepest place of a sweep: 3.1 %, where the median of the explanations fell by 33 %.
    """
    run = Workload(batch_size=64, mode=mode)
    rows = (PLAIN.price(GRAPH, with_step(each, run, V100), [V100, H100], [50]) for each in (times, 1.002 * times))
    for (one,), (other,) in zip(*rows, strict=True):
        assert other.slowdown.value == pytest.approx(one.slowdown.value, rel=0.035)
        assert other.slowdown.high == pytest.approx(one.slowdown.high, rel=0.035)


def test_a_step_far_below_the_predicted_one_costs_what_an_engine_s_does() -> None:
    """Nobody said that TensorRT runs the model: its kernels fill what they get, and half takes twice as long."""
    run = Workload(batch_size=64, mode="infer")
    for mode in ("infer", "train"):
        short, usual = (with_step(times, replace(run, mode=mode), V100) for times in (0.4, 1.0))
        runs = (short, replace(short, engine="tensorrt"), usual)
        costs = [PLAIN.price(GRAPH, each, [V100], [50])[0][0].slowdown.value for each in runs]
        assert costs[0] == pytest.approx(costs[1], rel=1e-3)
        assert costs[2] < 0.97 * costs[1]


def test_a_known_step_leaves_the_error_of_a_ratio_alone() -> None:
    """Of two GPUs with a part of their own a ratio misses by less than either does; so do other ratios."""
    gpus = [builtin_catalogue().find(name) for name in ("rtx-3090", "rtx-4090", "rtx-5090")]
    known = with_step(0.8, RUN, gpus[0])
    before, after = (PLAIN.predict(GRAPH, run, gpus) for run in (RUN, known))
    widths = [need.step_time_s.high / need.step_time_s.low for need in (*before, *after)]
    assert widths[4] - 1 < 0.7 * (widths[1] - 1)
    assert widths[5] - 1 < 0.7 * (widths[2] - 1)
    for one, other in ((1, 0), (2, 0), (2, 1)):
        gains = [speedup(needs[one], needs[other]) for needs in (before, after)]
        assert gains[1].value == pytest.approx(gains[0].value)
        assert 0.999 * gains[0].high < gains[1].high < 1.1 * gains[0].high


def test_a_step_that_cannot_be_moves_no_other_gpu() -> None:
    run = replace(RUN, alone=SoloRun(step_time_s=min_step_s(GRAPH, RUN, V100) / 2, gpu="v100"))
    (need,) = PLAIN.predict(GRAPH, run, [H100])
    assert (need.source, need.step_time_s.value) == ("model", pytest.approx(H100_NEED.step_time_s.value))
    assert need.notes[-1].endswith("at least for batch 32."), "who asks for another GPU alone is told, too"


def test_a_step_of_a_batch_that_the_model_cannot_have_is_not_used_and_said_to_be() -> None:
    """It stopped the prediction, which asked for a batch that nobody had named to be left out."""
    fixed, run = replace(GRAPH, fixed_batch_size=32), at_batch(1.0, 4, RUN)
    for before, need in zip((V100_NEED, H100_NEED), PLAIN.predict(fixed, run, [V100, H100]), strict=True):
        assert need.step_time_s == before.step_time_s
        assert need.notes[-1].endswith("is not used: it is of batch 4, and the model runs at batch 32 alone.")


def test_a_user_s_step_that_shows_nothing_hides_no_plugin_s() -> None:
    advisor = knowing(step_time_s=0.6 * V100_NEED.step_time_s.value)
    (expected,) = advisor.predict(GRAPH, RUN, [V100, H100])[1:]
    impossible = SoloRun(step_time_s=min_step_s(GRAPH, RUN, A100) / 2, gpu=A100.name)
    far = replace(at_batch(1.0, 2, RUN).alone, gpu=A100.name)
    for alone in (impossible, far):
        (need,) = advisor.predict(GRAPH, replace(RUN, alone=alone), [V100, H100])[1:]
        assert need.step_time_s == expected.step_time_s


def test_memory_is_never_busy_for_longer_than_kernels_run() -> None:
    """A user knew 20 % beside a step as predicted, whose bytes took 35 %."""
    (bytes_alone,) = PLAIN.predict(GRAPH, with_step(0.5, RUN, V100), [V100])
    run = replace(RUN, alone=SoloRun(step_time_s=V100_NEED.step_time_s.value, gpu=V100.name, utilization=0.05))
    for need in (bytes_alone, *PLAIN.predict(GRAPH, run, [V100, H100])):
        assert need.dram_activity.value <= need.gpu_utilization.value
        assert need.sm_activity.high <= need.gpu_utilization.high


def test_a_step_of_which_the_gpu_works_a_part_waits_as_long_beside_any_gpu() -> None:
    """How busy it was says who is slow, where the step alone is as predicted."""
    predicted_s = V100_NEED.step_time_s.value
    for utilization, expected_s in ((0.2, predicted_s), (V100_NEED.gpu_utilization.value, H100_NEED.step_time_s.value)):
        alone = SoloRun(step_time_s=predicted_s, gpu=V100.name, utilization=utilization)
        (need,) = PLAIN.predict(GRAPH, replace(RUN, alone=alone), [H100])
        assert need.step_time_s.value == pytest.approx(expected_s, rel=1e-3)


def at_batch(times: float, batch_size: int, run: Workload) -> Workload:
    """Return *run*, knowing a step of another batch on a V100 that takes so many times what is predicted."""
    (there,) = PLAIN.predict(GRAPH, replace(run, batch_size=batch_size), [V100])
    known_s = times * there.step_time_s.value
    return replace(run, alone=SoloRun(step_time_s=known_s, gpu=V100.name, step_batch_size=batch_size))


def test_a_step_of_another_batch_moves_all_gpus_and_is_not_taken_for_this_one_s() -> None:
    """`--max-batch` gave the step of batch 32 to 129 samples on a V100, and the A100 was 6.2 times as fast."""
    before = PLAIN.predict(GRAPH, RUN, [V100, H100])
    for times in (0.6, 1.0):
        after = PLAIN.predict(GRAPH, at_batch(times, 16, RUN), [V100, H100])
        assert [need.step_time_s.value for need in after] == pytest.approx(
            [times * need.step_time_s.value for need in before]
        )
        assert all(
            new.step_time_s.high / new.step_time_s.low < old.step_time_s.high / old.step_time_s.low * 1.000001
            for old, new in zip(before, after, strict=True)
        )
        assert f"the step on {V100.name} at batch 16, which takes no longer than predicted." in after[0].notes[-1]
    assert PLAIN.predict(GRAPH, at_batch(0.6, 1, RUN), [H100])[0].step_time_s.value == pytest.approx(
        before[1].step_time_s.value
    ), "a step of a 32nd shows nothing"
    own = PLAIN.predict(GRAPH, at_batch(0.6, 32, RUN), [V100, H100])
    assert own == PLAIN.predict(GRAPH, with_step(0.6, RUN, V100), [V100, H100])


@pytest.mark.parametrize("batch_size", [2, 512])
def test_a_step_of_a_16th_or_of_16_times_the_batch_moves_neither_busy_time_nor_price(batch_size: int) -> None:
    """A step of batch 1024, as predicted, made three quarters of an H100 of a half."""
    for times in (0.6, 1.0, 1.02, 50):
        run = at_batch(times, batch_size, RUN)
        assert PLAIN.predict(GRAPH, run, [V100, H100]) == (V100_NEED, H100_NEED)
        assert PLAIN.price(GRAPH, run, [H100], [50]) == PLAIN.price(GRAPH, RUN, [H100], [50])


def test_busy_time_moves_the_less_the_further_the_known_step_s_batch_is() -> None:
    lows = [PLAIN.predict(GRAPH, at_batch(1.0, size, RUN), [H100])[0].gpu_utilization.low for size in (16, 8, 4, 2)]
    assert lows == sorted(lows, reverse=True)
    assert lows[0] > lows[1] > lows[2] > lows[3] == H100_NEED.gpu_utilization.low


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_step_as_predicted_makes_no_share_the_cheaper_the_further_its_batch_is(mode: Mode) -> None:
    """A utilization that falls to the graph's, of a host with gaps, made half of an H100 cost 1.3 in place of 1.5."""
    run = replace(RUN, mode=mode)
    for times in (1.0, 1.01):
        rows = [PLAIN.price(GRAPH, at_batch(times, size, run), [H100], [50]) for size in (16, 8, 5, 3, 2)]
        costs = [half.slowdown.value for ((half,),) in rows]
        assert all(further >= 0.999 * nearer for nearer, further in pairwise(costs))


def test_a_utilization_counts_beside_a_step_of_the_same_batch_named_or_not() -> None:
    """One that named the job's own batch was taken for another's: 51 ms in place of 235."""
    alone = SoloRun(step_time_s=2 * V100_NEED.step_time_s.value, gpu=V100.name, utilization=0.3)
    named = (replace(alone, batch_size=32), replace(alone, step_batch_size=32))
    both = replace(alone, batch_size=32, step_batch_size=32)
    steps = [PLAIN.predict(GRAPH, replace(RUN, alone=each), [H100])[0].step_time_s for each in (alone, *named, both)]
    assert steps == [steps[0]] * 4
    other = replace(alone, batch_size=16)
    assert PLAIN.predict(GRAPH, replace(RUN, alone=other), [H100])[0].step_time_s != steps[0]


def test_a_utilization_beside_a_step_is_of_all_processes() -> None:
    of_one = V100_NEED.gpu_utilization.value
    alone = SoloRun(step_time_s=5 * V100_NEED.step_time_s.value, gpu=V100.name, utilization=of_one)
    (need,) = PLAIN.predict(GRAPH, replace(FOUR, alone=alone), [H100])
    assert f"The step time is known from the step on {V100.name}, which waits for its host." in need.notes


def test_the_note_names_the_batch_of_a_process() -> None:
    (need,) = PLAIN.predict(GRAPH, at_batch(1.0, 16, replace(RUN, processes=2)), [H100])
    assert any("at batch 16, which" in note for note in need.notes)


def test_what_a_gpu_waited_at_another_batch_it_waits_in_each_step_or_for_each_sample() -> None:
    for need in PLAIN.predict(GRAPH, at_batch(100, 8, RUN), [V100, H100]):
        (known,) = PLAIN.predict(GRAPH, at_batch(100, 8, replace(RUN, batch_size=8)), [V100])
        step_s, slow_s = need.step_time_s, known.step_time_s.value
        assert (step_s.low, step_s.value, step_s.high) == pytest.approx((slow_s / 1.5, slow_s, 4 * 1.5 * slow_s))


FOUR = replace(RUN, processes=4)


def test_the_memory_and_the_work_of_several_processes_add_up() -> None:
    """Four that keep a GPU busy for a tenth of the time each: none waits for another."""
    (one,) = knowing(gpu_utilization=0.1).predict(GRAPH, RUN, [V100])
    (all_four,) = knowing(gpu_utilization=0.4).predict(GRAPH, FOUR, [V100])
    assert all_four.memory_bytes.value == pytest.approx(4 * one.memory_bytes.value)
    assert all_four.required_bytes.high == pytest.approx(4 * one.required_bytes.high)
    assert all_four.share_memory_bytes == pytest.approx(4 * one.share_memory_bytes)
    assert all_four.gpu_utilization.value == pytest.approx(4 * one.gpu_utilization.value)
    assert all_four.dram_activity.value == pytest.approx(4 * one.dram_activity.value)
    assert all_four.step_time_s == one.step_time_s
    assert all_four.throughput_samples_per_s.value == pytest.approx(4 * one.throughput_samples_per_s.value)
    assert "of 4 processes together" in all_four.notes[-1]


def test_processes_that_have_more_work_than_the_gpu_has_time_take_longer() -> None:
    (four,) = PLAIN.predict(GRAPH, FOUR, [V100])
    work = 4 * V100_NEED.gpu_utilization.value
    assert work > 1
    assert four.step_time_s.value == pytest.approx(work * V100_NEED.step_time_s.value)
    assert four.gpu_utilization == exact_interval(1.0)
    known_s = 2 * V100_NEED.step_time_s.value
    (known,) = knowing(step_time_s=known_s).predict(GRAPH, FOUR, [V100])
    assert known.step_time_s == exact_interval(known_s), "of a process beside the others, as it was seen"


def test_what_is_known_of_a_job_with_several_processes_is_of_all_of_them() -> None:
    (need,) = knowing(memory_bytes=12e9, gpu_utilization=0.4).predict(GRAPH, FOUR, [V100])
    assert (need.memory_bytes.value, need.required_bytes.high) == pytest.approx((12e9, 12e9))
    assert need.gpu_utilization.value == pytest.approx(0.4)


def test_each_process_is_priced_on_its_part_of_a_share() -> None:
    ((half, whole),) = PLAIN.price(GRAPH, replace(RUN, processes=2), [V100], [50, 100])
    ((quarter,),) = PLAIN.price(GRAPH, RUN, [V100], [25])
    assert (half.share_percent, whole.share_percent, whole.slowdown) == (50, 100, exact_interval(1.0))

    # As both wait for one another on the whole GPU already, that is no price of a share.
    longer = 2 * V100_NEED.gpu_utilization.value
    assert longer > 1.2
    assert half.slowdown.value == pytest.approx(quarter.slowdown.value / longer)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_a_part_of_a_gpu_takes_no_longer_than_in_proportion_however_many_processes_share_it(processes: int) -> None:
    run = replace(RUN, processes=processes)
    (whole,) = PLAIN.predict(GRAPH, run, [A100])
    for part in PLAIN.predict_shares(GRAPH, run, [A100], [50, 75]):
        most_s = 1.15 * 100 / part.share_percent * whole.step_time_s.value
        assert whole.step_time_s.value <= part.step_time_s.value < most_s

    slices = [builtin_catalogue().find(f"{A100.name}:{each}") for each in ("3g.20gb", "4g.20gb")]
    for slice_, need in zip(slices, PLAIN.predict(GRAPH, run, slices), strict=True):
        assert 1 <= need.slowdown.value < 1.15 * A100.sm_count / slice_.sm_count
        assert need.slowdown.value == pytest.approx(need.step_time_s.value / whole.step_time_s.value, rel=0.15)


def test_processes_take_no_more_memory_than_there_is_unless_they_need_more() -> None:
    for processes in range(1, 9):
        (need,) = PLAIN.predict(GRAPH, replace(RUN, processes=processes), [V100])
        assert need.memory_bytes.high <= max(V100.memory_bytes, need.required_bytes.high)
        assert need.fits == (need.required_bytes.high <= V100.memory_bytes)
        assert not need.fits or need.memory_bytes.high <= V100.memory_bytes


def test_processes_that_fit_alone_need_not_fit_together() -> None:
    (need,) = PLAIN.predict(GRAPH, replace(RUN, processes=64), [V100])
    assert (V100_NEED.fits, need.fits) == (True, False)
