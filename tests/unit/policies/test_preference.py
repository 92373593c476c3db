"""Which generation a job prefers among the recent jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.policies.test_stages import H100, V100, need, pool

from gpusage.policies.preference import LEAST_JOBS, decide_generation, gives_way, least_rank, preferred_among_jobs
from gpusage_hooks.types import (
    Candidate,
    Cluster,
    Code,
    Decision,
    GenerationRules,
    GpuRequest,
    PolicyInput,
    Rules,
    Workload,
)

RECENT_SPEEDUPS = [{"v100": gain, "h100": 1.0} for gain in (1.1, 1.2, 1.3, 1.5, 1.8, 2.0, 2.5, 3.0)]


def candidates(gain: float, *, free: int = 1, old_free: int = 1) -> list[Candidate]:
    """Return four V100 and four H100, of which so many are free, for a job that runs *gain* times as fast on these."""
    old = replace(pool(V100), free_gpu_count=old_free)
    new = replace(pool(H100), free_gpu_count=free)
    return [
        Candidate(pool=old, gpu=V100, need=need(V100, step_s=0.1 * gain)),
        Candidate(pool=new, gpu=H100, need=need(H100, step_s=0.1)),
    ]


def names(where: list[Candidate], speedups: list[Mapping[str, float]] = RECENT_SPEEDUPS) -> list[str]:  # type: ignore[assignment]
    return [candidate.name for candidate in preferred_among_jobs(where, speedups)]


@pytest.mark.parametrize(
    ("gain", "free", "expected"),
    [
        (1.15, 1, "v100"),  # one of eight gains less, and for the last of four H100 a quarter has to
        (1.4, 1, "h100"),  # three of eight do
        (1.15, 4, "h100"),  # all are free: a sixteenth is enough
        (1.05, 4, "v100"),  # nobody gains less
    ],
)
def test_a_job_leaves_a_scarce_gpu_to_those_that_gain_more(gain: float, free: int, expected: str) -> None:
    assert names(candidates(gain, free=free)) == [expected]


def test_the_rank_that_is_asked_for_is_half_of_the_slower_gpus_part_for_the_last_fast_one() -> None:
    assert least_rank(1, 4, 4) == pytest.approx(0.5 * 4 / 8)
    assert least_rank(4, 4, 12) == pytest.approx(0.5 * 12 / 16 * 1 / 4)


@pytest.mark.parametrize(("free", "old_free"), [(0, 1), (1, 0), (0, 0)])
def test_where_only_one_generation_has_room_nobody_gives_way(free: int, old_free: int) -> None:
    assert names(candidates(1.15, free=free, old_free=old_free)) == []


def test_few_rivals_and_rivals_that_do_not_fit_on_both_tell_nothing() -> None:
    assert names(candidates(1.15), RECENT_SPEEDUPS[: LEAST_JOBS - 1]) == []
    assert names(candidates(1.15), [{"h100": 1.0}] * 64) == []


def test_a_type_that_cannot_be_asked_for_is_no_choice() -> None:
    old, new = candidates(1.15)
    assert names([replace(old, pool=replace(old.pool, feature=None)), new]) == []


def make_input(gain: float, rules: GenerationRules = GenerationRules()) -> PolicyInput:
    where = tuple(candidates(gain))
    cluster = Cluster(
        manager="slurm",
        version="24.11",
        pools=tuple(candidate.pool for candidate in where),
        recent_jobs=tuple(RECENT_SPEEDUPS),
    )
    return PolicyInput(
        request=GpuRequest(gpu_count=1),
        workload=Workload(),
        candidates=where,
        cluster=cluster,
        rules=Rules(generation=rules),
    )


def decided(of: PolicyInput) -> Decision | None:
    return decide_generation(of, Decision(code=Code.KEEP, request=of.request, reasons=(), plugin="test"))


@pytest.mark.parametrize(
    ("gain", "by_recent_jobs", "expected", "reason"),
    [
        (1.15, True, "v100", "1.15x on h100, which is left to recent jobs that gain more"),
        (1.4, True, "h100", "1.40x (1.40-1.40) on h100, enough compared with recent jobs"),
        (1.24, True, "h100", "1.24x (1.24-1.24) on h100, enough compared with recent jobs"),
        (1.24, False, "v100", "only 1.24x (1.24-1.24) on h100, which is left to jobs that gain more"),
    ],
)
def test_the_decision_says_what_the_job_gains_beside_others(
    gain: float, *, by_recent_jobs: bool, expected: str, reason: str
) -> None:
    decision = decided(make_input(gain, GenerationRules(by_recent_jobs=by_recent_jobs)))
    assert decision is not None
    assert decision.request.preferred_gpus == (expected,)
    assert decision.reasons == (reason,)


def test_of_jobs_that_gain_alike_half_count_as_gaining_less() -> None:
    """The mid-rank of one of four equal jobs is 0.5: neither all of them give way for one, nor none for all."""
    alike = [1.5] * 4
    assert [gives_way(1.5, alike, least) for least in (0.49, 0.5, 0.51)] == [False, False, True]
    assert [gives_way(1.5, [1.2, 1.5, 2.0, 3.0], least) for least in (0.375, 0.376)] == [False, True]  # (1 + 1/2) / 4


GAINS = st.floats(min_value=0.5, max_value=8)


@given(st.lists(GAINS, min_size=1), GAINS, GAINS, st.integers(1, 9), st.integers(0, 9), st.integers(1, 9))
def test_who_gains_more_never_gives_way_where_one_that_gains_less_would_not(
    gains: list[float], one: float, other: float, free: int, busy: int, slower: int
) -> None:
    least = least_rank(free, free + busy, slower)
    assert 0 <= least <= 0.5
    assert gives_way(max(one, other), gains, least) <= gives_way(min(one, other), gains, least)


@given(st.lists(GAINS, min_size=1), GAINS, st.integers(1, 8), st.integers(1, 9))
def test_the_more_fast_gpus_are_free_the_less_a_job_gives_way(
    gains: list[float], gain: float, free: int, slower: int
) -> None:
    assert gives_way(gain, gains, least_rank(free + 1, 9, slower)) <= gives_way(
        gain, gains, least_rank(free, 9, slower)
    )


@pytest.mark.parametrize("gain", [1.0, 1.1])
def test_the_like_of_the_best_gpu_is_not_worth_a_preference(gain: float) -> None:
    """Of two kinds of nodes with one GPU, one has its feature."""
    of = make_input(gain)
    named = replace(of.candidates[0], pool=replace(of.candidates[0].pool, site_type="named"))
    bare = replace(named, pool=replace(named.pool, site_type="bare", feature=None))
    assert decided(replace(of, candidates=(named, bare))) is None
    assert decided(replace(of, candidates=(named, bare, of.candidates[1]))) is not None
