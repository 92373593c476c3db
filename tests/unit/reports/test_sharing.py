"""What a share would have cost a run on a whole GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.reports.breakdown import ReportRules, break_down, with_freed
from gpusage.reports.sharing import PossibleShare, count_possible_shares, possible_share
from gpusage.store.rows import Observation
from gpusage_hooks.types import Allocation, Gpu, Interval, Price, SharingRules
from observed import GIB, HALF, record, usage
from records import USAGE

UNMARKED = usage(record(1, percent=None), gpu_count=1, gpu_utilization=0.1, peak_utilization=0.2, memory_bytes=2 * GIB)
RULES = SharingRules()


def find_gpu(name: str) -> Gpu:
    return builtin_catalogue().find(name)


def share_of(**changes: object) -> PossibleShare | None:
    """Return the share that a run without a decision could have had, a light one but for *changes*."""
    run = replace(UNMARKED, **changes)  # type: ignore[arg-type]
    return possible_share(Observation(usage=run, decision=None), RULES, find_gpu)


def test_a_light_run_could_have_had_the_smallest_share_at_the_price_of_its_busiest_minute() -> None:
    # A kernel in 20 % of the minute takes 80 % of it on a quarter: alone (0.8**8 + 1)**(1/8) = 1.02 times as long.
    share = share_of()
    assert share is not None
    assert share.share_percent == 25
    assert 1.02 < share.slowdown <= RULES.maximum_slowdown


def test_a_share_above_half_is_possible_only_beside_the_smallest_that_the_site_has_as_a_decision_has_it() -> None:
    """A run that takes 9 of 16 GiB needs three quarters."""
    run = Observation(usage=replace(UNMARKED, memory_bytes=9 * GIB), decision=None)

    def percent(smallest: dict[str, int]) -> int | None:
        share = possible_share(run, RULES, find_gpu, 60.0, smallest)
        return share.share_percent if share else None

    assert [percent(smallest) for smallest in ({}, {"": 25}, {"": 50, UNMARKED.gpu: 25})] == [75, 75, 75]
    assert [percent(smallest) for smallest in ({"": 50}, {"": 100}, {"": 100, "t4": 25})] == [None, None, None]
    # "v100" is what the site calls its type.
    assert percent({"": 100, "v100": 25}) == 75
    run = replace(run, usage=replace(run.usage, gpu="v100-sxm2-32gb", memory_bytes=18 * GIB))
    assert percent({"": 100, "v100": 25}) == 75
    assert percent({"": 100, "a100": 25}) is None
    light = Observation(usage=UNMARKED, decision=None)
    assert possible_share(light, RULES, find_gpu, 60.0, {"": 100}) == share_of()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"peak_utilization": 0.95}, id="busy in its busiest minute"),
        pytest.param({"peak_utilization": None}, id="nobody knows its busiest minute"),
        pytest.param({"memory_bytes": 15 * GIB}, id="needs the memory"),
        pytest.param({"memory_bytes": None}, id="nobody knows its memory"),
        pytest.param({"alone_s": 100.0}, id="beside others"),
        pytest.param({"sampled_s": 30.0, "alone_s": 30.0}, id="hardly sampled"),
        pytest.param({"gpu_count": 2}, id="on two GPUs"),
        pytest.param({"granted": HALF}, id="had a share"),
        pytest.param({"granted": Allocation(division="slice")}, id="on a slice"),
        pytest.param({"outcome": "failed"}, id="did not come to its end"),
        pytest.param({"gpu": "k80"}, id="MPS does not hold a client to its share there"),
    ],
)
def test_what_could_not_have_shared_as_far_as_anybody_knows(changes: dict[str, object]) -> None:
    assert share_of(**changes) is None


def test_a_job_that_asked_for_several_gpus_could_not_have_shared() -> None:
    several = record(1, percent=None)
    request = replace(several.decision.request, gpu_count=2)
    several = replace(several, decision=replace(several.decision, request=request))
    assert possible_share(Observation(usage=UNMARKED, decision=several), RULES, find_gpu) is None


def test_a_gpu_of_no_catalogue_has_no_price() -> None:
    assert possible_share(Observation(usage=UNMARKED, decision=None), RULES, lambda _: None) is None


def test_who_accepts_no_slowdown_could_not_have_shared() -> None:
    decided = record(1, percent=None)
    decided = replace(
        decided, decision=replace(decided.decision, request=replace(decided.decision.request, gpu_count=1))
    )
    assert decided.workload is not None
    never = replace(decided, workload=replace(decided.workload, slowdown=1.0))
    assert possible_share(Observation(usage=UNMARKED, decision=decided), RULES, find_gpu) is not None
    assert possible_share(Observation(usage=UNMARKED, decision=never), RULES, find_gpu) is None


def test_a_share_that_was_decided_and_not_given_has_the_price_of_its_decision() -> None:
    advised = record(1, mode="advise", percent=50)
    observed = Observation(usage=usage(advised), decision=advised)
    assert possible_share(observed, RULES, lambda _: None) == PossibleShare(
        share_percent=50, slowdown=1.25, worst_slowdown=1.5
    )


def test_shares_are_added_up_by_job_with_the_least_and_the_highest_price() -> None:
    advised = record(1, mode="advise", percent=50)
    again = usage(advised, started_at_s=1.0, ended_at_s=3601.0)
    light = Observation(usage=replace(UNMARKED, job_id="other"), decision=None)
    runs = [Observation(usage=each, decision=advised) for each in (usage(advised), again)]
    rules = ReportRules(sharing=RULES, find_gpu=find_gpu)
    actual = with_freed(break_down([*runs, light], rules)).all_jobs.possible
    share = share_of()
    assert actual is not None
    assert share is not None
    assert actual.job_count == 2
    # The light run stands beside the first for as long as that takes; the other run, years before, beside nobody.
    assert actual.freed_hours == pytest.approx(2.0 - 2.0 * 0.25 - 1.0 * 0.25)
    assert actual.most_freed_hours == actual.freed_hours
    assert (actual.slowdown_low, actual.slowdown_high) == (share.slowdown, 1.25)
    assert count_possible_shares([]) is None


def test_a_managers_own_figures_show_a_share_where_no_node_sampled() -> None:
    unsampled = {"sampled_s": 0.0, "alone_s": 0.0, "gpu_utilization": None}
    assert share_of(**unsampled) == share_of()
    assert share_of(**unsampled, peak_utilization=None) is None


def test_a_share_that_would_be_enough_if_it_could_be_had_has_its_decisions_price() -> None:
    whole = record(1, percent=None)
    price = Price(gpu=USAGE.gpu, share_percent=33, slowdown=Interval(value=1.04, low=1.0, high=1.3))
    whole = replace(whole, decision=replace(whole.decision, if_shared=(replace(price, gpu="h100"), price)))
    run = usage(whole, gpu_count=1)
    expected = PossibleShare(share_percent=33, slowdown=1.04, worst_slowdown=1.3)
    assert possible_share(Observation(usage=run, decision=whole), RULES, lambda _: None) == expected
    assert possible_share(Observation(usage=replace(run, gpu="t4"), decision=whole), RULES, lambda _: None) is None
