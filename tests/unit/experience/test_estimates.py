"""What earlier runs say of the next one, in place of what the graph says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.decisions.advisor import Advisor
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.experience.estimates import raise_prices
from gpusage.experience.identity import fingerprint
from gpusage.experience.learned import Experience
from gpusage.experience.learning import learn
from gpusage.experience.runs import Run
from gpusage.experience.trust import PARTNERS
from gpusage.plugins.loading import make_hooks
from gpusage.predictors.intervals import exact_interval, speedup
from gpusage_hooks.types import GpuNeed, Price, SoloRun, Submitter, Workload
from graphs import convolution_graph
from runs import GIB, RUN, runs, shared

GRAPH = convolution_graph(depth=16, channels=128)
V100, H100, K80 = (builtin_catalogue().find(name) for name in ("v100", "h100", "k80"))
WORKLOAD = Workload(batch_size=32)
PLAIN = Advisor(hooks=make_hooks(), catalogue=builtin_catalogue())
ME = Submitter(fields={"user": "1000", "job_name": "train"})
PLAIN_V100, PLAIN_H100 = PLAIN.predict(GRAPH, WORKLOAD, [V100, H100])


def after(*seen: Run) -> Advisor:
    """Return an advisor of my next job after the runs *seen* of `GRAPH`."""
    own = [replace(run, identity=replace(run.identity, fingerprint=fingerprint(GRAPH))) for run in seen]
    return replace(PLAIN, learned=learn(own), submitter=ME)


def on_v100(advisor: Advisor, workload: Workload = WORKLOAD) -> GpuNeed:
    (need,) = advisor.predict(GRAPH, workload, [V100])
    return need


def half(advisor: Advisor) -> float:
    (((price,),)) = advisor.price(GRAPH, WORKLOAD, [V100], [50])
    return price.slowdown.value


def test_a_host_floor_makes_shares_cheap_and_newer_gpus_useless() -> None:
    advisor = after(*runs(0.3))
    v100, h100 = advisor.predict(GRAPH, WORKLOAD, [V100, H100])
    assert v100.gpu_utilization.value == pytest.approx(0.3)
    assert h100.gpu_utilization.value < 0.3
    assert half(PLAIN) > 1.5
    assert half(advisor) < 1.05
    assert speedup(PLAIN_H100, PLAIN_V100).value > 2
    assert speedup(h100, v100).value < 1.1
    assert "The GPU utilization is known from 1 earlier run." in v100.notes


def test_a_job_that_fills_its_gpu_tells_nothing_of_a_faster_one() -> None:
    v100, h100 = after(*runs(0.99)).predict(GRAPH, WORKLOAD, [V100, H100])
    assert v100.gpu_utilization.value == pytest.approx(0.99)
    assert h100.gpu_utilization == PLAIN_H100.gpu_utilization


def test_on_another_gpu_the_host_may_be_another() -> None:
    v100, h100 = after(*runs(0.3)).predict(GRAPH, WORKLOAD, [V100, H100])
    assert h100.gpu_utilization.high / h100.gpu_utilization.value >= 1.5
    assert v100.gpu_utilization.high / v100.gpu_utilization.value < 1.3


def test_a_run_on_a_share_that_is_idle_at_times_tells_the_host_s_floor() -> None:
    """Half a V100 makes the GPU's own time about twice as long: 60 % there is about 30 % of the whole."""
    seen = replace(RUN, share_percent=50, utilization=0.6)
    assert on_v100(after(seen)).gpu_utilization.value == pytest.approx(0.3, rel=0.25)


def test_a_share_that_was_full_tells_only_the_least_until_a_whole_run_tells_the_rest() -> None:
    filled = replace(RUN, share_percent=50, utilization=0.99)
    unsure = on_v100(after(filled)).gpu_utilization
    assert unsure.low == pytest.approx(0.5, rel=0.2)
    assert unsure.high == 1
    estimate = on_v100(after(filled, replace(RUN, utilization=0.55))).gpu_utilization
    assert estimate.value == pytest.approx(0.55)
    assert estimate.high < 0.75


def test_a_broken_promise_makes_shares_dear_and_a_kept_one_none_cheaper() -> None:
    dear = after(RUN, RUN, *[shared(3.5 * 3600)] * 2)
    idle = after(*runs(0.4, 0.4))
    assert half(dear) > 2 * half(idle)
    stored = after(RUN, RUN, *[shared(1.0 * 3600)] * 2)
    assert half(stored) == pytest.approx(half(idle), rel=0.01)


def test_memory_that_was_seen_takes_the_place_of_memory_that_was_predicted() -> None:
    need = on_v100(after(*runs(0.4, 0.4)))
    assert need.memory_bytes.value == 4 * GIB
    assert need.share_memory_bytes == pytest.approx(4.4 * GIB)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param({"memory_bytes": 15 * GIB}, id="of 16 GiB, the whole GPU"),
        pytest.param({"memory_bytes": 3.6 * GIB, "memory_limit_bytes": 4 * GIB, "is_walled": True}, id="behind a wall"),
    ],
)
def test_a_job_that_took_most_of_what_it_saw_takes_as_much_of_any_gpu(run: dict[str, object]) -> None:
    """What it needs stays what was seen: behind another wall that decides."""
    advisor = after(*(replace(each, **run) for each in runs(0.4, 0.4)))  # type: ignore[arg-type] - a test's fields
    (need,) = advisor.predict(GRAPH, WORKLOAD, [H100])
    assert need.certain_memory_bytes >= 0.89 * H100.memory_bytes
    assert need.share_memory_bytes <= 1.1 * run["memory_bytes"]  # type: ignore[operator] - as above


def test_a_job_under_a_cap_or_out_of_memory_shows_no_part_that_it_takes() -> None:
    capped = {"memory_bytes": 3.9 * GIB, "memory_limit_bytes": 4 * GIB}
    for fields in (capped, {**capped, "is_walled": True, "out_of_memory": True}):
        advisor = after(*(replace(each, **fields) for each in runs(0.4, 0.4)))  # type: ignore[arg-type] - as above
        (need,) = advisor.predict(GRAPH, WORKLOAD, [H100])
        assert need.certain_memory_bytes < 0.2 * H100.memory_bytes


def test_what_the_user_says_counts_until_five_runs_contradict_it() -> None:
    workload = replace(WORKLOAD, alone=SoloRun(utilization=0.9))
    assert on_v100(after(*runs(0.3)), workload).gpu_utilization == exact_interval(0.9)
    few, many = after(*runs(*[0.3] * 4)), after(*runs(*[0.3] * 5))
    assert few.without_contradicted_values(GRAPH, workload) == workload
    assert many.without_contradicted_values(GRAPH, workload) == WORKLOAD
    assert (
        many.without_contradicted_values(GRAPH, replace(workload, alone=SoloRun(utilization=0.31))).alone.utilization
        == 0.31
    )


def test_five_runs_at_this_batch_outweigh_what_the_user_says_of_another() -> None:
    workload = replace(WORKLOAD, alone=SoloRun(utilization=0.3, batch_size=64))
    few, many = after(*runs(*[0.3] * 4)), after(*runs(*[0.3] * 5))
    assert few.without_contradicted_values(GRAPH, workload) == workload
    assert many.without_contradicted_values(GRAPH, workload) == WORKLOAD


def test_what_the_graph_tells_is_the_same_whatever_was_said_or_learned() -> None:
    """Else what was learned would teach itself."""
    advisor = after(*runs(0.3))
    stated = replace(WORKLOAD, alone=SoloRun(utilization=0.5))
    for workload in (WORKLOAD, stated):
        estimate = advisor.utilization_from_graph(GRAPH, workload, on_v100(advisor, workload))
        assert estimate == PLAIN_V100.gpu_utilization.value


@given(st.lists(st.floats(min_value=0.02, max_value=1.0), min_size=1, max_size=20), st.sampled_from([25, 50, 75, 100]))
def test_whatever_was_seen_figures_stay_sound(utilizations: list[float], percent: int) -> None:
    """Utilizations between 0 and 1, and every interval around its point."""
    seen = [replace(run, share_percent=percent) for run in runs(*utilizations)]
    advisor = after(*seen)
    for need in advisor.predict(GRAPH, WORKLOAD, [V100, H100, K80]):
        for interval in (need.gpu_utilization, need.sm_activity, need.step_time_s):
            assert 0 < interval.low <= interval.value <= interval.high
        assert need.gpu_utilization.high <= 1
    for prices in advisor.price(GRAPH, WORKLOAD, [V100, H100], [25, 50, 75]):
        assert all(1 <= price.slowdown.low <= price.slowdown.value <= price.slowdown.high for price in prices)


@pytest.mark.parametrize(("times", "expected"), [(1.0, 1.0), (0.5, 1.0), (1.5, 1.5)])
def test_runs_beside_partners_raise_a_price_by_what_partners_do_not_explain(times: float, expected: float) -> None:
    price = Price(gpu=V100.name, share_percent=50, slowdown=exact_interval(1.2), contended_slowdown=exact_interval(1.6))
    observed = {(V100.name, 50): 1.6 * PARTNERS * times}
    seen = Experience(run_count=3, utilization={}, utilization_runs={}, slowdown=observed, memory_bytes=None)
    (raised,) = raise_prices(seen, (price,))
    assert raised.slowdown.value == pytest.approx(1.2 * expected)
    assert raised.slowdown_under_contention.value == pytest.approx(1.6 * expected)


def test_a_slice_on_which_the_job_died_has_too_little_memory_next_time() -> None:
    small, large = (builtin_catalogue().find(name) for name in ("a100:1g.5gb", "a100:3g.20gb"))
    died = replace(RUN, gpu=small.name, is_slice=True, out_of_memory=True, utilization=None, duration_s=None)
    needs = after(replace(died, memory_bytes=None, memory_limit_bytes=small.memory_bytes)).predict(
        GRAPH, WORKLOAD, [small, large]
    )
    assert [need.fits for need in needs] == [False, True]


def test_runs_on_a_slice_show_how_busy_such_a_slice_and_a_gpu_are_and_contradict_nobody() -> None:
    """What a user gives is of whole GPUs; another slice has another memory."""
    own, other = (builtin_catalogue().find(name) for name in ("h100:1g.10gb", "h100:3g.40gb"))
    advisor = after(*[replace(run, gpu=own.name, is_slice=True) for run in runs(*[0.3] * 12)])
    on_own, on_other, on_h100 = advisor.predict(GRAPH, WORKLOAD, [own, other, H100])
    assert on_own.gpu_utilization.value == pytest.approx(0.3)
    assert on_other.gpu_utilization == PLAIN.predict(GRAPH, WORKLOAD, [other])[0].gpu_utilization
    assert on_h100.gpu_utilization.value < 0.3
    assert on_h100.memory_bytes.high <= on_own.memory_bytes.high
    workload = replace(WORKLOAD, alone=SoloRun(utilization=0.9))
    assert advisor.without_contradicted_values(GRAPH, workload) == workload
