"""Slurm's short form of many names: ``gpu[01-03,07],login`` is gpu01, gpu02, gpu03, gpu07 and login."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, islice, product

from gpusage_hooks.errors import RequestError

MOST_NAMES = 100_000
_PARTS = re.compile(r"((?:[^,\[\]]|\[[^\[\]]*\])+)")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def expand(text: str) -> tuple[str, ...]:
    """Return the names that *text* stands for, in its order.

    Raises:
        RequestError: A bracket holds no numbers or ranges of numbers, or there are more than `MOST_NAMES` names.
    """
    names = chain.from_iterable(_names(part.strip()) for part in _PARTS.findall(text))
    expanded = tuple(islice(names, MOST_NAMES + 1))
    if len(expanded) > MOST_NAMES:
        message = f"Names {text[:80]!r} must be at most {MOST_NAMES}; got more. Divide them."
        raise RequestError(message)
    return expanded


def _names(part: str) -> Iterator[str]:
    pieces = _BRACKETS.split(part)  # text, bracket, text, bracket, ...
    choices = [[*_numbers(piece, part)] if place % 2 else [piece] for place, piece in enumerate(pieces)]
    return map("".join, product(*choices))


def _numbers(bracket: str, part: str) -> Iterator[str]:
    for each in bracket.split(","):
        match = _RANGE.fullmatch(each.strip())
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < MOST_NAMES:
            rule = f"at most {MOST_NAMES} numbers, as 01-16 or 3"
            message = f"Names {part[:80]!r} must have in brackets {rule}; got {each[:40]!r}. Mend them."
            raise RequestError(message)
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}}"
