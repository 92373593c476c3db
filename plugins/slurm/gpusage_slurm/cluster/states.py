"""Slurm's JSON of a node: lists of words, which older releases join by commas or write with flags behind them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any


def words_of(value: object) -> tuple[str, ...]:
    """Return the words of a field: a text joined by commas in 22.05, a list from 23.02 on."""
    if isinstance(value, str):
        value = value.split(",")
    return tuple(str(word) for word in value if word) if isinstance(value, Iterable) else ()


def states_of(node: Mapping[str, Any]) -> set[str]:
    """Return a node's state and its flags, in capitals."""
    words = (*words_of(node.get("state")), *words_of(node.get("state_flags")))
    return {state for word in words for state in re.findall(r"\w+", word.upper())}
