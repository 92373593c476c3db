"""What holds of every decision, whatever the cluster, the needs and the site's rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from gpusage.plugins.loading import make_hooks
from gpusage.policies.candidates import admits
from gpusage.policies.latency import latency_s
from gpusage.policies.share_price import limits, partners_of
from gpusage.predictors.intervals import product
from gpusage.predictors.sharing.colocation import slowdown_with_partners
from gpusage_hooks import samples
from gpusage_hooks.checks import check_decision
from gpusage_hooks.types import (
    STAGES,
    Candidate,
    Cluster,
    Code,
    Decision,
    GenerationRules,
    Gpu,
    GpuNeed,
    GpuPool,
    GpuRequest,
    Interval,
    NodeKind,
    PolicyInput,
    Price,
    Rules,
    SharingRules,
    Slo,
    SloRules,
    Workload,
)
from gpusage_hooks.units import GIB

HOOKS = make_hooks()
ANY = settings(phases=[Phase.generate], max_examples=2000, deadline=None)
"""Find any example, not the smallest."""

NAMES = ("k80", "v100", "a100", "h100")


def intervals(least: float, most: float) -> st.SearchStrategy[Interval]:
    ends = st.lists(st.floats(least, most), min_size=3, max_size=3).map(sorted)
    return ends.map(lambda figures: Interval(low=figures[0], value=figures[1], high=figures[2]))


@st.composite
def rows(draw: st.DrawFn, name: str) -> tuple[GpuPool, GpuNeed, Gpu]:
    gpu = samples.gpu(
        name,
        tera_flop_per_s=draw(st.sampled_from((5, 15, 60))),
        memory_gib=draw(st.sampled_from((8, 11, 16, 80))),
        launch_year=draw(st.integers(2014, 2025)),
    )
    memory = draw(intervals(0.1 * GIB, 40 * GIB))
    need = replace(
        samples.need(gpu),
        memory_bytes=memory,
        sm_activity=draw(intervals(0, 1)),
        step_time_s=draw(intervals(1e-4, 10)),
        fits=memory.high <= gpu.memory_bytes,
        familiar=draw(st.sampled_from((True, True, True, False))),
    )
    pool = GpuPool(
        gpu=name,
        site_type=name,
        gpu_count=draw(st.integers(0, 8)),
        free_gpu_count=0,
        mps_per_gpu=draw(st.sampled_from((None, 10, 100, 160))),
        feature=draw(st.sampled_from((None, name))),
        exact_feature=draw(st.sampled_from((None, name, name))),
        free_share_percent=draw(st.sampled_from((None, 0, 50))),
        limited_by=draw(st.sampled_from(("wall", "cap", "none"))),
        node_kinds=draw(st.sampled_from(((), KINDS, KINDS[:1]))),
    )
    return replace(pool, free_gpu_count=draw(st.integers(0, pool.gpu_count))), need, gpu


SIZES = (25, 33, 50, 75)
HALF_COSTS = st.sampled_from((1.0, 1.05, 1.2, 1.5))
SPREADS = st.sampled_from((1.0, 1.2))
KINDS = (NodeKind(partitions=("small",), cpu_count=4, host_memory_bytes=8 * GIB), NodeKind(cpu_count=64))
"""Nodes of which some jobs below fit on none, some on one."""


def prices(gpu: Gpu, of_half: float, spread: float) -> tuple[Price, ...]:
    """Return what shares cost where half the GPU costs *of_half*: more for a smaller one, as it is."""
    return tuple(
        Price(gpu=gpu.name, share_percent=size, slowdown=Interval(low=1.0, value=value, high=value * spread))
        for size in (*SIZES, 66)  # twice a third, which the site may let a job use
        for value in (1 + (of_half - 1) * (100 - size) / 50,)
    )


@st.composite
def cases(draw: st.DrawFn) -> PolicyInput:
    actual = [draw(rows(name)) for name in draw(st.lists(st.sampled_from(NAMES), unique=True))]
    unknown = GpuPool(
        gpu=None, site_type="x", gpu_count=2, free_gpu_count=0, mps_per_gpu=draw(st.sampled_from((None, 8)))
    )
    others = draw(st.sampled_from(((), (), (unknown,))))
    slo = draw(st.none() | st.builds(Slo, latency_s=st.floats(1e-3, 10), rate_per_s=st.none() | st.floats(0.1, 1e4)))
    return PolicyInput(
        request=GpuRequest(
            gpu_count=draw(st.sampled_from((1, 1, 1, 0, 2))),
            gpu_type=draw(st.sampled_from((None, None, *NAMES))),
        ),
        workload=Workload(
            mode="infer" if slo else "train",
            slo=slo,
            batch_size=draw(st.integers(1, 64)),
            slowdown=draw(st.none() | st.floats(1.0, 3.0)),
        ),
        candidates=tuple(
            Candidate(pool=pool, gpu=gpu, need=need, shares=prices(gpu, draw(HALF_COSTS), draw(SPREADS)))
            for pool, need, gpu in actual
        ),
        cluster=Cluster(manager="slurm", version="24.11", pools=(*(pool for pool, _, _ in actual), *others)),
        rules=draw(rules()),
    )


def rules() -> st.SearchStrategy[Rules]:
    """Any rules that the configuration lets through."""
    part = st.floats(0, 2)
    return st.builds(
        Rules,
        sharing=st.just(SharingRules()) | st.builds(SharingRules, maximum_partners=st.integers(0, 8)),
        generation=st.builds(GenerationRules, minimum_speedup=part),
        slo=st.builds(SloRules, latency_margin=part),
    )


def maybe_sliced(draw: st.DrawFn, candidate: Candidate) -> Candidate:
    """Return *candidate*, or a slice (MIG) in its stead, which has a price of its own and no shares."""
    if draw(st.sampled_from((False, False, True))):
        cost = draw(st.sampled_from((1.0, 1.1, 1.4)))
        memory = draw(st.sampled_from((1, 5))) * GIB
        need = replace(candidate.need, slowdown=Interval(low=1.0, value=cost, high=cost * 1.1))
        return replace(
            candidate,
            gpu=replace(candidate.gpu, parent_gpu="h200", memory_bytes=memory),
            need=replace(need, fits=need.memory_bytes.high <= memory),
            pool=replace(candidate.pool, mps_per_gpu=None, exact_feature=None),
            shares=(),
        )
    return candidate


@st.composite
def priced_cases(draw: st.DrawFn) -> PolicyInput:
    """Return a job that may well have a share by its price: a small one that asks for one GPU."""
    actual = [draw(rows(name)) for name in draw(st.lists(st.sampled_from(NAMES[1:]), unique=True, min_size=1))]
    small = Interval(low=GIB / 2, value=GIB, high=draw(st.sampled_from((1.5, 2.5, 5.0))) * GIB)
    candidates = tuple(
        maybe_sliced(
            draw,
            Candidate(
                pool=pool,
                gpu=replace(gpu, compute_capability=(9, 0)),
                need=replace(need, memory_bytes=small, fits=True, familiar=True),
                shares=prices(gpu, draw(HALF_COSTS), draw(SPREADS)),
            ),
        )
        for pool, need, gpu in actual
    )
    return PolicyInput(
        request=GpuRequest(
            gpu_count=1,
            gpu_type=draw(st.sampled_from((None, None, None, actual[0][0].site_type))),
            cpu_count=draw(st.sampled_from((1, 8))),
            partitions=draw(st.sampled_from(((), ("small",), ("large",)))),
            bindable=draw(st.sampled_from((True, True, True, False))),
        ),
        workload=Workload(slowdown=draw(st.sampled_from((None, None, 1.1, 2.0)))),
        candidates=candidates,
        cluster=Cluster(manager="slurm", version="24.11", pools=tuple(candidate.pool for candidate in candidates)),
        rules=Rules(
            sharing=SharingRules(
                sizes=draw(st.sampled_from((SIZES, SIZES, (50,)))),
                bind=draw(st.sampled_from(("room", "room", "never", "always"))),
                cap=draw(st.sampled_from(("share", "share", "double", "none"))),
                maximum_slowdown=draw(st.sampled_from((1.1, 1.25, 2.0))),
                worst_slowdown=draw(st.sampled_from((1.1, 1.5, 3.0))),
                maximum_partners=draw(st.sampled_from((2, 4))),
            )
        ),
    )


def decide(policy_input: PolicyInput) -> Decision:
    """Return what the policies, in the advisor's order, make of *policy_input*; each answer is checked on its way."""
    draft = samples.draft(policy_input)
    for stage in STAGES:
        answer = HOOKS.decide(stage, policy_input, draft)
        if answer is not None:
            check_decision(answer, policy_input, draft)
            draft = answer
        if draft.final:
            break
    return draft


def landing(policy_input: PolicyInput, decision: Decision) -> Sequence[Candidate]:
    """Return where the share of *decision* may land."""
    named, required = decision.request.gpu_type, decision.request.required_gpus
    return [
        candidate
        for candidate in policy_input.candidates
        if candidate.pool.mps_per_gpu and admits(candidate.pool, replace(policy_input.request, gpu_type=named))
        if not required or candidate.name in required
    ]


@given(cases())
def test_every_decision_keeps_the_contract(policy_input: PolicyInput) -> None:
    """Whatever the site's rules are, no policy raises, none takes more than was asked for."""
    assert decide(policy_input).code in Code


@given(cases() | priced_cases())
def test_a_share_holds_wherever_it_may_land(policy_input: PolicyInput) -> None:
    """Its cap is within its share of the memory: shares that fit by number fit by memory."""
    decision = decide(policy_input)
    share = decision.request.mps_thread_percent
    if share is None or policy_input.request.gpu_count != 1:
        return
    where = landing(policy_input, decision)
    assert where
    for candidate in where:
        need, gpu = candidate.need, candidate.gpu
        cap = decision.request.memory_cap_bytes
        assert cap is not None
        assert need.familiar
        assert need.memory_bytes.high <= cap
        assert 100 * cap <= share * gpu.memory_bytes
        assert gpu.compute_capability >= (7, 0)
    assert 100 // share <= policy_input.rules.sharing.maximum_partners


@given(priced_cases())
def test_a_cap_changes_no_size_and_lets_no_job_use_less_than_it_books(policy_input: PolicyInput) -> None:
    """What is booked, and so what partners are left, is the share, whatever the job may use of the threads."""
    request, sharing = decide(policy_input).request, replace(policy_input.rules.sharing, cap="share")
    plain = decide(replace(policy_input, rules=Rules(sharing=sharing))).request
    assert request.mps_thread_percent == plain.mps_thread_percent
    assert plain.thread_cap_percent is None
    if request.thread_cap_percent is not None:
        assert (request.mps_thread_percent or 100) < request.thread_cap_percent <= 100


def shared_by_price(policy_input: PolicyInput) -> Decision | None:
    """Return the decision where it is a share that was chosen by its price."""
    decision = decide(policy_input)
    return decision if decision.request.mps_thread_percent is not None else None


@given(priced_cases())
def test_no_share_costs_more_than_was_accepted_wherever_it_lands(policy_input: PolicyInput) -> None:
    """As expected and at the pessimistic end, alone and beside an average partner; its size is one of the site's."""
    decision = shared_by_price(policy_input)
    if decision is None:
        return
    share, sharing = decision.request.mps_thread_percent, policy_input.rules.sharing
    accepted = policy_input.workload.slowdown or sharing.maximum_slowdown
    excess = max((sharing.worst_slowdown - 1) / max(sharing.maximum_slowdown - 1, 1e-9), 1.0)
    worst = sharing.worst_slowdown if policy_input.workload.slowdown is None else 1 + (accepted - 1) * excess
    assert share in sharing.sizes
    for candidate in landing(policy_input, decision):
        alone = next(price.slowdown for price in candidate.shares if price.share_percent == share)
        for cost in (alone, slowdown_with_partners(alone, partners_of(share))):
            assert cost.value <= accepted
            assert cost.high <= worst * (1 + 1e-9) or sharing.maximum_slowdown <= 1
        assert share * alone.value <= 80


@st.composite
def serving_cases(draw: st.DrawFn) -> PolicyInput:
    """Return an inference job with a promise that some shares keep."""
    policy_input = draw(priced_cases())
    step_s = draw(st.sampled_from(policy_input.candidates)).need.step_time_s
    promise = Slo(
        latency_s=step_s.high * draw(st.floats(0.5, 20.0)),
        rate_per_s=draw(st.sampled_from((None, 0.1, 0.4, 0.8))) and draw(st.floats(0.05, 0.9)) / step_s.high,
    )
    return replace(policy_input, workload=replace(policy_input.workload, mode="infer", slo=promise))


@given(serving_cases())
def test_no_share_breaks_a_promised_latency_wherever_it_lands(policy_input: PolicyInput) -> None:
    """At the pessimistic end of the step, beside partners, with the wait of 95 of 100 requests."""
    decision, promise = shared_by_price(policy_input), policy_input.workload.slo
    if decision is None or promise is None:
        return
    share = decision.request.mps_thread_percent or 100
    for candidate in landing(policy_input, decision):
        alone = next(price.slowdown for price in candidate.shares if price.share_percent == share)
        slowed_s = product(candidate.need.step_time_s, slowdown_with_partners(alone, partners_of(share))).high
        assert latency_s(slowed_s, policy_input.workload) <= promise.latency_s


@given(serving_cases(), st.floats(1.0, 5.0))
def test_more_requests_never_make_a_smaller_share(policy_input: PolicyInput, times: float) -> None:
    """Of one GPU type; of several, more requests may bind the job to a faster one, of which less is enough."""
    promise = policy_input.workload.slo
    assert promise is not None
    one = replace(
        policy_input,
        candidates=policy_input.candidates[:1],
        cluster=replace(policy_input.cluster, pools=(policy_input.candidates[0].pool,)),
    )
    more = replace(promise, rate_per_s=(promise.rate_per_s or 0.0) * times + times - 1)
    before = shared_by_price(one)
    after = shared_by_price(replace(one, workload=replace(one.workload, slo=more)))
    if after is not None:
        assert before is not None
        assert (before.request.mps_thread_percent or 0) <= (after.request.mps_thread_percent or 0)


@given(priced_cases())
def test_a_slice_is_taken_only_where_the_job_fits_and_the_price_is_accepted(policy_input: PolicyInput) -> None:
    """It is alone there, so its own price counts, at both ends; a share that could be had comes after it."""
    decision, sharing = decide(policy_input), policy_input.rules.sharing
    if decision.request.slice_type is None:
        return
    name = decision.request.slice_type
    (candidate,) = (candidate for candidate in policy_input.candidates if candidate.name == name)
    accepted = limits(sharing, policy_input.workload.slowdown)
    assert candidate.gpu.parent_gpu is not None
    assert candidate.need.memory_bytes.high <= candidate.gpu.memory_bytes
    assert candidate.need.slowdown.value <= accepted.expected
    assert candidate.need.slowdown.high <= accepted.worst
    assert policy_input.request.gpu_type is None
    assert sharing.bind == "always" or (sharing.bind == "room" and candidate.pool.has_room(100))


@given(priced_cases())
def test_a_job_is_bound_only_where_it_could_run(policy_input: PolicyInput) -> None:
    """Each GPU type has a name to ask for and a node that is large enough and in reach; one has room, unless told."""
    decision = shared_by_price(policy_input)
    if decision is None or not decision.request.required_gpus:
        return
    request, where = policy_input.request, landing(policy_input, decision)
    assert request.bindable
    assert request.gpu_type is None
    assert policy_input.rules.sharing.bind != "never"
    assert len({candidate.pool.mps_per_gpu for candidate in where}) == 1
    for candidate in where:
        assert candidate.pool.exact_feature
        assert not candidate.pool.node_kinds or any(
            kind.cpu_count >= request.cpu_count
            and kind.host_memory_bytes >= request.host_memory_bytes
            and (not kind.partitions or not request.partitions or {*kind.partitions} & {*request.partitions})
            for kind in candidate.pool.node_kinds
        )
    if policy_input.rules.sharing.bind == "room":
        assert any(candidate.pool.has_room(decision.request.mps_thread_percent or 0) for candidate in where)


@given(priced_cases())
def test_who_accepts_no_slowdown_never_shares_by_price(policy_input: PolicyInput) -> None:
    strict = replace(policy_input, workload=replace(policy_input.workload, slowdown=1.0))
    assert shared_by_price(strict) is None


@given(cases(), st.floats(1.0, 4.0))
def test_more_memory_never_makes_a_smaller_share(policy_input: PolicyInput, times: float) -> None:
    """Of one GPU type; of several, more memory may bind the job to a larger one, of which less is enough."""
    pools = tuple(candidate.pool for candidate in policy_input.candidates[:1])
    cluster = replace(policy_input.cluster, pools=pools)
    policy_input = replace(policy_input, candidates=policy_input.candidates[:1], cluster=cluster)

    def grown(candidate: Candidate) -> Candidate:
        need = candidate.need
        memory = Interval(
            value=need.memory_bytes.value * times,
            low=need.memory_bytes.low * times,
            high=need.memory_bytes.high * times,
        )
        return replace(
            candidate, need=replace(need, memory_bytes=memory, fits=memory.high <= candidate.gpu.memory_bytes)
        )

    larger = replace(policy_input, candidates=tuple(map(grown, policy_input.candidates)))
    before, after = decide(policy_input).request.mps_thread_percent, decide(larger).request.mps_thread_percent
    if after is not None and policy_input.request.gpu_count == 1:
        assert before is not None
        assert before <= after


@given(cases())
def test_deciding_again_on_the_decision_changes_nothing(policy_input: PolicyInput) -> None:
    """A job that was rewritten once, and comes by again (a requeue, an update), stays as it is."""
    request = decide(policy_input).request
    if request.mps_thread_percent is not None:
        assert decide(replace(policy_input, request=request)).request == request


def reach(strategy: st.SearchStrategy[PolicyInput], *outcomes: Callable[[Decision], bool]) -> None:
    """Draw cases until each of *outcomes* has been that of one."""
    left = [*outcomes]

    def is_last(policy_input: PolicyInput) -> bool:
        decision = decide(policy_input)
        left[:] = [outcome for outcome in left if not outcome(decision)]
        return not left

    find(strategy, is_last, settings=ANY)  # fails if a case is never drawn


def test_the_cases_reach_every_outcome() -> None:
    """Otherwise the properties above would hold of nothing."""
    reach(
        cases(),
        lambda decision: decision.request.mps_thread_percent is not None,
        lambda decision: bool(decision.request.preferred_gpus),
        lambda decision: decision.final,
        lambda decision: any("promised" in reason for reason in decision.reasons),
    )
    reach(
        priced_cases(),
        lambda decision: bool(decision.request.required_gpus) and not decision.request.gpu_count,
        lambda decision: decision.request.slice_type is not None,
        lambda decision: decision.request.thread_cap_percent is not None,
        lambda decision: decision.request.mps_thread_percent is not None and not decision.request.required_gpus,
        lambda decision: decision.request.mps_thread_percent is None,
    )
    assert find(serving_cases(), lambda policy_input: shared_by_price(policy_input) is not None, settings=ANY)
