"""What a share costs, whether that can be promised, and which share is taken; needs and pools are made here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.devices.shares import memory_cap_bytes
from gpusage.policies.share_choice import Choice, Reach, choose
from gpusage.policies.share_price import (
    Limits,
    Offer,
    can_promise,
    cost,
    limits,
    need_alone,
    need_on,
    offers,
    part_of,
    partners_of,
    priced_percents,
    sizes,
    trouble,
)
from gpusage.predictors.sharing.colocation import slowdown_with_partners
from gpusage_hooks import samples
from gpusage_hooks.types import (
    Binding,
    Candidate,
    Gpu,
    GpuPool,
    GpuRequest,
    Interval,
    NodeKind,
    Price,
    Room,
    SharingRules,
)
from gpusage_hooks.units import GIB

OLD, SMALL, FAST = samples.gpus()
SITE = Limits(expected=1.25, worst=1.5)
ONE = GpuRequest(gpu_count=1)


def slowdown(value: float, spread: float = 0.05) -> Interval:
    return Interval(value=value, low=max(value - spread, 1.0), high=value + spread)


def on_share(gpu: Gpu, percent: int, value: float, spread: float = 0.05) -> Price:
    return Price(gpu=gpu.name, share_percent=percent, slowdown=slowdown(value, spread))


def candidate(gpu: Gpu, *shares: Price, gib: float = 2.0, **pool: object) -> Candidate:
    there = GpuPool(gpu=gpu.name, site_type=gpu.name, gpu_count=4, free_gpu_count=2, mps_per_gpu=100)
    there = replace(there, exact_feature=gpu.name, **pool)  # type: ignore[arg-type]
    return Candidate(pool=there, need=samples.need(gpu, memory_gib=gib), gpu=gpu, shares=shares)


def offer(gpu: Gpu = FAST, percent: int = 50, value: float = 1.1, spread: float = 0.05, gib: float = 2.0) -> Offer:
    (share_offer,) = offers([candidate(gpu, on_share(gpu, percent, value, spread), gib=gib)], ONE, SharingRules())
    return share_offer


def taken(
    *where: Candidate, bind: Binding = "room", closed: bool = True, releases: bool = True, **request: object
) -> Choice | None:
    gpu_request = replace(GpuRequest(gpu_count=1), **request)  # type: ignore[arg-type]
    usual_s = max(one.need.step_time_s.value for one in where)
    reach = Reach(
        request=gpu_request,
        partitions=gpu_request.partitions or ("",),
        candidates=where,
        closed=closed,
        usual_s=usual_s,
        releases=releases,
    )
    return choose([*offers(where, gpu_request, SharingRules())], reach, SITE, bind)


def test_without_a_word_of_the_user_the_sites_limits_hold() -> None:
    assert limits(SharingRules(), None) == SITE


@pytest.mark.parametrize(("accepted", "worst"), [(1.1, 1.2), (1.5, 2.0), (2.0, 3.0), (1.0, 1.0)])
def test_what_the_user_accepts_moves_both_limits(accepted: float, worst: float) -> None:
    """The site's pessimistic limit is twice as far from 1 as its expected one: 0.5 and 0.25."""
    within = limits(SharingRules(), accepted)
    assert (within.expected, within.worst) == (accepted, pytest.approx(worst))


def test_a_site_that_allows_no_doubt_gets_none() -> None:
    assert limits(SharingRules(maximum_slowdown=1.2, worst_slowdown=1.2), 1.5) == Limits(expected=1.5, worst=1.5)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (SharingRules(maximum_partners=4), (25, 33, 50, 75)),
        (SharingRules(maximum_partners=3), (33, 50, 75)),
        (SharingRules(sizes=(50, 20, 50), maximum_partners=5), (20, 50)),
        (SharingRules(sizes=()), ()),
    ],
)
def test_sizes_are_the_sites(rules: SharingRules, expected: tuple[int, ...]) -> None:
    assert sizes(rules) == expected


def test_average_partners_count() -> None:
    share_offer = offer(value=1.1)
    assert share_offer.slowdown == slowdown_with_partners(slowdown(1.1), 1)
    assert share_offer.slowdown.value > 1.1
    assert share_offer.gpu_time == pytest.approx(0.5 * 1.1)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (SharingRules(), (25, 33, 50, 75)),
        (SharingRules(cap="double"), (25, 33, 50, 66, 75)),  # 2 x 25 is a size, 2 x 50 and 2 x 75 are all threads
        (SharingRules(cap="none"), (25, 33, 50, 75)),
    ],
)
def test_the_threads_that_a_share_may_use_are_priced_too(rules: SharingRules, expected: tuple[int, ...]) -> None:
    assert priced_percents(rules) == expected


def test_more_threads_than_the_share_count_while_partners_are_idle_and_not_beside_them() -> None:
    """A third with the threads of two: alone it costs what two thirds cost, beside partners what a third does."""
    where = candidate(FAST, on_share(FAST, 33, 1.15), on_share(FAST, 66, 1.02))
    (booked,) = offers([where], ONE, SharingRules())
    (doubled,) = offers([where], ONE, SharingRules(cap="double"))
    assert (booked.alone, doubled.alone) == (slowdown(1.15), slowdown(1.02))
    assert doubled.slowdown == replace(booked.slowdown, low=slowdown(1.02).low)
    assert doubled.gpu_time == booked.gpu_time
    assert need_on(doubled).slowdown == slowdown(1.02)
    (free,) = offers([where], ONE, SharingRules(cap="none"))
    assert (free.alone.value, free.alone.high) == (1.0, 1.0)


@pytest.mark.parametrize(("percent", "partners"), [(25, 3), (33, 2), (50, 1), (75, 1)])
def test_as_many_partners_count_as_fit(percent: int, partners: int) -> None:
    assert partners_of(percent) == partners


@pytest.mark.parametrize(
    ("expected", "reason"),
    [
        (offer(), ""),
        (offer(value=1.25), "would cost 3"),
        (offer(value=1.15, spread=0.3), "may cost up to 5"),
        (offer(percent=75, value=1.1), "would save too little: 82 % of a whole GPU's time per step"),
        (offer(OLD, gib=8.0), "may need up to 8.8 GiB, more than its part of the memory"),
        (offer(value=float("nan")), "would cost unknown %"),
    ],
)
def test_a_share_that_cannot_be_promised_says_why(expected: Offer, reason: str) -> None:
    assert trouble(expected, SITE).startswith(reason)
    assert can_promise(expected, SITE) is (reason == "")


def test_an_unfamiliar_model_and_an_old_gpu_are_promised_nothing() -> None:
    share_offer = offer()
    strange = replace(
        share_offer, candidate=replace(share_offer.candidate, need=replace(share_offer.candidate.need, familiar=False))
    )
    assert trouble(strange, SITE).startswith("is not offered: the workload is unlike those")
    pascal = replace(share_offer.candidate.gpu, compute_capability=(6, 0))
    assert "older than Volta" in trouble(
        replace(share_offer, candidate=replace(share_offer.candidate, gpu=pascal)), SITE
    )


def test_the_share_with_the_least_gpu_time_is_taken() -> None:
    """50 % at 1.05 take more than half of the GPU's time, 33 % at 1.12 take about 40 %; 25 % are too dear."""
    shares = on_share(FAST, 25, 1.3), on_share(FAST, 33, 1.12), on_share(FAST, 50, 1.05)
    choice = taken(candidate(FAST, *shares))
    assert choice is not None
    assert (choice.share_percent, choice.binding) == (33, False)
    assert choice.cap_bytes == memory_cap_bytes(FAST.memory_bytes, 33)


def test_a_job_that_cannot_be_repeated_unseen_shares_only_where_all_that_it_may_take_fits() -> None:
    """It needs 4 GiB at most, and may take 40 of the 80 GiB: half of the GPU, less the reserve, is too little."""
    needed = Interval(value=3.0 * GIB, low=2.0 * GIB, high=4.0 * GIB)
    taking = Interval(value=20.0 * GIB, low=3.0 * GIB, high=40.0 * GIB)
    where = candidate(FAST, on_share(FAST, 50, 1.1), limited_by="wall")
    where = replace(where, need=replace(where.need, memory_bytes=taking, required_memory_bytes=needed))
    assert taken(where) is not None
    assert taken(where, repeatable=False) is None
    known = replace(where.need, memory_bytes=replace(taking, high=30.0 * GIB))
    assert taken(replace(where, need=known), repeatable=False) is not None


@pytest.mark.parametrize(("limited_by", "is_shared"), [("wall", True), ("cap", False), ("none", False)])
def test_where_no_wall_is_a_share_holds_all_that_the_job_may_take(limited_by: str, is_shared: bool) -> None:
    """It needs 4 GiB at most, and may take 40 of the 80 GiB; half of the GPU, less the reserve, is a little less."""
    where = candidate(FAST, on_share(FAST, 50, 1.1), limited_by=limited_by)
    needed = Interval(value=3.0 * GIB, low=2.0 * GIB, high=4.0 * GIB)
    taking = Interval(value=20.0 * GIB, low=3.0 * GIB, high=40.0 * GIB)
    where = replace(where, need=replace(where.need, memory_bytes=taking, required_memory_bytes=needed))
    assert (taken(where) is not None) is is_shared

    (share_offer,) = offers([where], ONE, SharingRules())
    assert ("may take up to 40.0 GiB" in trouble(share_offer, SITE)) is not is_shared


def test_a_small_part_behind_a_wall_need_not_hold_what_the_job_takes_elsewhere() -> None:
    """Half of the old GPU holds its need behind a wall; half of the fast one, without a wall, all that it takes."""
    taking = Interval(value=20.0 * GIB, low=3.0 * GIB, high=30.0 * GIB)
    needed = Interval(value=3.0 * GIB, low=2.0 * GIB, high=4.0 * GIB)
    both = (
        candidate(gpu, on_share(gpu, 50, 1.1), limited_by=limited_by)
        for gpu, limited_by in ((OLD, "wall"), (FAST, "cap"))
    )
    choice = taken(
        *(replace(one, need=replace(one.need, memory_bytes=taking, required_memory_bytes=needed)) for one in both)
    )
    assert choice is not None
    assert [one.candidate.gpu for one in choice.offers] == [OLD, FAST]


def test_a_share_that_holds_everywhere_confines_nothing() -> None:
    choice = taken(candidate(OLD, on_share(OLD, 50, 1.1)), candidate(FAST, on_share(FAST, 50, 1.1)))
    assert choice is not None
    assert not choice.binding


def test_one_that_holds_on_some_confines_the_job_to_all_of_those() -> None:
    where = (
        candidate(OLD, on_share(OLD, 50, 1.4)),
        candidate(SMALL, on_share(SMALL, 50, 1.1)),
        candidate(FAST, on_share(FAST, 50, 1.1)),
    )
    choice = taken(*where)
    assert choice is not None
    assert choice.binding
    assert [one.candidate.name for one in choice.offers] == [SMALL.name, FAST.name]


def test_a_job_is_confined_to_places_that_count_alike() -> None:
    where = (
        candidate(OLD, on_share(OLD, 50, 1.4)),
        candidate(SMALL, on_share(SMALL, 50, 1.1), mps_per_gpu=10),
        candidate(FAST, on_share(FAST, 50, 1.05)),
    )
    choice = taken(*where)
    assert choice is not None
    assert [one.candidate.name for one in choice.offers] == [FAST.name]


def test_no_share_where_nothing_may_confine_it() -> None:
    dear, cheap = candidate(OLD, on_share(OLD, 50, 1.4)), candidate(FAST, on_share(FAST, 50, 1.1))
    assert taken(dear, cheap) is not None
    assert taken(dear, cheap, bind="never") is None
    assert taken(dear, cheap, bindable=False) is None
    assert taken(dear, replace(cheap, pool=replace(cheap.pool, exact_feature=None))) is None


def test_a_place_without_room_confines_nobody_unless_the_site_says_so() -> None:
    dear, full = candidate(OLD, on_share(OLD, 50, 1.4)), candidate(FAST, on_share(FAST, 50, 1.1), free_gpu_count=0)
    assert taken(dear, full) is None
    assert taken(dear, full, bind="always") is not None
    half_free = replace(full, pool=replace(full.pool, free_share_percent=50))
    assert taken(dear, half_free) is not None
    assert taken(dear, replace(full, pool=replace(full.pool, free_share_percent=49))) is None


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({}, True),
        ({"cpu_count": 16, "host_memory_bytes": 64 * GIB}, True),
        ({"cpu_count": 17}, False),
        ({"host_memory_bytes": 65 * GIB}, False),
        ({"partitions": ("gpu",)}, True),
        ({"partitions": ("debug",)}, False),
        ({"node_features": (("ib",), ("opa",))}, True),
        ({"node_features": (("nvme",),)}, False),
    ],
)
def test_a_job_is_confined_only_to_nodes_of_which_one_could_run_it(options: dict[str, object], *, bound: bool) -> None:
    kind = NodeKind(partitions=("gpu",), features=("ib",), cpu_count=16, host_memory_bytes=64 * GIB)
    other = NodeKind(partitions=("gpu",), features=("nvme",), cpu_count=1, host_memory_bytes=GIB)
    dear = candidate(OLD, on_share(OLD, 50, 1.4))
    cheap = candidate(FAST, on_share(FAST, 50, 1.1), node_kinds=(kind, other))
    options = {"cpu_count": 2, **options}
    assert (taken(dear, cheap, **options) is not None) is bound


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({}, True),
        ({"cpu_count": 5}, False),
        ({"host_memory_bytes": 9 * GIB}, False),
        ({"partitions": ("free",)}, True),
        ({"partitions": ("full",)}, False),
        ({"partitions": ("free", "full")}, True),
        ({"partitions": ("free", "elsewhere")}, False),
        ({"node_features": (("ib",),)}, False),
    ],
)
def test_room_counts_only_on_nodes_that_could_run_the_job(options: dict[str, object], *, bound: bool) -> None:
    """A type may be free in one partition and full in another; bound to it there, the job would wait."""
    large = {"cpu_count": 16, "host_memory_bytes": 64 * GIB}
    room = Room(share_percent=100, cpu_count=4, host_memory_bytes=8 * GIB)
    free = NodeKind(partitions=("free",), room=room, **large)  # type: ignore[arg-type] - counts
    full = NodeKind(partitions=("full",), features=("ib",), room=Room(), **large)  # type: ignore[arg-type] - counts
    dear = candidate(OLD, on_share(OLD, 50, 1.4))
    cheap = candidate(FAST, on_share(FAST, 50, 1.1), node_kinds=(free, full))
    assert (taken(dear, cheap, **options) is not None) is bound


def test_a_job_is_confined_only_where_it_is_let_go_again_unless_the_site_says_so() -> None:
    dear, cheap = candidate(OLD, on_share(OLD, 50, 1.4)), candidate(FAST, on_share(FAST, 50, 1.1))
    assert taken(dear, cheap, releases=False) is None
    assert taken(dear, cheap, releases=False, bind="always") is not None


def test_a_job_is_not_confined_to_a_gpu_on_which_it_would_be_slower_than_it_accepts() -> None:
    """Preferred are FAST's 0.025 s; half of OLD would take more than 0.11 s."""
    slow, fast = candidate(OLD, on_share(OLD, 50, 1.1)), candidate(FAST, on_share(FAST, 50, 1.4))
    reach = Reach(
        request=GpuRequest(gpu_count=1),
        partitions=("",),
        candidates=(slow, fast),
        closed=True,
        usual_s=fast.need.step_time_s.value,
    )
    assert choose([*offers((slow, fast), ONE, SharingRules())], reach, SITE, "always") is None


def test_a_gpu_that_nobody_knows_stops_a_share_that_confines_nothing() -> None:
    choice = taken(candidate(FAST, on_share(FAST, 50, 1.1)), closed=False)
    assert choice is not None
    assert choice.binding
    assert taken(candidate(FAST, on_share(FAST, 50, 1.1)), closed=False, bind="never") is None


def test_the_largest_memory_of_all_places_has_to_fit_the_share_of_each() -> None:
    """6.6 GiB on FAST are its cap everywhere; a third of SMALL's 8 GiB is 2.6."""
    where = candidate(SMALL, on_share(SMALL, 33, 1.1)), candidate(FAST, on_share(FAST, 33, 1.1), gib=6.0)
    choice = taken(*where)
    assert choice is not None
    assert [one.candidate.name for one in choice.offers] == [FAST.name]


def test_what_a_job_needs_alone_is_told_by_its_need_on_a_share() -> None:
    """As long as no activity reaches 1 on the share."""
    on_share = offer(percent=75, value=1.1)
    alone, whole = need_alone(need_on(on_share)), on_share.candidate.need
    for name in ("step_time_s", "throughput_samples_per_s", "sm_activity", "dram_activity"):
        for end in ("value", "low", "high"):
            assert getattr(getattr(alone, name), end) == pytest.approx(getattr(getattr(whole, name), end), rel=0.05)
    assert (alone.share_percent, alone.slowdown.value) == (100, 1.0)
    assert need_alone(whole) is whole


@pytest.mark.parametrize(
    ("percent", "gpu", "words"),
    [
        (50, "v100", "half a v100"),
        (33, "h100", "a third of an h100"),
        (25, "rtx-3090", "a quarter of an rtx-3090"),
        (75, "t4", "three quarters of a t4"),
        (40, "A30", "40 % of an A30"),
        (50, "new-type", "half a new-type"),
    ],
)
def test_a_share_reads_as_people_say_it(percent: int, gpu: str, words: str) -> None:
    assert part_of(percent, gpu) == words


def test_a_cost_has_its_interval() -> None:
    assert cost(Interval(value=1.09, low=1.031, high=1.184)) == "9 % (3-18)"
    assert cost(Interval(value=float("inf"), low=1.0, high=float("inf"))) == "unknown % (0-unknown)"


def test_a_share_holds_the_memory_of_all_processes_that_a_container_may_start() -> None:
    """Four of 2 GiB are more than a quarter of the GPU, and one is not."""
    site, four = candidate(FAST, on_share(FAST, 25, 1.1), gib=6.0), replace(ONE, process_count=4)
    (alone,), (several,) = (tuple(offers([site], request, SharingRules())) for request in (ONE, four))
    assert (can_promise(alone, SITE), can_promise(several, SITE)) == (True, False)
    assert several.needed_bytes == 4 * alone.needed_bytes
    assert "with 4 processes in a container: write processes=1 if it has one" in trouble(several, SITE)
    walled = replace(site, pool=replace(site.pool, limited_by="wall"))
    (several,) = offers([walled], four, SharingRules())
    assert not can_promise(several, SITE)
