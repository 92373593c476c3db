"""What nodes saw and what the accounting has: every run once, and nothing that nobody saw is idle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.reports.amounts import Amounts, amounts_of, total
from gpusage.reports.jobs import with_accounting
from gpusage.store.rows import Observation
from gpusage_hooks.types import DecisionRecord, GpuRequest, Usage
from observed import HALF, HOUR_S, record, usage

WHOLE = record(1, percent=None)
SEEN = usage(WHOLE, number="", gpu_count=2, account="", partition="")
BOOKS = Usage(
    number="",
    manager=SEEN.manager,
    job_id=SEEN.job_id,
    user=SEEN.user,
    account="physics",
    partition="gpu",
    gpu="v100-sxm2-16gb",
    gpu_count=2,
    started_at_s=SEEN.started_at_s - 1,
    ended_at_s=SEEN.ended_at_s,
)


def nobody(_: str) -> DecisionRecord | None:
    return None


def joined(seen: list[Usage], accounted: list[Usage]) -> tuple[Observation, ...]:
    return with_accounting([Observation(usage=each, decision=None) for each in seen], accounted, nobody)


def test_a_run_that_both_know_is_one_with_the_figures_of_its_node_and_the_account_of_the_books() -> None:
    (only,) = joined([SEEN], [BOOKS])
    assert only.usage == replace(SEEN, account="physics", partition="gpu")


def test_a_job_that_no_node_sampled_is_not_seen() -> None:
    (only,) = joined([], [BOOKS])
    assert amounts_of(only).unseen == amounts_of(only).booked == 2 * (2 * HOUR_S + 1) / HOUR_S


def test_what_the_accounting_does_not_have_stays() -> None:
    assert [each.usage for each in joined([SEEN], [replace(BOOKS, job_id="other")])] == [
        SEEN,
        replace(BOOKS, job_id="other"),
    ]


def test_the_gpus_of_nodes_without_a_sampler_are_not_seen() -> None:
    runs = joined([SEEN], [replace(BOOKS, gpu_count=8, started_at_s=SEEN.started_at_s)])
    assert total(map(amounts_of, runs)) == Amounts(
        requested=16.0, booked=16.0, used=2.0, idle=2.0, unseen=12.0, held=16.0
    )


def test_an_older_samplers_run_has_as_many_gpus_as_the_accounting_says() -> None:
    (only,) = joined([replace(SEEN, gpu_count=None)], [BOOKS])
    assert only.usage.gpu_count == 2


def test_a_requeued_job_has_each_run_once() -> None:
    again = {"started_at_s": SEEN.ended_at_s, "ended_at_s": SEEN.ended_at_s + HOUR_S}
    runs = joined([replace(SEEN, **again), SEEN], [BOOKS, replace(BOOKS, **again)])  # type: ignore[arg-type]
    assert [each.usage.started_at_s for each in runs] == [SEEN.ended_at_s, SEEN.started_at_s]
    assert {each.usage.sampled_s for each in runs} == {SEEN.sampled_s}


def test_a_requeued_jobs_second_run_is_its_own_where_the_clock_of_its_node_is_behind() -> None:
    """Its start is nearer to that of the first run, which was short."""
    first = replace(BOOKS, ended_at_s=BOOKS.started_at_s + 250.0)
    second = replace(BOOKS, started_at_s=first.ended_at_s + 121.0, ended_at_s=first.ended_at_s + 721.0)
    behind = replace(SEEN, started_at_s=second.started_at_s - 200.0, ended_at_s=second.ended_at_s - 200.0)
    runs = joined([behind], [first, second])
    assert total(map(amounts_of, runs)).booked == pytest.approx(2 * 850.0 / HOUR_S)


def test_a_share_that_no_node_sampled_has_its_decision_and_a_forged_number_has_none() -> None:
    decided = record(1)
    share = replace(BOOKS, number=decided.number, granted=HALF, gpu_count=1)
    records = {decided.number: decided}
    own, forged = with_accounting([], [share, replace(share, job_id="7", user="eve")], records.get)
    assert (own.decision, forged.decision) == (decided, None)
    assert amounts_of(own).freed < 0.0  # nobody was seen beside it, and it took longer


def test_a_marked_job_of_two_nodes_is_as_busy_as_each_of_them_was() -> None:
    """Eight GPUs were decided, four on each node; the second node did nothing."""
    decided = replace(WHOLE, decision=replace(WHOLE.decision, request=GpuRequest(gpu_count=8)))
    busy = usage(decided, gpu_count=4, gpu_utilization=1.0)
    idle = replace(busy, started_at_s=busy.started_at_s + 0.2, gpu_utilization=0.0)
    amounts = total(amounts_of(Observation(usage=each, decision=decided)) for each in (busy, idle))
    assert amounts.booked == pytest.approx(16.0, abs=0.01)
    assert amounts.used == pytest.approx(8.0, abs=0.01)
    assert amounts.idle == pytest.approx(8.0, abs=0.01)
    books = replace(BOOKS, number=decided.number, gpu_count=8, started_at_s=busy.started_at_s)
    half_seen = with_accounting([Observation(usage=busy, decision=decided)], [books], nobody)
    assert total(map(amounts_of, half_seen)) == Amounts(requested=16.0, booked=16.0, used=8.0, unseen=8.0, held=16.0)
