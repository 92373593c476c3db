"""Which questions share a verdict, and what a memo forgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from gpusage.service.decision_cache import PATTERNS_LIMIT, AccessRecordingMapping, DecisionCache, WeightedLruCache
from gpusage.service.protocol import DecisionRequest


def test_what_was_looked_at_is_remembered_in_whatever_way() -> None:
    """Present or not: that a field is absent may matter as well."""
    fields = AccessRecordingMapping({"a": "1", "b": "2", "c": "3"})
    assert fields["a"] == "1"
    assert fields.get("b") == "2"
    assert fields.get("x") is None
    assert "y" not in fields
    assert fields.fields_read() == {"a", "b", "x", "y"}


@pytest.mark.parametrize(
    "read", [dict, list, len, bool, lambda fields: fields == {"a": "1"}, lambda fields: [*fields.items()]]
)
def test_looking_at_everything_is_no_precedent(read: Callable[[Mapping[str, str]], object]) -> None:
    """A plugin that copies the fields may have used any of them."""
    fields = AccessRecordingMapping({"a": "1"})
    read(fields)
    assert fields.fields_read() is None


def request(**fields: str) -> DecisionRequest:
    """Return a question."""
    return DecisionRequest(manager="slurm", fields=fields)


def test_a_verdict_holds_for_questions_that_agree_in_what_was_looked_at() -> None:
    """The name is not among it, the absent `z` is."""
    decision_cache: DecisionCache[str] = DecisionCache()
    decision_cache.add(request(a="1", name="x"), frozenset({"a", "z"}), "verdict")
    assert decision_cache.find(request(a="1", name="y")) == "verdict"
    assert decision_cache.find(request(a="2", name="x")) is None
    assert decision_cache.find(request(a="1", z="")) is None
    assert decision_cache.find(DecisionRequest(manager="yarn", fields={"a": "1"})) is None


def test_a_verdict_that_looked_at_everything_is_not_kept() -> None:
    """It holds for its own question alone."""
    decision_cache: DecisionCache[str] = DecisionCache()
    decision_cache.add(request(a="1"), None, "verdict")
    assert decision_cache.find(request(a="1")) is None


def test_the_ways_of_looking_are_bounded() -> None:
    """A plugin that looks at something else each time costs no time."""
    decision_cache: DecisionCache[int] = DecisionCache()
    for number in range(PATTERNS_LIMIT + 5):
        decision_cache.add(request(a="1"), frozenset({f"field{number}"}), number)
    assert len(decision_cache._patterns["slurm"]) == PATTERNS_LIMIT


def test_a_memo_forgets_what_was_not_asked_for_longest() -> None:
    """Weights 1 + 1 + 1 against a limit of 2."""
    memo: WeightedLruCache[str, int] = WeightedLruCache(2)
    memo.put("a", 1)
    memo.put("b", 2)
    assert memo.get("a") == 1
    memo.put("c", 3)
    assert [memo.get(key) for key in "abc"] == [1, None, 3]


def test_a_memo_never_weighs_more_than_its_limit() -> None:
    """Something too heavy is not kept, and something put again counts once."""
    memo: WeightedLruCache[str, int] = WeightedLruCache(10)
    memo.put("a", 1, weight=11)
    assert memo.get("a") is None
    for _ in range(5):
        memo.put("b", 2, weight=4)
    memo.put("c", 3, weight=6)
    assert (memo.get("b"), memo.get("c"), len(memo)) == (2, 3, 2)
    memo.put("d", 4, weight=10)
    assert (memo.get("d"), len(memo)) == (4, 1)
