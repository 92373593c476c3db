"""A deadline: the cheapest GPU type with room that meets it, and no share where that is not sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from tests.unit.policies.test_stages import H100, P100, V100, need, pool

from gpusage.policies.preference import UNKNOWN_LENGTH, decide_deadline, decide_generation
from gpusage.policies.share_price import Limits, Offer, can_promise, trouble
from gpusage.policies.sharing import decide_sharing
from gpusage_hooks.types import (
    Candidate,
    Cluster,
    Code,
    Decision,
    GpuRequest,
    Interval,
    MoneyRules,
    PolicyInput,
    Price,
    Rules,
    Workload,
)

STEP_S = {"p100": 0.4, "v100": 0.2, "h100": 0.1}
STEPS = 10_000  # 4000 s, 2000 s and 1000 s


def candidate(name: str, *, free: int = 1, spread: float = 0.0) -> Candidate:
    gpu = {"p100": P100, "v100": V100, "h100": H100}[name]
    return Candidate(
        pool=replace(pool(gpu), free_gpu_count=free), gpu=gpu, need=need(gpu, step_s=STEP_S[name], spread=spread)
    )


def make_input(
    candidates: Sequence[Candidate],
    deadline_s: int | None,
    *,
    steps: int | None = STEPS,
    prices: Mapping[str, float] = {},
) -> PolicyInput:
    return PolicyInput(
        request=GpuRequest(gpu_count=1, deadline_s=deadline_s),
        workload=Workload(steps=steps),
        candidates=tuple(candidates),
        cluster=Cluster(manager="slurm", version="24.11", pools=tuple(each.pool for each in candidates)),
        rules=Rules(money=MoneyRules(price_per_hour=prices)),
    )


def preferred(of: PolicyInput) -> tuple[str, ...] | None:
    decision = decide_deadline(of, draft(of))
    return decision.request.preferred_gpus if decision else None


def draft(of: PolicyInput) -> Decision:
    return Decision(code=Code.KEEP, request=of.request, reasons=(), plugin="test")


ALL = [candidate("p100"), candidate("v100"), candidate("h100")]
PRICES = {P100.name: 1.0, V100.name: 1.5, H100.name: 10.0}
"""A run costs 1.11, 0.83 and 2.78."""


@pytest.mark.parametrize(
    ("deadline_s", "prices", "expected"),
    [
        (5000, PRICES, ("v100",)),  # all are in time, and the V100 is the cheapest
        (1500, PRICES, ("h100",)),  # only the H100 is in time
        (5000, {**PRICES, V100.name: 9.0}, ("p100",)),
        (500, PRICES, ("h100",)),  # none is: the fastest
        (
            5000,
            {f"NVIDIA {name.upper()}": cost for name, cost in PRICES.items()},
            ("v100",),
        ),  # as `predict` reads
        (3000, {}, ("v100",)),  # without prices the slowest that is in time
        (5000, {}, None),  # all are in time, and none has a price
        (None, PRICES, None),
    ],
)
def test_the_cheapest_type_that_meets_the_deadline_is_preferred(
    deadline_s: int | None, prices: Mapping[str, float], expected: tuple[str, ...] | None
) -> None:
    assert preferred(make_input(ALL, deadline_s, prices=prices)) == expected


def test_a_type_without_room_is_passed_over_and_where_none_has_room_all_in_time_are_preferred() -> None:
    full = candidate("v100", free=0)
    assert preferred(make_input([candidate("p100"), full, candidate("h100")], 5000, prices=PRICES)) == ("p100",)
    none = [candidate(name, free=0) for name in ("p100", "v100", "h100")]
    assert preferred(make_input(none, 3000, prices=PRICES)) == ("v100", "h100")


def test_the_pessimistic_end_of_the_run_counts() -> None:
    doubtful = candidate("v100", spread=0.3)  # 2000 s, up to 2600
    assert preferred(make_input([candidate("p100"), doubtful, candidate("h100")], 2500, prices=PRICES)) == ("h100",)


def test_a_type_that_the_user_named_stays() -> None:
    of = make_input(ALL, 1500, prices=PRICES)
    assert preferred(replace(of, request=replace(of.request, gpu_type="p100"))) is None


def test_the_generation_leaves_what_the_deadline_prefers() -> None:
    of = make_input(ALL, 3000)
    decision = decide_deadline(of, draft(of))
    assert decision is not None
    assert decide_generation(of, decision) is None
    assert "v100 is the slowest with room now that ends it by its deadline" in decision.reasons


@pytest.mark.parametrize(("times_its_worst", "expected"), [(None, True), (1.01, True), (0.99, False)])
def test_a_share_has_to_end_in_time_at_its_pessimistic_end(times_its_worst: float | None, *, expected: bool) -> None:
    slowdown = Interval(value=1.1, low=1.0, high=1.15)
    offer = Offer(
        candidate=candidate("v100"),
        request=GpuRequest(gpu_count=1),
        price=Price(gpu=V100.name, share_percent=50, slowdown=slowdown),
    )
    latest = None if times_its_worst is None else offer.step_time_s.high * times_its_worst
    within = Limits(expected=9, worst=9, latest_step_s=latest)
    assert can_promise(offer, within) is expected
    assert trouble(offer, within) == ("" if expected else "might end after its deadline beside partners")


def test_a_job_with_a_deadline_and_no_known_length_keeps_its_gpu() -> None:
    of = make_input(ALL, 3000, steps=None)
    decision = decide_sharing(of, draft(of))
    assert decision is not None
    assert decision.reasons == (f"a whole GPU is kept: {UNKNOWN_LENGTH}",)
