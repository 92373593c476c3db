"""Dimensions as a file writes them: a number, a name, or a sum or product of both."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpusage.graphs.onnx.tensors import Size

_MAXIMUM_LENGTH = 200
"""Characters of a dimension; a longer one counts as one name."""
_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_.][\w.]*)|(//|[-+*/]))")


def evaluate(size: Size, symbols: Mapping[str, int]) -> int | None:
    """Return *size* as a number, or ``None`` where it holds a name that *symbols* lacks.

    A name that is written exactly so in *symbols* counts as one; else sums, differences, products and whole quotients
    are worked out.
    """
    if size is None or isinstance(size, int):
        return size
    if size in symbols:
        return symbols[size]
    tokens = _tokens(size)
    if tokens is None or len(tokens) % 2 == 0:
        return None
    return _sum(tokens, symbols)


def names(size: Size) -> tuple[str, ...]:
    """Return the names in *size*."""
    if not isinstance(size, str):
        return ()
    tokens = _tokens(size)
    if tokens is None:
        return (size,)
    return tuple(token for token in tokens if token[0].isalpha() or token[0] in "_.")


def _tokens(text: str) -> list[str] | None:
    tokens = []
    position = 0
    while position < len(text) <= _MAXIMUM_LENGTH:
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        tokens.append(match.group().strip())
        position = match.end()
    return tokens or None


def _sum(tokens: list[str], symbols: Mapping[str, int]) -> int | None:
    """Return the sum of products that *tokens*, numbers and names between signs, say."""
    total, sign = 0, 1
    product = _number(tokens[0], symbols)
    for operator, token in zip(tokens[1::2], tokens[2::2], strict=True):
        number = _number(token, symbols)
        if product is None or number is None:
            return None
        if operator == "*":
            product *= number
        elif operator in {"/", "//"}:
            if not number:
                return None
            product //= number
        elif operator in {"+", "-"}:
            total += sign * product
            sign, product = (1 if operator == "+" else -1), number
        else:
            return None
    return None if product is None else total + sign * product


def _number(token: str, symbols: Mapping[str, int]) -> int | None:
    return int(token) if token.isdigit() else symbols.get(token)
