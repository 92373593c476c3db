"""A burst of jobs between two looks at the cluster: no more are bound to a GPU type than it has room for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.daemon.conftest import Daemon

ROOM = 8
"""Quarters on two free H100."""


def burst(daemon: Daemon, count: int = 20) -> list[dict[str, Any]]:
    """Return the answers to *count* like questions, asked at once."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(daemon.ask, [daemon.question()] * count))


def bound(answers: list[dict[str, Any]]) -> int:
    """Return how many of the jobs are bound to the H100."""
    return sum(answer.get("set.features") == "h100" for answer in answers)


def test_a_burst_binds_no_more_jobs_than_there_is_room_for(idle: Daemon) -> None:
    """All twenty were bound before; the other twelve are told why they keep their GPU. The next look counts anew."""
    idle.behave(free=2)
    idle.start()
    answers = burst(idle)
    assert bound(answers) == ROOM, answers
    unchanged = [answer for answer in answers if answer["code"] == "KEEP"]
    assert len(unchanged) == 20 - ROOM
    assert all(answer["message"].endswith("and h100 has no room now") for answer in unchanged), unchanged
    idle.wait(lambda: bound([idle.ask()]))


def test_what_is_not_carried_out_takes_no_room(idle: Daemon) -> None:
    """In the mode `advise` each of the jobs keeps its GPU, and is told what it could have."""
    idle.configure(mode="advise")
    idle.behave(free=2)
    idle.start()
    assert all("constraint h100" in answer["message"] for answer in burst(idle))


def test_a_ruling_that_binds_nothing_is_remembered_as_ever(idle: Daemon) -> None:
    """Where no H100 is free the twenty get one ruling, worked out once or, at a look in between, twice."""
    idle.behave(free=0)
    idle.start()
    assert bound([idle.ask() for _ in range(20)]) == 0
    assert idle.status()["lines"]["remembered"] >= 10
