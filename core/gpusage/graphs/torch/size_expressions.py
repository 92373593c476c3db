"""Evaluates sizes that a saved program has as expressions: ``Mul(Integer(64), Symbol('s77'))``, or ``64*s77``.

The text is from an untrusted file: it is parsed and walked, never executed, and every number has a limit.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce

MAXIMUM_TEXT = 4000
"""Characters of one expression."""
MAXIMUM_NUMBER = 2**62
_MAXIMUM_EXPONENT = 8
_TOO_LARGE = "a figure beyond 2^62"

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.FloorDiv: "FloorDiv",
    ast.Div: "FloorDiv",
    ast.Mod: "Mod",
    ast.Pow: "Pow",
}


class ExpressionError(ValueError):
    """A text is not an expression of sizes."""


def evaluate_size(text: str, symbols: Mapping[str, int]) -> int:
    """Return the value of the expression *text*; *symbols* has the value of each symbol.

    Raises:
        ExpressionError: It is none, a symbol has no value, or a figure is too large.
    """
    try:
        return _value(parse_expression(text), symbols)
    except RecursionError as error:
        raise ExpressionError(text[:40]) from error


def symbols_in(text: str) -> frozenset[str]:
    """Return the names of the symbols in the expression *text*.

    Raises:
        ExpressionError: It is none.
    """
    return frozenset(name for node in ast.walk(parse_expression(text)) if (name := _symbol(node)) is not None)


@lru_cache(maxsize=1024)
def parse_expression(text: str) -> ast.expr:
    """Return the syntax tree of *text*.

    Raises:
        ExpressionError: It is no expression, or too long.
    """
    if len(text) > MAXIMUM_TEXT:
        raise ExpressionError(text[:40])

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(text[:40]) from error


def _symbol(node: ast.AST) -> str | None:
    """Return the symbol that *node* is: ``s77``, or ``Symbol('s77', ...)`` as sympy's srepr has it; else ``None``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Symbol" and node.args:
        name = node.args[0]
        return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
    if isinstance(node, ast.Name) and node.id not in _FUNCTIONS and node.id not in {"Symbol", "Integer"}:
        return node.id
    return None


def _value(node: ast.expr, symbols: Mapping[str, int]) -> int:
    name = _symbol(node)
    if name is not None:
        if name not in symbols:
            raise ExpressionError(name)
        return _bounded(symbols[name])
    # bool is an int in Python, but no size.
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, symbols)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _applied(_BINARY[type(node.op)], [_value(node.left, symbols), _value(node.right, symbols)])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _applied(node.func.id, [_value(argument, symbols) for argument in node.args])
    raise ExpressionError(ast.dump(node)[:40])


def _applied(name: str, numbers: Sequence[int]) -> int:
    if name not in _FUNCTIONS or not numbers:
        raise ExpressionError(name)
    try:
        return _bounded(_FUNCTIONS[name](numbers))
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ExpressionError(name) from error


def _bounded(number: int) -> int:
    if abs(number) > MAXIMUM_NUMBER:
        raise ExpressionError(_TOO_LARGE)
    return number


def _power(numbers: Sequence[int]) -> int:
    base, exponent = numbers
    if not 0 <= exponent <= _MAXIMUM_EXPONENT:
        raise ArithmeticError
    return int(base**exponent)


def _reduced(function: Callable[[int, int], int]) -> Callable[[Sequence[int]], int]:
    return lambda numbers: reduce(function, numbers)


_FUNCTIONS: dict[str, Callable[[Sequence[int]], int]] = {
    "Add": _reduced(operator.add),
    "CeilDiv": _reduced(lambda one, other: -(-one // other)),
    "CleanDiv": _reduced(operator.floordiv),
    "FloorDiv": _reduced(operator.floordiv),
    "Integer": lambda numbers: numbers[0],
    "Max": max,
    "Min": min,
    "Mod": _reduced(operator.mod),
    "Mul": _reduced(operator.mul),
    "Pow": _power,
    "PythonMod": _reduced(operator.mod),
    "Sub": _reduced(operator.sub),
}
