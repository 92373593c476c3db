"""Expressions of sizes in saved programs: worked out, or refused; never run."""

import contextlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.graphs.torch.size_expressions import ExpressionError, evaluate_size, symbols_in


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s0", 3),
        ("2*s0 + 1", 7),
        ("Symbol('s0', positive=True, integer=True)", 3),
        ("Mul(Integer(64), Symbol('s0', positive=True, integer=True))", 192),
        ("Add(Integer(-1), Pow(Symbol('s0'), Integer(2)))", 8),
        ("FloorDiv(Symbol('s0'), Integer(2))", 1),
        ("CeilDiv(s0, 2)", 2),
        ("Max(s0, 5)", 5),
        ("-s0 % 2", 1),
    ],
)
def test_an_expression_has_the_value_that_its_symbols_give(text: str, expected: int) -> None:
    assert evaluate_size(text, {"s0": 3}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s1",
        "__import__('os').system('true')",
        "s0.real",
        "[s0][0]",
        "9**9**9",
        "Pow(s0, 1000000)",
        "FloorDiv(s0, 0)",
        "Pow(s0)",
        "1" * 4000,
        "(" * 3000,
        "-" * 3000 + "1",
    ],
)
def test_what_is_no_small_expression_of_known_symbols_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate_size(text, {"s0": 3})


def test_symbols_are_found_in_both_ways_of_writing() -> None:
    assert symbols_in("Mul(Integer(4), Symbol('s77', integer=True)) + s2") == {"s77", "s2"}


@given(st.text(alphabet=string.ascii_letters + string.digits + "()+-*/%,'. _", max_size=60))
def test_any_text_has_a_value_or_is_refused(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        assert isinstance(evaluate_size(text, {"s0": 3}), int)
