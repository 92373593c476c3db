"""What holds of every decision, whatever the cluster, the needs and the site's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from gpusage.plugins.loading import make_hooks
from gpusage.policies.latency import latency_s
from gpusage.policies.shares.price import limits, partners_of
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
    Figure,
    GenerationRules,
    Gpu,
    GpuNeed,
    GpuPool,
    GpuRequest,
    Interval,
    NodeKind,
    ObservedFigures,
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
        node_kinds=draw(st.sampled_from(((), KINDS, KINDS[:1]))),
    )
    return replace(pool, free_gpu_count=draw(st.integers(0, pool.gpu_count))), need, gpu


SIZES = (25, 33, 50, 75)
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
        places=tuple(Candidate(pool=pool, gpu=gpu, need=need) for pool, need, gpu in actual),
        cluster=Cluster(manager="slurm", version="24.11", pools=(*(pool for pool, _, _ in actual), *others)),
        rules=draw(rules()),
    )


def rules() -> st.SearchStrategy[Rules]:
    """Any rules that the configuration lets through."""
    whole, part = st.integers(0, 120), st.floats(0, 2)
    return st.builds(
        Rules,
        sharing=st.just(SharingRules(rule="activity"))
        | st.builds(
            SharingRules,
            rule=st.just("activity"),
            maximum_percent=whole,
            minimum_percent=whole,
            step_percent=whole,
            headroom=part,
            maximum_partners=st.integers(0, 8),
        ),
        generation=st.builds(GenerationRules, minimum_speedup=part),
        slo=st.builds(SloRules, latency_margin=part),
    )


def maybe_sliced(draw: st.DrawFn, place: Candidate) -> Candidate:
    """Return *place*, or a slice (MIG) in its stead, which has a price of its own and no shares."""
    if draw(st.sampled_from((False, False, True))):
        cost = draw(st.sampled_from((1.0, 1.1, 1.4)))
        memory = draw(st.sampled_from((1, 5))) * GIB
        need = replace(place.need, slowdown=Interval(low=1.0, value=cost, high=cost * 1.1))
        return replace(
            place,
            gpu=replace(place.gpu, parent_gpu="h200", memory_bytes=memory),
            need=replace(need, fits=need.memory_bytes.high <= memory),
            pool=replace(place.pool, mps_per_gpu=None, exact_feature=None),
            shares=(),
        )
    return place


def known_utilization(draw: st.DrawFn) -> ObservedFigures:
    figure = draw(st.none() | intervals(0.01, 1).map(lambda ends: Figure(interval=ends, source="earlier runs")))
    return ObservedFigures(gpu_utilization=figure)


@st.composite
def packed_cases(draw: st.DrawFn) -> PolicyInput:
    """Return a job as `priced_cases` does, of which a utilization may be known, where the site packs by it."""
    case = draw(priced_cases())
    places = tuple(replace(place, known=known_utilization(draw)) for place in case.places)
    packed = SharingRules(rule="utilization", maximum_packed=draw(st.integers(1, 6)))
    return replace(case, places=places, rules=Rules(sharing=packed))


@st.composite
def priced_cases(draw: st.DrawFn) -> PolicyInput:
    """Return a job that may well have a share by its price: a small one that asks for one GPU."""
    actual = [draw(rows(name)) for name in draw(st.lists(st.sampled_from(NAMES[1:]), unique=True, min_size=1))]
    small = Interval(low=GIB / 2, value=GIB, high=draw(st.sampled_from((1.5, 2.5, 5.0))) * GIB)
    places = tuple(
        maybe_sliced(
            draw,
            Candidate(
                pool=pool,
                gpu=replace(gpu, compute_capability=(9, 0)),
                need=replace(need, memory_bytes=small, fits=True, familiar=True),
                shares=prices(gpu, draw(st.sampled_from((1.0, 1.05, 1.2, 1.5))), draw(st.sampled_from((1.0, 1.2)))),
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
        places=places,
        cluster=Cluster(manager="slurm", version="24.11", pools=tuple(place.pool for place in places)),
        rules=Rules(
            sharing=SharingRules(
                rule="price",
                sizes=draw(st.sampled_from((SIZES, SIZES, (50,)))),
                bind=draw(st.sampled_from(("room", "room", "never", "always"))),
                cap=draw(st.sampled_from(("share", "share", "double", "none"))),
                maximum_slowdown=draw(st.sampled_from((1.1, 1.25, 2.0))),
                worst_slowdown=draw(st.sampled_from((1.1, 1.5, 3.0))),
                maximum_partners=draw(st.sampled_from((2, 4))),
            )
        ),
    )


def decide(case: PolicyInput) -> Decision:
    """Return what the policies, in the advisor's order, make of *case*; each answer is checked on its way."""
    draft = samples.draft(case)
    for stage in STAGES:
        answer = HOOKS.decide(stage, case, draft)
        if answer is not None:
            check_decision(answer, case, draft)
            draft = answer
        if draft.final:
            break
    return draft


def landing(case: PolicyInput, decision: Decision) -> Sequence[Candidate]:
    """Return where the share of *decision* may land."""
    named, required = decision.request.gpu_type, decision.request.required_gpus
    return [
        place
        for place in case.places
        if place.pool.mps_per_gpu and place.pool.gpu_count and named in (None, place.name)
        if not required or place.name in required
    ]


@given(cases())
def test_every_decision_keeps_the_contract(case: PolicyInput) -> None:
    """Whatever the site's rules are, no policy raises, none takes more than was asked for."""
    assert decide(case).code in Code


@given(cases() | priced_cases())
def test_a_share_holds_wherever_it_may_land(case: PolicyInput) -> None:
    """Its cap is within its share of the memory: shares that fit by number fit by memory."""
    decision = decide(case)
    share = decision.request.mps_thread_percent
    if share is None or case.request.gpu_count != 1:
        return
    where = landing(case, decision)
    assert where
    for place in where:
        need, gpu = place.need, place.gpu
        cap = decision.request.memory_cap_bytes
        assert cap is not None
        assert need.familiar
        assert need.memory_bytes.high <= cap
        assert 100 * cap <= share * gpu.memory_bytes
        assert case.rules.sharing.rule == "price" or share >= round(100 * need.sm_activity.high, 6)
        assert gpu.compute_capability >= (7, 0)
    assert share <= case.rules.sharing.maximum_percent
    assert 100 // share <= case.rules.sharing.maximum_partners


@given(priced_cases())
def test_a_cap_changes_no_size_and_lets_no_job_use_less_than_it_books(case: PolicyInput) -> None:
    """What is booked, and so what partners are left, is the share, whatever the job may use of the threads."""
    request, sharing = decide(case).request, replace(case.rules.sharing, cap="share")
    plain = decide(replace(case, rules=Rules(sharing=sharing))).request
    assert request.mps_thread_percent == plain.mps_thread_percent
    assert plain.thread_cap_percent is None
    if request.thread_cap_percent is not None:
        assert (request.mps_thread_percent or 100) < request.thread_cap_percent <= 100


def shared_by_price(case: PolicyInput) -> Decision | None:
    """Return the decision where it is a share that was chosen by its price."""
    decision = decide(case)
    return decision if decision.request.mps_thread_percent is not None else None


@given(priced_cases())
def test_no_share_costs_more_than_was_accepted_wherever_it_lands(case: PolicyInput) -> None:
    """As expected and at the pessimistic end, alone and beside an average partner; its size is one of the site's."""
    decision = shared_by_price(case)
    if decision is None:
        return
    share, sharing = decision.request.mps_thread_percent, case.rules.sharing
    accepted = case.workload.slowdown or sharing.maximum_slowdown
    excess = max((sharing.worst_slowdown - 1) / max(sharing.maximum_slowdown - 1, 1e-9), 1.0)
    worst = sharing.worst_slowdown if case.workload.slowdown is None else 1 + (accepted - 1) * excess
    assert share in sharing.sizes
    for place in landing(case, decision):
        alone = next(price.slowdown for price in place.shares if price.share_percent == share)
        for cost in (alone, slowdown_with_partners(alone, partners_of(share))):
            assert cost.value <= accepted
            assert cost.high <= worst * (1 + 1e-9) or sharing.maximum_slowdown <= 1
        assert share * alone.value <= 80


@st.composite
def serving_cases(draw: st.DrawFn) -> PolicyInput:
    """Return an inference job with a promise that some shares keep."""
    case = draw(priced_cases())
    step_s = draw(st.sampled_from(case.places)).need.step_time_s
    promise = Slo(
        latency_s=step_s.high * draw(st.floats(0.5, 20.0)),
        rate_per_s=draw(st.sampled_from((None, 0.1, 0.4, 0.8))) and draw(st.floats(0.05, 0.9)) / step_s.high,
    )
    return replace(case, workload=replace(case.workload, mode="infer", slo=promise))


@given(serving_cases())
def test_no_share_breaks_a_promised_latency_wherever_it_lands(case: PolicyInput) -> None:
    """At the pessimistic end of the step, beside partners, with the wait of 95 of 100 requests."""
    decision, promise = shared_by_price(case), case.workload.slo
    if decision is None or promise is None:
        return
    share = decision.request.mps_thread_percent or 100
    for place in landing(case, decision):
        alone = next(price.slowdown for price in place.shares if price.share_percent == share)
        slowed_s = product(place.need.step_time_s, slowdown_with_partners(alone, partners_of(share))).high
        assert latency_s(slowed_s, case.workload) <= promise.latency_s


@given(serving_cases(), st.floats(1.0, 5.0))
def test_more_requests_never_make_a_smaller_share(case: PolicyInput, times: float) -> None:
    """Of one GPU type; of several, more requests may bind the job to a faster one, of which less is enough."""
    promise = case.workload.slo
    assert promise is not None
    one = replace(case, places=case.places[:1], cluster=replace(case.cluster, pools=(case.places[0].pool,)))
    more = replace(promise, rate_per_s=(promise.rate_per_s or 0.0) * times + times - 1)
    before = shared_by_price(one)
    after = shared_by_price(replace(one, workload=replace(one.workload, slo=more)))
    if after is not None:
        assert before is not None
        assert (before.request.mps_thread_percent or 0) <= (after.request.mps_thread_percent or 0)


@given(priced_cases())
def test_a_slice_is_taken_only_where_the_job_fits_and_the_price_is_accepted(case: PolicyInput) -> None:
    """It is alone there, so its own price counts, at both ends; a share that could be had comes after it."""
    decision, sharing = decide(case), case.rules.sharing
    if decision.request.slice_type is None:
        return
    name = decision.request.slice_type
    (place,) = (place for place in case.places if place.name == name)
    accepted = limits(sharing, case.workload.slowdown)
    assert place.gpu.parent_gpu is not None
    assert place.need.memory_bytes.high <= place.gpu.memory_bytes
    assert place.need.slowdown.value <= accepted.expected
    assert place.need.slowdown.high <= accepted.worst
    assert case.request.gpu_type is None
    assert sharing.bind == "always" or (sharing.bind == "room" and place.pool.has_room(100))


@given(packed_cases())
def test_known_utilizations_never_add_up_to_more_than_a_gpu(case: PolicyInput) -> None:
    """Nobody is limited in threads, each has its memory, and no more jobs fit than the site allows."""
    request = decide(case).request
    if request.mps_thread_percent is None:
        return
    assert request.thread_cap_percent == 100
    assert (case.rules.sharing.maximum_packed + 1) * request.mps_thread_percent > 100
    for place in landing(case, decide(case)):
        figure = place.known.gpu_utilization
        assert figure is not None
        assert request.mps_thread_percent >= round(100 * figure.interval.high, 6)
        assert 100 * (request.memory_cap_bytes or 0) <= request.mps_thread_percent * place.gpu.memory_bytes


@given(priced_cases())
def test_a_job_is_bound_only_where_it_could_run(case: PolicyInput) -> None:
    """Each GPU type has a name to ask for and a node that is large enough and in reach; one has room, unless told."""
    decision = shared_by_price(case)
    if decision is None or not decision.request.required_gpus:
        return
    request, where = case.request, landing(case, decision)
    assert request.bindable
    assert request.gpu_type is None
    assert case.rules.sharing.bind != "never"
    assert len({place.pool.mps_per_gpu for place in where}) == 1
    for place in where:
        assert place.pool.exact_feature
        assert not place.pool.node_kinds or any(
            kind.cpu_count >= request.cpu_count
            and kind.host_memory_bytes >= request.host_memory_bytes
            and (not kind.partitions or not request.partitions or {*kind.partitions} & {*request.partitions})
            for kind in place.pool.node_kinds
        )
    if case.rules.sharing.bind == "room":
        assert any(place.pool.has_room(decision.request.mps_thread_percent or 0) for place in where)


@given(priced_cases())
def test_who_accepts_no_slowdown_never_shares_by_price(case: PolicyInput) -> None:
    strict = replace(case, workload=replace(case.workload, slowdown=1.0))
    assert shared_by_price(strict) is None


@given(cases(), st.floats(1.0, 4.0))
def test_more_memory_never_makes_a_smaller_share(case: PolicyInput, times: float) -> None:
    def grown(place: Candidate) -> Candidate:
        need = place.need
        memory = Interval(
            value=need.memory_bytes.value * times,
            low=need.memory_bytes.low * times,
            high=need.memory_bytes.high * times,
        )
        return replace(place, need=replace(need, memory_bytes=memory, fits=memory.high <= place.gpu.memory_bytes))

    larger = replace(case, places=tuple(map(grown, case.places)))
    before, after = decide(case).request.mps_thread_percent, decide(larger).request.mps_thread_percent
    if after is not None and case.request.gpu_count == 1:
        assert before is not None
        assert before <= after


@given(cases())
def test_deciding_again_on_the_decision_changes_nothing(case: PolicyInput) -> None:
    """A job that was rewritten once, and comes by again (a requeue, an update), stays as it is."""
    request = decide(case).request
    if request.mps_thread_percent is not None:
        assert decide(replace(case, request=request)).request == request


def test_the_cases_reach_every_outcome() -> None:
    """Otherwise the properties above would hold of nothing."""
    for outcome in (
        lambda decision: decision.request.mps_thread_percent is not None,
        lambda decision: bool(decision.request.preferred_gpus),
        lambda decision: decision.final,
        lambda decision: any("promised" in reason for reason in decision.reasons),
    ):
        assert outcome(decide(find(cases(), lambda case, wanted=outcome: wanted(decide(case)), settings=ANY)))
    for outcome in (
        lambda decision: bool(decision.request.required_gpus) and not decision.request.gpu_count,
        lambda decision: decision.request.slice_type is not None,
        lambda decision: decision.request.thread_cap_percent is not None,
        lambda decision: decision.request.mps_thread_percent is not None and not decision.request.required_gpus,
        lambda decision: decision.request.mps_thread_percent is None,
    ):
        assert outcome(decide(find(priced_cases(), lambda case, wanted=outcome: wanted(decide(case)), settings=ANY)))
    assert find(serving_cases(), lambda case: shared_by_price(case) is not None, settings=ANY)
    assert find(packed_cases(), lambda case: decide(case).request.mps_thread_percent is not None, settings=ANY)
