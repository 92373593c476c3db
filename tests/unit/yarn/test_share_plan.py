"""Plans as texts; what `Plan.java` takes and refuses is the same."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_yarn.share_plan import Plan, encode, encode_texts, parse_plan, usable_labels

GOOD = {"v": "1", "share": "40"}


def test_a_plan_comes_back_as_it_was() -> None:
    plan = Plan(share=40, identity="a_1", labels=("h100", "a100"), fallback_after_s=30, vcores=2)
    assert parse_plan(plan.encoded()) == plan
    for other in (replace(plan, rescue=False), replace(plan, need="mode=train,sm=0.1:1e-05", avoid=("a-1.b:45454",))):
        assert parse_plan(other.encoded()) == other


def test_a_plan_travels_in_letters_that_bash_leaves_alone() -> None:
    assert set(Plan(share=100, labels=("a-b_c",)).encoded()) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
    )


@pytest.mark.parametrize(
    "change",
    [
        {"v": "2"},
        {"share": "0"},
        {"share": "101"},
        {"share": "-1"},
        {"share": "1e9"},
        {"share": "NaN"},
        {"share": "٣"},
        {"labels": "a b"},
        {"labels": "a,,b"},
        {"labels": ",".join(f"l{number}" for number in range(17))},
        {"id": "a\nb"},
        {"containers": "0"},
        {"need": "a b"},
        {"avoid": "node"},
        {"avoid": ",".join(f"node:{number}" for number in range(65))},
    ],
    ids=str,
)
def test_what_is_out_of_range_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(RequestError, match=r"^Plan's \w+ must"):
        parse_plan(encode_texts({**GOOD, **change}))


@pytest.mark.parametrize("text", ["", "*", encode("[]"), encode("{"), encode('{"v": 1}'), "A" * 20_000], ids=range(6))
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"^Plan's (text|v) must"):
        parse_plan(text)


def test_a_refusal_can_be_printed() -> None:
    with pytest.raises(RequestError) as refusal:
        parse_plan(encode_texts({**GOOD, "labels": "\x1b[31m\n"}))
    assert str(refusal.value).isprintable()


def test_texts_are_one_flat_object() -> None:
    assert json.loads(base64.b64decode(encode_texts({"a": 'ü"$'}))) == {"a": 'ü"$'}


def test_only_labels_that_a_plan_can_name_are_taken_each_once() -> None:
    assert usable_labels(["b", "a", "b", "", "x y"]) == ("b", "a")
