"""The report of a month: sums, prices, predictions, promises, the page."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from gpusage.reports.accuracy import count_promises, prediction_accuracy, runs_with_promise
from gpusage.reports.amounts import Rates, amounts_of, rates_of
from gpusage.reports.breakdown import ReportRules
from gpusage.reports.brief import brief
from gpusage.reports.lines import amount, sections
from gpusage.reports.page import page
from gpusage.reports.report import Period, Report, report_of
from gpusage.store.rows import Observation
from gpusage_hooks.types import Cluster, GpuPool, Interval, Price
from observed import DAY_S, HALF, NOW_S, month, record, usage

MONTH = [*month()]
PERIOD = Period(since_s=NOW_S - 30 * DAY_S, until_s=NOW_S)


def month_report(prices: dict[str, float] | None = None) -> Report:
    return report_of([each.decision for each in MONTH if each.decision], MONTH, Rates(per_hour=prices or {}), PERIOD)


def test_money_is_of_the_gpus_with_a_price_alone() -> None:
    assert month_report().money is None
    report = month_report({"v100-sxm2-16gb": 3.0})
    t4, v100 = report.gpus
    assert (t4.gpu, t4.money) == ("t4", None)
    assert v100.money is not None
    assert report.money is not None
    assert report.money.booked == v100.money.booked == pytest.approx(3.0 * v100.hours.booked)


def test_reasons_that_differ_in_their_numbers_are_one() -> None:
    records = [record(1, percent=25), record(2, percent=50)]
    (reason,) = report_of(records, [], Rates(), PERIOD).reasons
    assert (reason.reason, reason.count) == ("a share of N % costs N %", 2)


def test_names_of_gpus_and_models_stay_in_a_reason() -> None:
    text = "only 1.00x (0.34-2.94) on a100-sxm4-80gb, gres/mps:25, resnet50.onnx"
    first = record(1, percent=25)
    first = replace(first, decision=replace(first.decision, reasons=(text,)))
    (reason,) = report_of([first], [], Rates(), PERIOD).reasons
    assert reason.reason == "only Nx (N-N) on a100-sxm4-80gb, gres/mps:N, resnet50.onnx"


def test_predicted_is_compared_with_what_was_observed_on_the_gpu_that_it_was_predicted_for() -> None:
    unshared = record(1, percent=None)
    here, elsewhere = usage(unshared, gpu_utilization=0.3), usage(unshared, gpu="t4")
    memory, utilization = prediction_accuracy(
        [Observation(usage=each, decision=unshared) for each in (here, elsewhere)], 60.0
    )
    # 5 GiB of 4 predicted, inside 3 to 6; 0.3 of 0.6 predicted, outside 0.4 to 0.9
    assert (memory.figure, memory.ratio, memory.inside_count, memory.interval_count) == ("memory", 1.25, 1, 1)
    assert (utilization.figure, utilization.ratio, utilization.inside_count) == ("utilization", 0.5, 0)
    assert memory.run_count == utilization.run_count == 1


def test_a_share_that_starved_is_a_broken_promise_and_one_that_had_idle_time_a_kept_one() -> None:
    decided = record(1)
    starved = usage(decided, granted=HALF, outcome="out_of_memory")
    idle = usage(decided, granted=HALF, started_at_s=NOW_S - 100, ended_at_s=NOW_S)
    full = replace(idle, started_at_s=NOW_S - 200, gpu_utilization=0.99)
    runs = [Observation(usage=each, decision=decided) for each in (idle, full, starved)]
    honoured, withheld = count_promises(runs_with_promise(runs, 60.0))
    assert (honoured.fulfilled, honoured.broken, honoured.unknown) == (1, 1, 1)
    assert (withheld.fulfilled, withheld.broken, withheld.unknown) == (0, 0, 0)


def test_a_report_rests_on_the_runs_that_the_site_learns_from() -> None:
    """`learning.least_sampled_s` is one limit for both."""
    decided = record(1)
    short = Observation(usage=usage(decided, granted=HALF, outcome="out_of_memory", sampled_s=30.0), decision=decided)
    idle = Observation(usage=usage(decided, granted=HALF, sampled_s=30.0, alone_s=30.0), decision=decided)
    actual = [
        report_of([], [short, idle], Rates(), PERIOD, ReportRules(least_sampled_s=least_s)) for least_s in (20.0, 60.0)
    ]
    assert [(each.promises_enforced.fulfilled, each.promises_enforced.broken) for each in actual] == [(1, 1), (0, 1)]
    assert [len(each.trueness) for each in actual] == [1, 0]


def test_a_rescued_job_broke_one_promise_in_its_share_and_none_on_its_whole_gpu() -> None:
    """Rescue knows no figures of the run that starved, where its node has no sampler, but for its share."""
    decided = record(1)
    starved = usage(decided, granted=HALF, outcome="out_of_memory", sampled_s=0.0, alone_s=0.0, gpu_utilization=None)
    again = usage(decided, started_at_s=NOW_S - 100, ended_at_s=NOW_S)
    observations = [Observation(usage=each, decision=decided) for each in (again, starved)]
    honoured, withheld = count_promises(runs_with_promise(observations, 60.0))
    assert (honoured.fulfilled, honoured.broken, honoured.unknown) == (0, 1, 0)
    assert (withheld.fulfilled, withheld.broken, withheld.unknown) == (0, 0, 0)
    # two hours of a GPU on whose other half nobody was seen, lost
    assert amounts_of(observations[1]).freed == -2.0


def test_where_nothing_is_shared_the_report_counts_whom_a_share_would_have_been_enough_for() -> None:
    price = Price(gpu="v100-sxm2-16gb", share_percent=33, slowdown=Interval(value=1.04, low=1.0, high=1.3))
    whole = record(1, percent=None)
    would = replace(whole, decision=replace(whole.decision, if_shared=(price,)))
    (freed,) = (
        note for note in brief(report_of([would, whole], [], Rates(), PERIOD)).notes if note.startswith("Freed")
    )
    assert freed == "Freed: nothing yet; 1 job would have had a part if GPUs could be shared."


def test_a_time_without_anything_says_so_and_wastes_nothing() -> None:
    empty = report_of([], [], Rates(), PERIOD)
    notes = [note for section in sections(empty) for note in section.notes]
    assert notes[0].startswith("No run was observed")
    assert notes[1] == "No decision was recorded in this period."
    assert "<svg" not in page(empty)


def test_where_nothing_was_sampled_the_missing_accounting_is_named() -> None:
    empty = msgspec.structs.replace(report_of([], [], Rates(), PERIOD), unaccounted=("Slurm keeps no accounting.",))
    notes = [note for section in sections(empty) for note in section.notes]
    assert notes[1] == "Jobs that no node sampled are not counted: Slurm keeps no accounting."


def test_what_users_wrote_is_text_on_the_page() -> None:
    strange = usage(record(1, percent=None), job_name="<script>alert(1)</script>", gpu_utilization=0.1)
    report = report_of([], [Observation(usage=strange, decision=None)], Rates(), PERIOD)
    assert "<script" not in page(report)


def test_nothing_on_the_page_is_wider_than_a_telephone_unless_it_scrolls() -> None:
    text = page(month_report())
    assert "width=device-width" in text
    assert "<svg" not in text
    assert text.count("<table>") == len(re.findall("<div class='table(?: long)?'><table>", text)) > 0


def test_a_site_s_own_limit_of_sampling_holds_for_hours_verdicts_and_advice() -> None:
    """The run was sampled for half a minute."""
    (decided,) = [record(1)]
    short = usage(decided, sampled_s=30.0, alone_s=30.0, gpu_utilization=0.2)
    for least_s, idle in ((20.0, True), (60.0, False)):
        report = report_of(
            [], [Observation(usage=short, decision=decided)], Rates(), PERIOD, ReportRules(least_sampled_s=least_s)
        )
        assert (report.hours.idle > 0, [each.verdict for each in report.worst]) == (idle, ["waits"] if idle else [])


def test_where_the_site_names_no_price_hours_count_by_the_weights_that_it_bills_by() -> None:
    """Of two clusters the dearer weight; a GPU without one is named."""
    pool = GpuPool(gpu="v100-sxm2-16gb", site_type="v100", gpu_count=1, free_gpu_count=1, billing_weight=20.0)
    cheap, dear, strange = pool, replace(pool, billing_weight=40.0), replace(pool, gpu=None, billing_weight=9.0)
    clusters = [
        Cluster(manager="m", version="", pools=(dear, strange)),
        Cluster(manager="n", version="", pools=(cheap,)),
    ]
    rates = rates_of({}, clusters)
    assert rates == Rates(per_hour={"v100-sxm2-16gb": 40.0}, currency="weights")
    report = report_of([each.decision for each in MONTH if each.decision], MONTH, rates, PERIOD)
    assert (report.currency, report.money) == (
        "weights",
        next(each.hours for each in report.gpus if each.money).times(40),
    )
    (hours,) = (section for section in sections(report) if section.title == "GPU hours")
    assert hours.rows[-1][0] == "in weights"
    assert (
        "The row in weights is what the manager bills in the most expensive partition: [money] has no price."
        in hours.notes
    )
    assert "GPUs without a weight: t4 (6 runs)." in hours.notes
    assert rates_of({"t4": 1.0}, clusters) == Rates(per_hour={"t4": 1.0})


def test_a_loss_that_rounds_to_nothing_is_nothing() -> None:
    """`make demo` saved -0.00 GPU hours."""
    assert [amount(value) for value in (-0.001, 0.0, -0.4, 12345.6)] == ["0.00", "0.00", "-0.40", "12,346"]
