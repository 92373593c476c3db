"""The order in which users' jobs are seen to, where that takes time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

_Job = TypeVar("_Job")


def in_turns(users: Mapping[_Job, str]) -> list[_Job]:
    """Return jobs, given with their users, so that each user's first comes before anybody's second."""
    turns: Counter[str] = Counter()
    ordered = []
    for job, user in users.items():
        turns[user] += 1
        ordered.append((turns[user], job))
    return [job for _, job in sorted(ordered, key=lambda pair: pair[0])]
