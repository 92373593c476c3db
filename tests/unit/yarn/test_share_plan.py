"""Plans as texts, which `Plan.java` reads; ``PlanTest.java`` reads the lines of ``plans.txt``, too."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from gpusage_yarn.share_plan import Plan, encode_texts, json_of, usable_labels

ROOT = Path(__file__).resolve().parents[3]
LINES = (ROOT / "plugins/yarn/java/src/test/resources/plans.txt").read_text(encoding="utf-8").splitlines()
ACCEPTED = [text for line in LINES for verdict, _, text in [line.partition(" ")] if verdict == "accepted"]
REFUSED = [json.loads(text) for line in LINES for verdict, _, text in [line.partition(" ")] if verdict == "refused"]
PLANS = (
    Plan(
        share=40,
        labels=("h100", "a100"),
        fallback_after_s=30,
        rescue=False,
        apart=True,
    ),
    Plan(share=1),
    # Each at its limit.
    Plan(
        share=100,
        threads=100,
        priority=1,
        labels=tuple(f"l-{number}_{'x' * 58}" for number in range(10, 26)),
        fallback_after_s=7 * 86400,
        containers=10_000,
        memory_mib=1 << 24,
        vcores=10_000,
    ),
)


def test_java_accepts_what_is_written_here() -> None:
    assert [json_of(plan.texts()) for plan in PLANS] == ACCEPTED


def test_all_labels_of_an_accepted_plan_are_usable() -> None:
    for plan in PLANS:
        assert usable_labels(plan.labels) == plan.labels


@pytest.mark.parametrize("texts", REFUSED, ids=lambda texts: json_of(texts)[:60])
def test_nothing_that_java_refuses_is_written_here(texts: dict[str, str]) -> None:
    assert ",".join(usable_labels(texts["labels"].split(","))) != texts["labels"]


def test_a_plan_has_the_texts_that_our_master_reads() -> None:
    plan = Plan(share=40, labels=("h100", "a100"), fallback_after_s=30, rescue=False)
    texts = json.loads(base64.b64decode(plan.encoded()))
    assert texts == {
        "v": "1",
        "share": "40",
        "threads": "0",
        "priority": "0",
        "labels": "h100,a100",
        "fallback_after_s": "30",
        "containers": "1",
        "memory_mib": "0",
        "vcores": "0",
        "rescue": "0",
        "apart": "0",
    }


def test_a_plan_travels_in_letters_that_bash_leaves_alone() -> None:
    assert set(Plan(share=100, labels=("a-b_c",)).encoded()) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
    )


def test_texts_are_one_flat_object() -> None:
    assert json.loads(base64.b64decode(encode_texts({"a": 'ü"$'}))) == {"a": 'ü"$'}


def test_only_labels_that_a_plan_can_name_are_taken_each_once() -> None:
    assert usable_labels(["b", "a", "b", "", "x y"]) == ("b", "a")
