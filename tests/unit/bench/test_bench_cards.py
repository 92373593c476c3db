"""`bench/cards.py`: which models it takes, and what it says of them; that it can make cards is the readers' tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "bench" / "cards.py"
    spec = importlib.util.spec_from_file_location("bench_cards", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def card_costs(bench: Any, count: int, busy_s: float) -> list[Any]:  # a script, not a module of ours
    return [bench.CardCost(f"model{place}", busy_s, 2 * busy_s, 800, "") for place in range(count)]


def test_a_sample_has_small_middling_and_large_models_at_equal_distances(bench: Any) -> None:
    sizes = {f"model{size:03}": size for size in reversed(range(90))}
    # Three thirds of 30 models each, the middle one of each third.
    assert bench.sample(sizes, 3) == ["model015", "model045", "model075"]
    assert bench.sample(sizes, 1000) == sorted(sizes)


@pytest.mark.parametrize(
    ("count", "busy_s", "expected"),
    [
        # 1000 x 1.2 s / 2 processes = 600 s.
        pytest.param(
            60, 1.2, "extrapolated from 60 to 1000 models, 2 processes of one thread: 10.0 minutes", id="sample"
        ),
        pytest.param(2000, 2.5, "scaled down from 2000 to 1000 models, 2 processes of one thread: 20.8 min", id="all"),
    ],
)
def test_the_verdict_is_by_what_1000_models_take_of_the_processor_and_says_that_it_was_scaled(
    bench: Any,
    count: int,
    busy_s: float,
    expected: str,
) -> None:
    last = list(bench.lines(card_costs(bench, count, busy_s), 2, 100.0))[-1]
    assert last.startswith(expected)
    assert last.endswith("goal 20: kept" if busy_s * 1000 / 2 <= 20 * 60 else "goal 20: missed")


def test_a_model_without_a_card_is_told_with_its_reason(bench: Any) -> None:
    refused = bench.CardCost("odd", 1.0, 1.0, 0, "Card of model 'odd' must be at most 4096 bytes; got 9000.")
    assert "no card: Card of model 'odd' must be at most 4096 bytes; got 9000." in bench.lines([refused], 2, 1.0)
