"""What was learned, in the words of a decision's reason."""

from __future__ import annotations

from gpusage.learning.findings import Experience, Finding, Place
from gpusage_hooks.units import WHOLE_PERCENT, gib


def counted(count: int, whose: str) -> str:
    """Return how many runs a figure rests on: ``12 earlier runs``, ``1 earlier run``."""
    return f"{count} {whose if count > 1 else whose.replace('runs', 'run', 1)}"


def said(finding: Finding, gpu: str) -> str:
    """Return what *finding* says of a job on *gpu*, one clause; empty where it says nothing of it."""
    if finding.experience is not None:
        return _experienced(finding.experience, finding.whose, gpu)
    if finding.habit is None:
        return ""
    ratio = finding.habit.ratio
    times = f"{ratio.value:.2f} times ({ratio.low:.2f}-{ratio.high:.2f}) as busy as predicted"
    return f"{finding.habit.job_count} other jobs of this kind were {times}"


def _experienced(experience: Experience, whose: str, gpu: str) -> str:
    places = [place for place in experience.utilization if place[0] == gpu] or [*experience.utilization]
    if places:
        return _busy(experience, max(places, key=lambda place: (place[1], experience.utilization_runs[place])), whose)
    if experience.memory_bytes is None:
        return ""
    memory = experience.memory_bytes
    return f"{counted(experience.run_count, whose)} needed {gib(memory.value)} (up to {gib(memory.high)})"


def _busy(experience: Experience, place: Place, whose: str) -> str:
    utilization, count = experience.utilization[place], experience.utilization_runs[place]
    gpu, percent = place
    ends = f"{100 * utilization.low:.0f}-{100 * utilization.high:.0f}"
    where = gpu if percent == WHOLE_PERCENT else f"{percent} % of {gpu}"
    verb = "were" if count > 1 else "was"
    return f"{counted(count, whose)} {verb} busy {100 * utilization.value:.0f} % ({ends}) of the time on {where}"
