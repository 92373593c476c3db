"""Slurm's short form of many names: ``gpu[01-03,07],login`` is gpu01, gpu02, gpu03, gpu07 and login.

A text is counted before it is expanded, so that a hostile one costs neither time nor memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, product

from gpusage_hooks.errors import RequestError

MOST_NAMES = 100_000
LONGEST_NAME = 255
_PARTS = re.compile(r"((?:[^,\[\]]|\[[^\[\]]*\])+)")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_NUMBERED = re.compile(r"(.*?)(\d{1,9})", re.DOTALL)
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

    # Text, bracket, text, bracket, ... of each part. A plain text is a range of one name.
    parts: list[list[str | list[_Range]]] = []
    count = longest = 0
    for part in map(str.strip, _PARTS.findall(text)):
        pieces = _BRACKETS.split(part)
        choices = [_ranges(piece, part) if place % 2 else piece for place, piece in enumerate(pieces)]
        names, length = 1, 0
        for choice in choices:
            if isinstance(choice, str):
                length += len(choice)
            else:
                names *= sum(last - first + 1 for first, last, _ in choice)
                length += max(max(digits, len(str(last))) for _, last, digits in choice)
        parts.append(choices)
        count, longest = count + names, max(longest, length)
    if count > MOST_NAMES or longest > LONGEST_NAME:
        rule = f"at most {MOST_NAMES}, and each at most {LONGEST_NAME} characters long"
        message = f"Names {text[:80]!r} must be {rule}; got {count}, up to {longest} characters. Divide them."
        raise RequestError(message)

    return tuple("".join(words) for choices in parts for words in product(*map(_words, choices)))


def compress_hostlist(names: Iterable[str]) -> str:
    """Return the hostlist of *names*, each once; numbers that follow one another are a range."""
    plain, numbers = [], dict[tuple[str, int], set[int]]()
    for name in dict.fromkeys(names):
        match = _NUMBERED.fullmatch(name)
        if match:
            numbers.setdefault((match[1], len(match[2])), set()).add(int(match[2]))
        else:
            plain.append(name)

    for (start, digits), group in numbers.items():
        # Of numbers that follow one another the difference to their places is the same.
        runs = [[*run] for _, run in groupby(enumerate(sorted(group)), lambda each: each[1] - each[0])]
        words = [f"{run[0][1]:0{digits}}" + f"-{run[-1][1]:0{digits}}" * (len(run) > 1) for run in runs]
        plain.append(f"{start}[{','.join(words)}]" if len(group) > 1 else start + words[0])
    return ",".join(plain)


def _ranges(bracket: str, part: str) -> list[_Range]:
    ranges = []
    for each in bracket.split(","):
        match = _RANGE.fullmatch(each.strip())
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < MOST_NAMES:
            rule = f"at most {MOST_NAMES} numbers, as 01-16 or 3"
            message = f"Names {part[:80]!r} must have in brackets {rule}; got {each[:40]!r}. Fix them."
            raise RequestError(message)
        ranges.append((int(first), int(last), len(first)))  # 01 has two digits, and so has what follows it
    return ranges


def _words(choice: str | list[_Range]) -> Iterator[str]:
    if isinstance(choice, str):
        return iter((choice,))
    return (f"{number:0{digits}}" for first, last, digits in choice for number in range(first, last + 1))
