"""Plans as texts, which `Plan.java` reads."""

from __future__ import annotations

import base64
import json

from gpusage_yarn.share_plan import Plan, encode_texts, usable_labels


def test_a_plan_has_the_texts_that_our_master_reads() -> None:
    plan = Plan(share=40, labels=("h100", "a100"), fallback_after_s=30, rescue=False, avoid=("a-1.b:45454", "b:1"))
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
        "need": "",
        "avoid": "a-1.b:45454,b:1",
    }


def test_a_plan_travels_in_letters_that_bash_leaves_alone() -> None:
    assert set(Plan(share=100, labels=("a-b_c",)).encoded()) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
    )


def test_texts_are_one_flat_object() -> None:
    assert json.loads(base64.b64decode(encode_texts({"a": 'ü"$'}))) == {"a": 'ü"$'}


def test_only_labels_that_a_plan_can_name_are_taken_each_once() -> None:
    assert usable_labels(["b", "a", "b", "", "x y"]) == ("b", "a")
