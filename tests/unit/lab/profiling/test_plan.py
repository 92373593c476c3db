from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpusage_lab.profiling import suites
from gpusage_lab.profiling.items import KINDS, Item, ProfiledJob, Side
from gpusage_lab.profiling.plan import Costs, duration_s, estimate_s, is_too_large, pending, schedule
from gpusage_lab.profiling.suites import job

COSTS = Costs(start_s=8, build_s=2, warm_s=1, ends_s=0.5)


def solo(text: str, *, tier: int = 0, seconds: float = 2.0) -> Item:
    return Item(kind="solo", sides=(Side(job=job(text)),), tier=tier, seconds=seconds)


def row(item: Item, status: str = "ok", step_time_s: str = "0.1") -> dict[str, Any]:
    workload = item.sides[0].job.workload
    request = {"model": item.sides[0].job.model, "batch_size": str(workload.batch_size), "shape": ""}
    how = {"mode": workload.mode, "precision": workload.precision, "step_time_s": step_time_s}
    return {"item": item.key, "kind": item.kind, "status": status} | request | how


def ladder(*batches: int) -> list[Item]:
    return [solo(f"timm:vit,batch={batch}") for batch in batches]


def test_what_the_table_has_is_not_measured_again() -> None:
    small, large = ladder(1, 8)
    assert pending([small, large], [row(small)]) == [large]


def test_a_failure_is_tried_again_only_where_that_is_asked_for() -> None:
    (item,) = ladder(1)
    assert pending([item], [row(item, "failed")]) == []
    assert pending([item], [row(item, "failed")], retry=True) == [item]
    assert pending([item], [row(item, "failed"), row(item)], retry=True) == []


def test_what_did_not_fit_is_not_tried_again() -> None:
    (item,) = ladder(8)
    assert pending([item], [row(item, "oom")], retry=True) == []


def test_a_ladder_ends_where_a_batch_did_not_fit() -> None:
    small, middle, large = ladder(1, 8, 32)
    assert pending([small, middle, large], [row(middle, "oom")]) == [small]


def test_a_ladder_ends_above_a_slow_batch() -> None:
    small, middle, large = ladder(1, 8, 32)
    assert pending([small, middle, large], [row(middle, step_time_s="1.5")]) == [small]


def test_a_job_that_does_not_fit_alone_is_not_tried_with_others() -> None:
    first, second = ladder(1, 8)
    pair = Item(kind="pair", sides=(*first.sides, *second.sides))
    assert is_too_large(pair, [row(second, "oom")])
    assert not is_too_large(pair, [row(second)])


def test_another_precision_or_shape_is_another_ladder() -> None:
    other = solo("timm:vit,batch=8,precision=bf16")
    longer = solo("timm:vit,batch=8,shape=input=3x384x384")
    failed = row(ladder(8)[0], "oom")
    assert not is_too_large(other, [failed])
    assert not is_too_large(longer, [failed])


def test_worth_comes_first_then_the_kind_then_the_model_and_batches_climb() -> None:
    late = solo("timm:a,batch=1", tier=1)
    pair = Item(kind="pair", sides=solo("timm:a").sides * 2)
    items = [late, pair, solo("timm:b,batch=8"), solo("timm:a,batch=8"), solo("timm:b,batch=1")]
    expected = [items[3], items[4], items[2], pair, late]
    assert pending(items, []) == expected


def test_only_some_kinds_are_left() -> None:
    actual = {item.kind for item in pending(suites.tiny(), [], only=("solo", "pair"))}
    assert actual == {"solo", "pair"}


def test_a_kept_worker_saves_its_start_and_a_kept_model_its_build() -> None:
    first, second = ladder(1, 8)
    took, slots = estimate_s(first, (), COSTS)
    assert took == 2 + 0.5 + 1 + 8 + 2
    took, slots = estimate_s(second, slots, COSTS)
    assert took == 2 + 0.5 + 1
    took, slots = estimate_s(solo("timm:other"), slots, COSTS)
    assert took == 2 + 0.5 + 1 + 2


def test_a_worker_is_started_anew_for_another_thread_percentage() -> None:
    (item,) = ladder(1)
    half, whole = (
        Item(kind="share", sides=(replace(item.sides[0], percent=percent),), seconds=2) for percent in (50, 100)
    )
    _, slots = estimate_s(half, (), COSTS)
    assert estimate_s(whole, slots, COSTS)[0] == 2 + 0.5 + 1 + 8 + 2
    on_cpu = replace(COSTS, has_environments=False)
    _, slots = estimate_s(half, (), on_cpu)
    assert estimate_s(whole, slots, on_cpu)[0] == 2 + 0.5 + 1


def test_a_budget_leaves_out_what_does_not_fit_and_fills_the_rest() -> None:
    short, long, last = solo("timm:a"), solo("timm:b", seconds=100), solo("timm:c")
    # the first: 2 + 0.5 + 1 + 8 + 2 = 13.5; the last with another model: 2 + 0.5 + 1 + 2 = 5.5
    assert list(schedule([short, long, last], COSTS, 20)) == [(short, 13.5), (last, 19.0)]
    assert [item for item, _ in schedule([short, long, last], COSTS)] == [short, long, last]


@pytest.mark.parametrize(("text", "expected"), [("1500", 1500), ("1500s", 1500), ("25m", 1500), ("1h", 3600)])
def test_a_budget_is_read_as_people_write_it(text: str, expected: float) -> None:
    assert duration_s(text) == expected


@pytest.mark.parametrize("text", ["", "s", "0s", "-5", "1d", "nan", "soon"])
def test_another_text_is_no_budget(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the command says what is wrong
        duration_s(text)


def test_every_item_of_a_suite_has_a_key_of_its_own() -> None:
    for suite in (suites.session(), suites.tiny()):
        keys = [item.key for item in suite]
        assert len(set(keys)) == len(keys)


def test_the_session_suite_holds_what_the_plan_for_a_gpu_asks_for() -> None:
    items = suites.session()
    count = {kind: sum(item.kind == kind for item in items) for kind in KINDS}
    models = {item.sides[0].job.model for item in items if item.kind == "solo"}
    assert len(models) >= 40
    assert count["pair"] == 16 * 17 // 2  # all pairs of 16, each beside itself too
    assert {side.percent for item in items for side in item.sides} >= {None, 25, 50, 75, 100}


def test_half_an_hour_sees_every_model_alone_and_every_partner() -> None:
    planned = {item.key for item, _ in schedule(pending(suites.session(), []), Costs(), 1500)}
    first = [item for item in suites.session() if item.tier == 0]
    assert planned.issuperset(item.key for item in first)


def test_a_label_says_how_the_job_is_run() -> None:
    text = "hf:gpt2,batch=4,mode=train,precision=bf16,optimizer=adamw,shape=seq=512"
    assert job(text).label == text
    assert ProfiledJob(model="timm:a", workload=job("timm:a").workload, stall_ratio=0.5).label.endswith(",stall=0.5")
