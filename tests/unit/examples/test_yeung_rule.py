"""The rule ``utilization``, in its turn among the policies; what is known of utilizations is made up here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.policies import sharing
from gpusage.predictors.intervals import exact_interval
from gpusage_hooks import samples
from gpusage_hooks.types import Decision, Figure, Interval, ObservedFigures, PolicyInput, Rules, SharingRules, Workload
from gpusage_hooks.units import MIB

PACKED = SharingRules(rule="utilization")
SOURCE = "12 earlier runs"


def known_case(
    *utilizations: Interval | None, memory_gib: float = 1.0, rules: SharingRules = PACKED, **changes: object
) -> PolicyInput:
    """Return a case with as many of the sample GPUs, on which the job had these utilizations alone."""
    case = samples.case(memory_gib=memory_gib)
    places = tuple(
        replace(place, known=ObservedFigures(gpu_utilization=Figure(interval=each, source=SOURCE) if each else None))
        for place, each in zip(case.places, utilizations, strict=False)
    )
    cluster = replace(case.cluster, pools=tuple(place.pool for place in places))
    return replace(case, places=places, cluster=cluster, rules=Rules(sharing=rules), **changes)  # type: ignore[arg-type]


def decided(case: PolicyInput) -> Decision:
    decision = sharing.decide_sharing(case, samples.draft(case))
    assert decision is not None
    return decision


def reason(case: PolicyInput) -> str:
    decision = decided(case)
    assert decision.request == case.request
    return decision.reasons[-1].removeprefix("a whole GPU is kept: ")


def test_a_share_is_as_large_as_the_utilization_that_is_known_with_all_of_the_threads() -> None:
    request = decided(known_case(exact_interval(0.6), exact_interval(0.6))).request
    assert (request.gpu_count, request.mps_thread_percent, request.thread_cap_percent) == (0, 60, 100)
    assert request.memory_cap_bytes == 4688 * MIB  # 60 % of the smaller GPU: 8192 MiB less 256 and 122


def test_the_pessimistic_end_counts_on_the_gpu_that_is_busiest() -> None:
    decision = decided(known_case(exact_interval(0.3), Interval(value=0.4, low=0.3, high=0.45)))
    assert decision.request.mps_thread_percent == 45
    assert f"45 % by {SOURCE}" in decision.reasons[0]


@pytest.mark.parametrize(("most", "least"), [(1, 51), (2, 34), (3, 26), (4, 21)])
def test_no_more_jobs_fit_on_a_gpu_than_the_site_allows(most: int, least: int) -> None:
    """One more than *most* shares must be above 100 %."""
    request = decided(known_case(exact_interval(0.05), rules=replace(PACKED, maximum_packed=most))).request
    assert request.mps_thread_percent == least
    assert (most + 1) * least > 100


def test_memory_counts_too() -> None:
    """The old GPU has 16 GiB, less 501 MiB: 8.8 GiB of them are a little more than 56 %."""
    assert decided(known_case(exact_interval(0.3), memory_gib=8.0)).request.mps_thread_percent == 57


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (known_case(exact_interval(0.6), None), "its GPU utilization is not known on sample-small"),
        (known_case(exact_interval(0.85)), f"it keeps a sample-old busy for 85 % of the time, by {SOURCE}"),
        (known_case(exact_interval(0.3), memory_gib=14.0), "its memory may take up to 100 % of a sample-old"),
        (known_case(exact_interval(0.3), workload=Workload(slowdown=1.0)), "no slowdown is accepted"),
        (known_case(), "no GPU that it may use can be shared"),
    ],
)
def test_a_whole_gpu_is_kept_with_its_reason(case: PolicyInput, expected: str) -> None:
    assert reason(case).startswith(expected)
