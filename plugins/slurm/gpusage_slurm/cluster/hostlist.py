"""Slurm's short form of many names: ``gpu[01-03,07],login`` is gpu01, gpu02, gpu03, gpu07 and login.

A text is counted before it is expanded, so that a hostile one costs neither time nor memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, product
from math import prod

from gpusage_hooks.errors import RequestError

MOST_NAMES = 100_000
LONGEST_NAME = 255
_PARTS = re.compile(r"((?:[^,\[\]]|\[[^\[\]]*\])+)")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_Range = tuple[int, int, int]
"""First and last number, and the least digits."""


def expand_hostlist(text: str) -> tuple[str, ...]:
    """Return the names of the hostlist *text*, in its order.

    Raises:
        RequestError: A bracket has no partner, or holds no numbers or ranges of numbers; there are more than
            `MOST_NAMES` names, or one is longer than `LONGEST_NAME`.
    """
    if not {"[", "]"}.isdisjoint(_BRACKETS.sub("", text)):
        message = f"Names {text[:80]!r} must have a closing bracket for each opening one; got one alone. Fix them."
        raise RequestError(message)
    parts = [_choices(part.strip()) for part in _PARTS.findall(text)]
    count = sum(prod(map(_count, choices)) for choices in parts)
    longest = max((sum(map(_length, choices)) for choices in parts), default=0)
    if count > MOST_NAMES or longest > LONGEST_NAME:
        rule = f"at most {MOST_NAMES}, and each at most {LONGEST_NAME} characters long"
        message = f"Names {text[:80]!r} must be {rule}; got {count}, up to {longest} characters. Divide them."
        raise RequestError(message)
    return tuple(chain.from_iterable(map("".join, product(*map(_words, choices))) for choices in parts))


_Choice = str | list[_Range]


def _choices(part: str) -> list[_Choice]:
    """Return the pieces of *part*: plain texts and the ranges in brackets."""
    pieces = _BRACKETS.split(part)  # text, bracket, text, bracket, ...
    return [_ranges(piece, part) if place % 2 else piece for place, piece in enumerate(pieces)]


def _ranges(bracket: str, part: str) -> list[_Range]:
    ranges = []
    for each in bracket.split(","):
        match = _RANGE.fullmatch(each.strip())
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < MOST_NAMES:
            rule = f"at most {MOST_NAMES} numbers, as 01-16 or 3"
            message = f"Names {part[:80]!r} must have in brackets {rule}; got {each[:40]!r}. Fix them."
            raise RequestError(message)
        ranges.append((int(first), int(last), len(first)))
    return ranges


def _count(choice: _Choice) -> int:
    return 1 if isinstance(choice, str) else sum(last - first + 1 for first, last, _ in choice)


def _length(choice: _Choice) -> int:
    return len(choice) if isinstance(choice, str) else max(max(digits, len(str(last))) for _, last, digits in choice)


def _words(choice: _Choice) -> Iterator[str]:
    if isinstance(choice, str):
        return iter((choice,))
    return (f"{number:0{digits}}" for first, last, digits in choice for number in range(first, last + 1))
