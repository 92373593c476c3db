"""The choice of a share, in its turn among the policies; prices are made up here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.policies.latency import decide_slo
from gpusage.policies.share_price import cost, partners_of, percent
from gpusage.policies.sharing import decide_sharing, may_share, price_list
from gpusage.predictors.intervals import exact_interval, product
from gpusage.predictors.sharing.colocation import slowdown_with_partners
from gpusage_hooks import samples
from gpusage_hooks.types import (
    Cluster,
    Decision,
    Figure,
    Gpu,
    GpuRequest,
    Interval,
    ObservedFigures,
    PolicyInput,
    Price,
    Rules,
    SharingRules,
    Slo,
    SoloRun,
    Workload,
)
from gpusage_hooks.units import GIB

OLD, SMALL, FAST = samples.gpus()
PRICE = SharingRules()
DEAR = {25: 3.0, 33: 2.0, 50: 1.5, 75: 1.3}
CHEAP = {25: 1.3, 33: 1.15, 50: 1.1, 75: 1.09}


def priced(*costs: dict[int, float], rules: SharingRules = PRICE, **changes: object) -> PolicyInput:
    """Return an input with the sample GPUs, the old one first, and what shares of them cost; each may be named."""
    policy_input = samples.policy_input(memory_gib=1.0)
    candidates = tuple(
        replace(
            candidate,
            pool=replace(candidate.pool, exact_feature=candidate.name),
            shares=shares_of(candidate.gpu, of_gpu),
        )
        for candidate, of_gpu in zip(policy_input.candidates, costs, strict=False)
    )
    pools = tuple(candidate.pool for candidate in candidates)
    policy_input = replace(
        policy_input,
        candidates=candidates,
        cluster=replace(policy_input.cluster, pools=pools),
        rules=Rules(sharing=rules),
    )
    return replace(policy_input, **changes)  # type: ignore[arg-type]


def shares_of(gpu: Gpu, costs: dict[int, float]) -> tuple[Price, ...]:
    return tuple(
        Price(gpu=gpu.name, share_percent=size, slowdown=Interval(value=times, low=1.0, high=times + 0.05))
        for size, times in costs.items()
    )


def decided(policy_input: PolicyInput, preferred: tuple[str, ...] = ()) -> Decision:
    draft = samples.draft(policy_input)
    draft = replace(draft, request=replace(draft.request, preferred_gpus=preferred))
    decision = decide_sharing(policy_input, draft)
    assert decision is not None
    return decision


def reason(policy_input: PolicyInput, preferred: tuple[str, ...] = ()) -> str:
    decision = decided(policy_input, preferred)
    assert decision.request.mps_thread_percent is None
    return decision.reasons[-1].removeprefix("a whole GPU is kept: ")


def test_a_share_that_holds_everywhere_takes_the_place_of_the_gpu() -> None:
    """33 % at 1.15, and more beside partners, take about 40 % of the GPU's time; 25 % at 1.3 are too dear."""
    decision = decided(priced(CHEAP, CHEAP, CHEAP))
    request = decision.request
    assert (request.gpu_count, request.mps_thread_percent, request.required_gpus) == (0, 33, ())
    there = slowdown_with_partners(Interval(value=1.15, low=1.0, high=1.2), partners_of(33))
    assert decision.reasons[-1] == f"beside partners {cost(there)}, at most 25 % is accepted, 50 % at worst"
    assert decision.need is not None
    assert (decision.need.share_percent, decision.need.slowdown.value) == (33, 1.15)


def test_one_that_holds_on_some_binds_the_job_to_these_and_says_so() -> None:
    decision = decided(priced(DEAR, CHEAP, CHEAP))
    assert decision.request.required_gpus == (SMALL.name, FAST.name)
    assert decision.request.preferred_gpus == ()
    assert decision.reasons[-1] == f"bound to {SMALL.name}, {FAST.name}, where that holds"


def test_the_headline_is_of_the_gpu_that_is_preferred() -> None:
    """The price that the promise rests on, the dearest, is told with its GPU."""
    rules = replace(PRICE, bind="never")
    decision = decided(priced({50: 1.12}, {50: 1.08}, {50: 1.05}, rules=rules), preferred=(SMALL.name,))
    assert decision.need is not None
    assert (decision.need.gpu, decision.need.slowdown.value) == (SMALL.name, 1.08)
    assert f" on {OLD.name}, at most 25 % is accepted" in decision.reasons[-1]


def test_a_named_type_needs_no_binding() -> None:
    decision = decided(priced(DEAR, CHEAP, CHEAP, request=GpuRequest(gpu_count=1, gpu_type=FAST.name)))
    assert (decision.request.mps_thread_percent, decision.request.required_gpus) == (33, ())


def test_a_site_may_let_a_share_use_more_threads_and_its_job_is_told() -> None:
    costs = {**CHEAP, 66: 1.05}
    decision = decided(priced(costs, costs, costs, rules=replace(PRICE, cap="double")))
    assert (decision.request.mps_thread_percent, decision.request.thread_cap_percent) == (33, 66)
    assert decision.reasons[-1] == "66 % of the threads where partners leave them"
    assert decided(priced(CHEAP, CHEAP, CHEAP)).request.thread_cap_percent is None


def sliced(slowdown: float, *, free: int = 1, gib: float = 1.0, **changes: object) -> PolicyInput:
    """Return a policy_input whose last candidate is a slice of the fast GPU, on which a step costs *slowdown*."""
    policy_input = priced(CHEAP, CHEAP, {}, **changes)  # type: ignore[arg-type]
    *others, last = policy_input.candidates
    memory = Interval(value=gib * GIB, low=gib * GIB, high=gib * GIB)
    cost_there = Interval(value=slowdown, low=1.0, high=slowdown + 0.05)
    there = replace(
        last,
        pool=replace(last.pool, site_type="3g.20gb", mps_per_gpu=None, exact_feature=None, free_gpu_count=free),
        gpu=replace(FAST, name="sample-fast:3g.20gb", parent_gpu=FAST.name, memory_bytes=20 * GIB),
        need=replace(last.need, slowdown=cost_there, memory_bytes=memory, fits=gib <= 20),
    )
    pools = (*(candidate.pool for candidate in others), there.pool)
    return replace(policy_input, candidates=(*others, there), cluster=replace(policy_input.cluster, pools=pools))


def test_a_slice_that_keeps_the_promise_goes_before_a_share() -> None:
    decision = decided(sliced(1.2))
    assert (decision.request.gpu_count, decision.request.mps_thread_percent) == (1, None)
    assert decision.request.slice_type == "3g.20gb"
    (why,) = decision.reasons
    assert why == "a slice that shares nothing costs 20 % (0-25), at most 25 % is accepted, 50 % at worst"


def test_a_slice_has_a_larger_gpu_for_its_job_in_reserve() -> None:
    """A whole one, with room, before any other; where no GPU is larger, nothing could be done for it."""
    policy_input = sliced(1.2)
    *others, there = policy_input.candidates
    large = replace(others[0], gpu=replace(others[0].gpu, memory_bytes=40 * GIB))
    request = decided(replace(policy_input, candidates=(large, *others[1:], there))).request
    assert (request.preferred_gpus, request.repeatable, request.memory_cap_bytes) == ((large.name,), True, 20 * GIB)
    fixed = replace(policy_input, cluster=replace(policy_input.cluster, repeats_slices=False))
    assert not decided(replace(fixed, candidates=(large, *others[1:], there))).request.repeatable
    alone = decided(policy_input).request
    assert (alone.slice_type, alone.preferred_gpus, alone.repeatable) == ("3g.20gb", (), False)


def test_a_slice_is_priced_without_partners() -> None:
    """At 1.24 a share is refused for its partners' sake."""
    assert slowdown_with_partners(Interval(value=1.24, low=1.0, high=1.29), 1).value > 1.25
    assert decided(sliced(1.24)).request.slice_type == "3g.20gb"


@pytest.mark.parametrize(
    "policy_input",
    [
        sliced(1.3),
        sliced(1.2, gib=21.0),
        sliced(1.2, free=0),
        sliced(1.2, workload=Workload(slowdown=1.1)),
        sliced(1.2, request=GpuRequest(gpu_count=1, bindable=False)),
        sliced(1.2, request=GpuRequest(gpu_count=1, gpu_type=SMALL.name)),
        sliced(1.2, rules=replace(PRICE, bind="never")),
    ],
    ids=["dear", "small", "full", "the user's limit", "tied", "named", "never"],
)
def test_a_slice_is_not_taken_where_it_breaks_a_promise_or_has_no_room(policy_input: PolicyInput) -> None:
    assert decided(policy_input).request.slice_type is None


def test_the_price_list_has_slices_and_says_why_one_is_not_taken() -> None:
    listed = price_list(sliced(1.3), decided(sliced(1.3)))
    assert (listed[0].gpu, listed[0].share_percent, listed[0].taken) == ("3g.20gb", 100, False)
    assert listed[0].reason == "would cost 30 %, more than 25 %"
    assert [row.gpu for row in price_list(sliced(1.2), decided(sliced(1.2))) if row.taken] == ["3g.20gb"]


def test_what_the_user_told_of_an_earlier_run_is_said() -> None:
    reported = priced(CHEAP, workload=Workload(alone=SoloRun(utilization=0.6)))
    assert "by the known GPU utilization, 60 %" in decided(reported).reasons
    timed = priced(CHEAP, workload=Workload(alone=SoloRun(step_time_s=0.03, gpu="a100")))
    used = ObservedFigures(step_time_s=Figure(interval=exact_interval(0.03), source="what you said"))
    trusted = replace(timed, candidates=tuple(replace(candidate, known=used) for candidate in timed.candidates))
    assert "by the known step time, 30 ms on a100" in decided(trusted).reasons
    assert not [reason for reason in decided(timed).reasons if "step time" in reason]


DEAREST = slowdown_with_partners(Interval(value=1.3, low=1.0, high=1.35), 1)
NOT_EVERYWHERE = "a third of a sample-small would be enough, but it does not hold on sample-old, and "


@pytest.mark.parametrize(
    ("policy_input", "expected"),
    [
        (
            priced(DEAR),
            f"three quarters of a sample-old would cost {percent(DEAREST.value)} beside partners, more than 25 %",
        ),
        (priced(CHEAP, workload=Workload(slowdown=1.0)), "no slowdown is accepted"),
        (priced(CHEAP, rules=replace(PRICE, sizes=())), "the site's rules allow no size of a share"),
        (
            priced(DEAR, CHEAP, rules=replace(PRICE, bind="never")),
            NOT_EVERYWHERE + "the site binds no job to a GPU type",
        ),
        (
            priced(DEAR, CHEAP, request=GpuRequest(gpu_count=1, bindable=False)),
            NOT_EVERYWHERE + "the job cannot be bound to sample-small",
        ),
    ],
)
def test_a_whole_gpu_is_kept_with_the_nearest_miss(policy_input: PolicyInput, expected: str) -> None:
    assert reason(policy_input) == expected


def test_a_job_is_not_bound_to_a_gpu_that_is_slower_than_the_one_it_would_have() -> None:
    reported = (
        "a third of a sample-old would be enough, but it does not hold on sample-small, sample-fast, which are faster"
    )
    assert reason(priced(CHEAP, DEAR, DEAR), preferred=(FAST.name,)) == reported


def test_a_place_that_has_no_room_now_is_said() -> None:
    policy_input = priced(DEAR, CHEAP)
    full = tuple(
        replace(candidate, pool=replace(candidate.pool, free_gpu_count=0)) for candidate in policy_input.candidates
    )
    assert reason(replace(policy_input, candidates=full)).endswith("and sample-small has no room now")


@pytest.mark.parametrize(("accepted", "share"), [(None, 33), (1.2, 50), (1.1, 75), (1.5, 25)])
def test_the_user_decides_how_much_slower_a_job_may_become(accepted: float | None, share: int) -> None:
    """75 % at 1.09 take more than 80 % of the GPU's time, which saves too little: that one stays whole."""
    request = decided(priced(CHEAP, workload=Workload(slowdown=accepted))).request
    assert request.mps_thread_percent == (None if share == 75 else share)


def serving(latency_s: float) -> Workload:
    return Workload(mode="infer", slo=Slo(latency_s=latency_s))


def test_a_promised_latency_has_to_hold_on_the_share() -> None:
    third, half = (
        product(
            samples.need(OLD).step_time_s,
            slowdown_with_partners(Interval(value=times, low=1.0, high=times + 0.05), partners),
        ).high
        for times, partners in ((1.15, 2), (1.1, 1))
    )
    assert decided(priced(CHEAP, workload=serving(third))).request.mps_thread_percent == 33
    tight = priced(CHEAP, workload=serving((third + half) / 2))
    assert decided(tight).request.mps_thread_percent == 50
    assert decide_slo(tight, decided(tight)) is None
    assert decided(priced(CHEAP, workload=serving(half - 0.001))).request.mps_thread_percent is None


def test_a_promise_that_no_share_keeps_is_the_reason_why_the_gpu_stays_whole() -> None:
    assert "might break the promised latency beside partners" in reason(priced(CHEAP, workload=serving(0.001)))


def test_where_the_jobs_partition_shares_no_gpu_its_reason_is_the_users() -> None:
    there = priced(CHEAP)
    cluster = replace(there.cluster, unshared={"partition=gpu": "partition gpu is EXCLUSIVE", "partition=old": "x"})
    assert reason(replace(there, cluster=cluster.within(("gpu",)))) == "partition gpu is EXCLUSIVE"


def test_prices_are_asked_for_only_where_a_share_is_in_question() -> None:
    policy_input = priced(CHEAP)
    workload, work, seen = GpuRequest(gpu_count=1), Workload(), policy_input.cluster
    assert may_share(workload, work, seen, PRICE)
    assert not may_share(workload, work, seen, replace(PRICE, enabled=False))
    assert not may_share(replace(workload, gpu_count=2), work, seen, PRICE)
    assert not may_share(replace(workload, obstacles=("no",)), work, seen, PRICE)
    assert not may_share(workload, Workload(slowdown=1.0), seen, PRICE)
    assert not may_share(workload, work, Cluster(manager="m", version="1", pools=()), PRICE)


def unshared(*costs: dict[int, float], **changes: object) -> PolicyInput:
    """Return the same on a cluster without shares, whose types no feature names and whose nodes are full."""
    policy_input = priced(*costs, **changes)
    bare = [
        replace(each.pool, mps_per_gpu=None, feature=None, exact_feature=None, free_gpu_count=0)
        for each in policy_input.candidates
    ]
    candidates = tuple(replace(each, pool=pool) for each, pool in zip(policy_input.candidates, bare, strict=True))
    return replace(policy_input, candidates=candidates, cluster=replace(policy_input.cluster, pools=tuple(bare)))


def test_where_nothing_is_shared_a_job_reads_what_would_be_enough_if_it_were() -> None:
    policy_input = unshared(CHEAP, DEAR)
    assert may_share(policy_input.request, policy_input.workload, policy_input.cluster, PRICE)
    decision = decided(policy_input)
    assert decision.request.mps_thread_percent is None
    assert [(price.gpu, price.share_percent) for price in decision.if_shared] == [(OLD.name, 33)]
    assert f"can be shared; if shared, a third of a {OLD.name} would do, beside partners" in decision.reasons[-1]
    verdicts = {price.reason for price in price_list(policy_input, decision) if price.share_percent == 33}
    assert "would be enough, if it were shared" in verdicts


def test_where_a_gpu_has_shards_a_job_reads_how_many_would_hold_it() -> None:
    """A third of eight shards is three; the request stays, for nothing limits a job on shards."""
    policy_input = unshared(CHEAP, DEAR)
    candidates = [replace(each, pool=replace(each.pool, shards_per_gpu=8)) for each in policy_input.candidates]
    decision = decided(replace(policy_input, candidates=tuple(candidates)))
    assert decision.request == replace(policy_input.request, preferred_gpus=decision.request.preferred_gpus)
    assert decision.reasons[-1].endswith("; shard:3 of 8 would hold it, and nothing limits it")


def test_where_no_share_would_be_enough_a_job_reads_that_too() -> None:
    decision = decided(unshared(DEAR, DEAR))
    assert decision.if_shared == ()
    assert "can be shared; if shared, three quarters of" in decision.reasons[-1]


def test_a_site_that_binds_no_job_would_not_bind_it_either() -> None:
    decision = decided(unshared(CHEAP, DEAR, rules=replace(PRICE, bind="never")))
    assert decision.if_shared == ()


DECIDED: dict[int, float] = {25: 3.0, 33: 2.0, 50: 1.6, 75: 1.05}
"""Three quarters of a GPU alone cost little enough."""


@pytest.mark.parametrize(
    ("smallest", "share_percent"),
    [
        ({}, 75),  # no history: the policy itself offers a quarter, which fits beside it
        ({"": 25}, 75),
        ({"": 100, OLD.name: 25}, 75),
        ({"": 33}, None),
        ({"": 100, FAST.name: 25}, None),  # what is only on another type
    ],
)
def test_a_share_beside_which_no_share_of_the_site_fits_is_not_given(
    smallest: dict[str, int], share_percent: int | None
) -> None:
    policy_input = priced(DECIDED)
    policy_input = replace(policy_input, cluster=replace(policy_input.cluster, smallest_shares=smallest))
    decision = decided(policy_input)
    assert decision.request.mps_thread_percent == share_percent
    if share_percent is None:
        alone = "would stand alone on its GPU: none of the site's jobs shares with 25 %"
        assert alone in decision.reasons[-1]
        (price,) = (each for each in price_list(policy_input, decision) if each.share_percent == 75)
        assert price.reason == alone


def test_half_of_a_gpu_has_room_for_another_half_and_a_slice_has_no_partner() -> None:
    costs = {25: 3.0, 33: 2.0, 50: 1.1, 75: 1.05}
    policy_input = priced(costs)
    alone = replace(policy_input.cluster, smallest_shares={"": 100})
    assert decided(replace(policy_input, cluster=alone)).request.mps_thread_percent == 50
    policy_input = sliced(1.1)
    assert decided(
        replace(policy_input, cluster=replace(policy_input.cluster, smallest_shares={"": 100}))
    ).request.slice_type


def test_a_decision_keeps_the_price_that_its_user_reads() -> None:
    decision = decided(priced(CHEAP, CHEAP))
    assert decision.slowdown_with_partners is not None
    assert f"beside partners {cost(decision.slowdown_with_partners)}" in decision.reasons[-1]


def of_slices(*gib: float, **changes: object) -> PolicyInput:
    """Return an input without a whole GPU: a slice of 10 GiB and, a step being faster there, one of 40."""
    policy_input = sliced(1.1, **changes)  # type: ignore[arg-type]
    candidate = policy_input.candidates[-1]
    candidates = []
    for name, size, speed in (("1g.10gb", 10, 3.0), ("3g.40gb", 40, 1.1)):
        row = replace(candidate.gpu, name=f"fast:{name}", memory_bytes=size * GIB, sm_count=size)
        pool = replace(candidate.pool, gpu=row.name, site_type=name)
        step_s = exact_interval(candidate.need.step_time_s.value * speed)
        candidates.append(replace(candidate, gpu=row, pool=pool, need=replace(candidate.need, step_time_s=step_s)))
    chosen = tuple(candidates[place] for place in range(2) if not gib or place in gib)
    pools = tuple(each.pool for each in chosen)
    return replace(policy_input, candidates=chosen, cluster=replace(policy_input.cluster, pools=pools))


def test_where_all_gpus_are_slices_a_job_gets_the_smallest_that_holds_it() -> None:
    """However much slower it is there: it could have had no whole GPU."""
    decision = decided(of_slices())
    assert decision.request.slice_type == "1g.10gb"
    assert decision.request.preferred_gpus == ("3g.40gb",)
    assert decision.reasons == ("the smallest slice with room that holds it, of the slices that it may use",)
    assert decided(of_slices(gib=12.0)).request.slice_type == "3g.40gb"


@pytest.mark.parametrize(
    ("policy_input", "reason"),
    [
        (of_slices(0), "no slice is chosen: every GPU that it may use is of one type, 1g.10gb"),
        (of_slices(free=0), "no slice is chosen: no slice that holds it has room now"),
        (of_slices(workload=Workload(slices=False)), "no slice is chosen: gpusage gives it no slice"),
    ],
)
def test_no_reason_speaks_of_a_whole_gpu_where_there_is_none(policy_input: PolicyInput, reason: str) -> None:
    decision = decided(policy_input)
    assert (decision.request.slice_type, decision.reasons[-1]) == (None, reason)


@pytest.mark.parametrize(
    ("gpu_type", "slices", "typed_slices", "slice_type"),
    [
        (FAST.name, None, False, None),
        (FAST.name, True, False, "3g.40gb"),
        (FAST.name, None, True, "3g.40gb"),
        (FAST.name, False, True, None),
        (OLD.name, True, True, None),  # the slices are of another type
        (None, None, False, "3g.40gb"),
        (None, False, True, None),
    ],
)
def test_a_job_that_names_its_type_gets_a_slice_of_it_where_its_user_or_site_says_so(
    gpu_type: str | None, slices: bool | None, typed_slices: bool, slice_type: str | None
) -> None:
    request, rules = GpuRequest(gpu_count=1, gpu_type=gpu_type), replace(PRICE, typed_slices=typed_slices)
    policy_input = of_slices(1, request=request, rules=rules, workload=Workload(slices=slices))
    candidates = (*priced(DEAR, CHEAP, {}).candidates, *policy_input.candidates)
    pools = tuple(candidate.pool for candidate in candidates)
    cluster = replace(policy_input.cluster, pools=pools)
    assert decided(replace(policy_input, candidates=candidates, cluster=cluster)).request.slice_type == slice_type
