"""The order in which users' jobs are handled, where handling one takes time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

_Job = TypeVar("_Job")


def round_robin_by_user(users: Mapping[_Job, str]) -> list[_Job]:
    """Return the jobs of *users*, a user by job, so that each user's first comes before anybody's second."""
    counts = Counter[str]()
    rounds = {}
    for job, user in users.items():
        counts[user] += 1
        rounds[job] = counts[user]
    return sorted(rounds, key=rounds.__getitem__)  # stable: within a round, the order of *users*
