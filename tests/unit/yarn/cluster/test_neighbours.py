"""What a plan says of its share for those who decide on neighbours, and what is believed of it."""

from __future__ import annotations

import re
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.yarn.test_share_plan import NEED

from gpusage.policies.neighbours import BROKEN_PROMISE, trouble
from gpusage_hooks.types import Code, Decision, GpuNeed, GpuRequest, Interval, Neighbour, Rules, Slo, Workload
from gpusage_yarn.cluster.neighbours import describe_need, parse_neighbours

NODE = "node-1.site:45454"
PARTS = st.floats(0, 1)
PROMISE = Workload(mode="infer", batch_size=8, slo=Slo(latency_s=0.004, rate_per_s=40.0))
GOOD = "mode=train,threads=40,of=40,sm=0.3:0.4,dram=0.1:0.2,busy=0.5:0.6,slow=1.1:1.2"


def interval(value: float, high: float) -> Interval:
    return Interval(value=value, low=value, high=max(value, high))


def need(activity: Interval, step_s: Interval, percent: int) -> GpuNeed:
    slow, none = interval(1.1, 1.2), interval(0, 0)
    activities = dict.fromkeys(("gpu_utilization", "sm_activity", "dram_activity"), activity)
    return GpuNeed(
        gpu="v100-sxm2-16gb", step_time_s=step_s, memory_bytes=none, throughput_samples_per_s=none, fits=True,
        share_percent=percent, slowdown=slow, **activities,
    )  # fmt: skip


def decision(percent: int | None, predicted: GpuNeed | None, threads: int | None = None) -> Decision:
    request = GpuRequest(gpu_count=0, mps_thread_percent=percent, thread_cap_percent=threads)
    return Decision(code=Code.REWRITE, request=request, reasons=(), plugin="test", need=predicted)


def reported(percent: int, text: str) -> Neighbour:
    (neighbour,) = parse_neighbours(f"{NODE} {percent} {text}\n")
    return neighbour


@given(
    st.integers(1, 99),
    st.tuples(PARTS, PARTS),
    st.floats(1e-9, 1e4),
    st.sampled_from([Workload(), replace(PROMISE, slowdown=1.3), PROMISE]),
)
def test_a_need_comes_back_to_four_digits_and_any_plan_can_hold_it(
    percent: int, ends: tuple[float, float], step_s: float, workload: Workload
) -> None:
    text = describe_need(decision(percent, need(interval(*ends), interval(step_s, step_s), percent)), workload)
    assert re.fullmatch(r"[0-9a-z.,:=+-]{0,400}", text)  # as in Plan.java, whose test accepts the need below
    neighbour = reported(percent, text)
    assert (neighbour.nodes, neighbour.share_percent, neighbour.thread_percent) == ((NODE,), percent, percent)
    assert neighbour.need.sm_activity.high == pytest.approx(max(ends), rel=1e-3)
    assert (neighbour.workload.mode, neighbour.workload.slowdown) == (workload.mode, workload.slowdown)
    if workload.slo:
        assert (neighbour.workload.slo, neighbour.workload.batch_size) == (workload.slo, 8)
        assert neighbour.need.step_time_s.high == pytest.approx(step_s, rel=1e-3)


def test_a_need_is_as_the_plan_has_it_that_java_accepts() -> None:
    predicted = need(interval(0.3, 0.4), interval(1e-5, 2e-5), 40)
    assert describe_need(decision(40, predicted, threads=80), replace(PROMISE, slowdown=1.3)) == NEED


def test_a_promise_that_was_told_is_kept_like_one_that_is_known() -> None:
    predicted = need(interval(0.1, 0.2), interval(0.002, 0.0028), 40)
    newcomer = Neighbour(
        nodes=(), share_percent=40, thread_percent=40, need=need(interval(0.2, 0.3), interval(1, 1), 40),
        workload=Workload(),
    )  # fmt: skip
    reported_promise = reported(40, describe_need(decision(40, predicted), PROMISE))
    assert trouble(newcomer, [reported_promise], Rules()) == BROKEN_PROMISE
    generous = replace(PROMISE, slo=Slo(latency_s=0.1))
    assert not trouble(newcomer, [reported(40, describe_need(decision(40, predicted), generous))], Rules())


def test_threads_beyond_the_share_are_told() -> None:
    predicted = need(interval(0.1, 0.2), interval(1, 1), 40)
    assert reported(40, describe_need(decision(40, predicted, 80), Workload())).thread_percent == 80


def test_who_has_a_whole_gpu_has_no_neighbour() -> None:
    predicted = need(interval(0.1, 0.2), interval(1, 1), 100)
    assert [describe_need(decision(percent, predicted), Workload()) for percent in (None, 100)] == ["", ""]
    assert describe_need(decision(40, None), Workload()) == ""
    assert describe_need(decision(40, predicted), None) == ""


@pytest.mark.parametrize(
    "line",
    [
        "",
        "node 40",
        f"{NODE} 0 {GOOD}",
        f"{NODE} 101 {GOOD}",
        f"{NODE} x {GOOD}",
        f"{NODE} 40 {GOOD} more",
        f"{NODE} 40 {GOOD.replace('mode=train', 'mode=x')}",
        f"{NODE} 40 {GOOD.replace('0.4', '1.4')}",
        f"{NODE} 40 {GOOD.replace('0.4', 'nan')}",
        f"{NODE} 40 {GOOD.replace('slow=1.1', 'slow=0.1')}",
        f"{NODE} 40 {GOOD.replace('threads=40,', '')}",
        f"{NODE} 40 {GOOD},latency=inf",
        f"{NODE} 40 {GOOD},rate",
    ],
)
def test_a_line_that_cannot_be_believed_is_left_out(line: str) -> None:
    assert [each.share_percent for each in parse_neighbours(f"{line}\n{NODE} 40 {GOOD}\n")] == [40]


@given(st.text(), st.dictionaries(st.from_regex(re.compile(r"[a-z]{1,6}"), fullmatch=True), st.text()))
def test_nothing_that_is_told_is_an_error(text: str, words: dict[str, str]) -> None:
    printed = ",".join(f"{word}={value}" for word, value in MappingProxyType(words).items())
    parse_neighbours(f"{text}\n{NODE} 40 {printed}\n{NODE} 40 {GOOD},{printed}")
