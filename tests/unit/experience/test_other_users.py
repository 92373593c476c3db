"""Nobody's job is decided by strangers: what their runs can do to a prediction at most."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusage.decisions.advisor import Advisor
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.experience.estimates import narrowed
from gpusage.experience.identity import fingerprint
from gpusage.experience.learning import learn
from gpusage.experience.runs import Run
from gpusage.plugins.loading import make_hooks
from gpusage.predictors.intervals import exact_interval
from gpusage_hooks.types import GpuNeed, Interval, SoloRun, Submitter, Workload
from graphs import convolution_graph
from runs import GIB, RUN, V100, runs, shared

GRAPH = convolution_graph(depth=16, channels=128)
WORKLOAD = Workload(batch_size=32)
PLAIN = Advisor(hooks=make_hooks(), catalogue=builtin_catalogue())
GPU = PLAIN.catalogue.find("v100")
ME = Submitter(fields={"user": "1000", "job_name": "train"})
(BY_GRAPH,) = PLAIN.predict(GRAPH, WORKLOAD, [GPU])
HALF = PLAIN.price(GRAPH, WORKLOAD, [GPU], [50])
GRAPHS = Interval(value=0.6, low=0.4, high=0.8)
DISHONEST = ("7", "8")

UTILIZATIONS = st.floats(min_value=0.02, max_value=1.0)


def replace_run(run: Run, *, user: str, job_name: str = "train", other_model: bool = False, **fields: object) -> Run:
    digits = "0" * 16 if other_model else fingerprint(GRAPH)
    identity = replace(run.identity, user=user, job_name=job_name, fingerprint=digits)
    return replace(run, identity=identity, **fields)  # type: ignore[arg-type]


ATTACKS = st.lists(
    st.builds(
        replace_run,
        st.just(RUN),
        gpu=st.sampled_from([V100, "h100-sxm5-80gb", "k80", "no such GPU"]),
        share_percent=st.sampled_from([1, 25, 50, 100]),
        ended_at_s=st.floats(min_value=0, max_value=4e9),
        duration_s=st.none() | st.floats(min_value=0, max_value=1e9),
        utilization=st.none() | UTILIZATIONS,
        memory_bytes=st.none() | st.integers(min_value=1, max_value=2**60),
        memory_limit_bytes=st.none() | st.integers(min_value=1, max_value=2**60),
        out_of_memory=st.booleans(),
        predicted_utilization=st.none() | UTILIZATIONS,
        promised_slowdown=st.none() | st.floats(min_value=1, max_value=4),
        job_name=st.sampled_from("abc"),
        user=st.sampled_from(DISHONEST),
        other_model=st.booleans(),
    ),
    max_size=12,
)
"""Whatever two users can have done."""


def after(*seen: Run) -> Advisor:
    return replace(PLAIN, learned=learn(seen), submitter=ME)


def of_user(user: str, *utilizations: float) -> list[Run]:
    return [replace_run(run, user=user) for run in runs(*utilizations)]


def on_v100(advisor: Advisor) -> GpuNeed:
    (need,) = advisor.predict(GRAPH, WORKLOAD, [GPU])
    return need


def test_three_users_narrow_what_the_graph_tells_and_never_leave_it() -> None:
    about = [Interval(value=value, low=value - 0.05, high=value + 0.05) for value in (0.5, 0.55, 0.7)]
    assert narrowed(GRAPHS, about[:2]) is None
    assert narrowed(GRAPHS, about) == Interval(value=0.6, low=0.45, high=0.75)
    assert narrowed(GRAPHS, [exact_interval(0.1)] * 3) == exact_interval(0.4)
    assert narrowed(GRAPHS, [exact_interval(0.9)] * 3) == exact_interval(0.8)
    assert narrowed(GRAPHS, [exact_interval(0.5)] * 3) == exact_interval(0.5)


@given(
    honest=st.lists(UTILIZATIONS, min_size=1, max_size=8),
    dishonest=st.lists(UTILIZATIONS, max_size=2),
    graphs=st.lists(UTILIZATIONS, min_size=3, max_size=3).map(sorted),
)
def test_two_dishonest_users_move_the_point_no_further_than_an_honest_one_and_no_upper_end_below_it(
    honest: list[float], dishonest: list[float], graphs: list[float]
) -> None:
    low, value, high = graphs
    predicted = Interval(value=value, low=low, high=high)
    estimate = narrowed(predicted, [exact_interval(each) for each in (*honest, *dishonest)])
    if estimate is None:
        assert len(honest) + len(dishonest) < 3
        return
    assert low <= estimate.low <= estimate.value <= estimate.high <= high
    assert min(value, *honest) <= estimate.value or estimate.value == low
    assert estimate.value <= max(value, *honest) or estimate.value == high
    assert estimate.high >= min(high, max(honest))


@settings(max_examples=60, deadline=None)
@given(attacks=ATTACKS, own=st.lists(UTILIZATIONS, max_size=3))
def test_whatever_two_users_did_a_third_one_s_job_is_decided_as_if_they_were_not_there(
    attacks: list[Run], own: list[float]
) -> None:
    """By the model, by its kind, and by the site; with and without runs of one's own."""
    mine = of_user("1000", *own)
    estimate, without = after(*mine, *attacks), after(*mine)
    assert on_v100(estimate) == on_v100(without)
    assert estimate.price(GRAPH, WORKLOAD, [GPU], [50]) == without.price(GRAPH, WORKLOAD, [GPU], [50])
    reasons = [each.learned.why_not_enforced(GRAPH, each.submitter) for each in (estimate, without)]
    assert reasons[0] == reasons[1]


@settings(max_examples=60, deadline=None)
@given(attacks=ATTACKS, honest=st.lists(UTILIZATIONS, min_size=1, max_size=4))
def test_beside_honest_users_two_others_change_neither_memory_nor_what_the_graph_rules_out(
    attacks: list[Run], honest: list[float]
) -> None:
    seen = [run for number, value in enumerate(honest) for run in of_user(str(3000 + number), value)]
    need, alone = on_v100(after(*seen, *attacks)), BY_GRAPH.gpu_utilization
    assert need.memory_bytes == BY_GRAPH.memory_bytes
    assert need.share_memory_bytes == BY_GRAPH.share_memory_bytes
    assert alone.low <= need.gpu_utilization.low <= need.gpu_utilization.high <= alone.high


def test_an_out_of_memory_of_others_raises_no_need() -> None:
    """One at 39 GB told another user that the job may need 45."""
    died = [
        replace_run(RUN, user=str(user), out_of_memory=True, utilization=None, memory_bytes=39 * GIB)
        for user in range(2000, 2005)
    ]
    assert on_v100(after(*died)) == BY_GRAPH
    own = replace_run(died[0], user="1000")
    assert on_v100(after(own)).memory_bytes.high > 39 * GIB


def test_shares_that_were_slow_for_others_are_not_dearer_and_one_s_own_are() -> None:
    slow = [RUN, RUN, *[shared(3.5 * 3600)] * 2]
    strangers = [replace_run(run, user=str(user)) for user in range(2000, 2005) for run in slow]
    (((price,),)) = after(*strangers).price(GRAPH, WORKLOAD, [GPU], [50])
    assert price.slowdown.high <= HALF[0][0].slowdown.high
    (((own,),)) = after(*(replace_run(run, user="1000") for run in slow)).price(GRAPH, WORKLOAD, [GPU], [50])
    assert own.slowdown.value > price.slowdown.value


def test_what_a_user_says_is_ruled_out_by_no_stranger() -> None:
    workload = replace(WORKLOAD, alone=SoloRun(utilization=0.9))
    strangers = [run for user in range(2000, 2008) for run in of_user(str(user), *[0.2] * 6)]
    assert after(*strangers).without_contradicted_values(GRAPH, workload) == workload
    (need,) = after(*strangers).predict(GRAPH, workload, [GPU])
    assert need.gpu_utilization == exact_interval(0.9)


def test_the_reason_says_how_many_others_count() -> None:
    seen = [run for user in ("2", "3", "4") for run in of_user(user, 0.9)]
    notes = on_v100(after(*seen)).notes
    assert "The GPU utilization is known from runs of this model of 3 other users." in notes
    kind = [replace_run(run, user=run.identity.user, other_model=True) for run in seen]
    finding = replace(PLAIN, learned=learn(kind), submitter=ME).find(replace(GRAPH, name="resnet18"), WORKLOAD)
    assert finding.source == "jobs of this kind"
    assert after(*kind).find(GRAPH, WORKLOAD).source == "jobs"
    assert BY_GRAPH.gpu_utilization.high >= on_v100(after(*kind)).gpu_utilization.high


@pytest.mark.parametrize("users", [1, 2])
def test_fewer_than_three_tell_nothing(users: int) -> None:
    seen = [run for user in range(users) for run in of_user(str(user), *[0.02] * 30)]
    assert on_v100(after(*seen)) == BY_GRAPH
