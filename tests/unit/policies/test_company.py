"""What jobs on one GPU take of it together; the sums are in the comments."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.policies.partners.company import BROKEN_PROMISE, TOO_BUSY, trouble
from gpusage.predictors.intervals import exact_interval
from gpusage_hooks import samples
from gpusage_hooks.types import Interval, Neighbour, Rules, SharingRules, Slo, SloRules, Workload

GPU = samples.gpus()[0]
RULES = Rules()


def job(share: int = 50, *, dram: float = 0.1, sm: float = 0.2, threads: int = 0, **changes: object) -> Neighbour:
    """Return a training job alone on a share, where a step takes 10 ms and costs nothing."""
    need = replace(
        samples.need(GPU),
        share_percent=share,
        dram_activity=exact_interval(dram),
        sm_activity=exact_interval(sm),
        gpu_utilization=exact_interval(0.2),
        step_time_s=exact_interval(0.01),
    )
    plain = Neighbour(
        nodes=("n1",), share_percent=share, thread_percent=threads or share, need=need, workload=Workload()
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def serving(latency_s: float) -> Workload:
    return Workload(mode="infer", slo=Slo(latency_s=latency_s))


def test_nobody_is_hurt_by_nobody_nor_by_who_leaves_no_room() -> None:
    busy = job(75, dram=1.0)
    assert trouble(busy, [], RULES) == ""
    assert trouble(busy, [busy], RULES) == ""  # 75 and 75 % are never on one GPU


@pytest.mark.parametrize(
    ("dram", "expected"),
    [
        (0.5, ""),  # 0.7 + 0.5: steps take 1.2 times as long, and 1.25 is accepted
        (0.6, TOO_BUSY),  # 1.3
    ],
)
def test_what_all_need_of_the_memory_bandwidth_slows_all(dram: float, expected: str) -> None:
    assert trouble(job(dram=0.7), [job(dram=dram)], RULES) == expected
    assert trouble(job(dram=dram), [job(dram=0.7)], RULES) == expected


def test_either_side_may_accept_more_or_less() -> None:
    patient = Workload(slowdown=2.0)
    newcomer, there = job(dram=0.7), job(dram=0.6)
    assert trouble(replace(newcomer, workload=patient), [there], RULES) == TOO_BUSY
    assert trouble(replace(newcomer, workload=patient), [replace(there, workload=patient)], RULES) == ""


def test_a_share_that_is_dear_already_has_less_to_spare() -> None:
    """1.2 times as long beside a price of 1.1 is 1.32; and 1.45 at the pessimistic end becomes 1.74."""
    for slowdown in (Interval(value=1.1, low=1.0, high=1.1), Interval(value=1.0, low=1.0, high=1.45)):
        dear = job(dram=0.7)
        dear = replace(dear, need=replace(dear.need, slowdown=slowdown))
        assert trouble(dear, [job(dram=0.5)], RULES) == TOO_BUSY


def test_threads_are_short_only_where_jobs_may_use_more_than_their_shares() -> None:
    """Both keep all SMs busy that they may use: 50 % each, or 100 % each."""
    assert trouble(job(sm=1.0), [job(sm=1.0)], RULES) == ""
    assert trouble(job(sm=1.0, threads=100), [job(sm=1.0, threads=100)], RULES) == TOO_BUSY
    whole = job()
    whole = replace(whole, need=replace(whole.need, share_percent=100, sm_activity=exact_interval(0.9)))
    assert trouble(whole, [whole], RULES) == ""  # of the whole GPU it would use 0.9, and has half


def test_by_the_rule_utilization_the_gpu_has_no_more_than_all_of_its_time() -> None:
    busy = job()
    busy = replace(busy, need=replace(busy.need, gpu_utilization=exact_interval(0.51)))
    assert trouble(busy, [busy], RULES) == ""
    assert trouble(busy, [busy], Rules(sharing=SharingRules(rule="utilization"))) == TOO_BUSY


@pytest.mark.parametrize(("latency_s", "expected"), [(0.019, BROKEN_PROMISE), (0.021, "")])
def test_beside_training_a_promise_must_hold_with_a_step_of_twice_the_length(latency_s: float, expected: str) -> None:
    promised = job(25, workload=serving(latency_s))
    assert trouble(promised, [job()], RULES) == expected
    assert trouble(job(), [promised], RULES) == expected
    assert trouble(promised, [promised], RULES) == ""
    assert trouble(promised, [job()], Rules(slo=SloRules(enabled=False))) == ""


def test_a_promise_counts_the_high_end_of_what_is_short() -> None:
    """0.4 + 0.4 as expected; 0.8 + 0.8 at worst, so 10 ms may become 16."""
    answering = job(workload=serving(0.015))
    uncertain = replace(answering.need, dram_activity=Interval(value=0.4, low=0.1, high=0.8))
    answering = replace(answering, need=uncertain)
    assert trouble(answering, [answering], RULES) == BROKEN_PROMISE
    generous = replace(answering, workload=serving(0.017))
    assert trouble(generous, [generous], RULES) == ""


def test_of_many_jobs_the_worst_count_for_which_there_is_room() -> None:
    """Beside 50 %: one of 25 % with 0.5 and one with 0.4, which is 0.2 + 0.9; with the third it is no more."""
    third = [job(25, dram=dram) for dram in (0.4, 0.3, 0.5)]
    assert trouble(job(dram=0.2), third, RULES) == ""
    assert trouble(job(dram=0.4), third, RULES) == TOO_BUSY  # 1.3
