"""The one line that a user sees: request before and after, the prediction, the reasons."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gpusage.boundary.printable_text import one_line, shortened
from gpusage.policies.share_price import cost, part_of
from gpusage_hooks.types import Code, Decision, GpuNeed, Interval, RenderedDecision
from gpusage_hooks.units import GIB, WHOLE_PERCENT

MAXIMUM_LENGTH = 500
_MEMORY_AND_FORM = re.compile(r"-(?:sxm|pcie|nvl)[0-9]*(?:-[0-9]+gb)?")


def explain(decision: Decision, rendered: RenderedDecision, assumed: Sequence[str] = ()) -> str:
    """Return *decision* as one line of at most 500 characters; empty where the job is not ours.

    Args:
        decision: What was decided.
        rendered: The same in the manager's words.
        assumed: What the user left out, for example ``batch=1``; said where anything was predicted from it.
    """
    if decision.code is Code.DECLINE:
        return ""
    is_rewritten = decision.code is Code.REWRITE
    change = describe_change(rendered.before, rendered.after) if is_rewritten else f"{rendered.before} kept"
    need = [*_assumptions(assumed), describe_need(decision.need)] if decision.need else []
    line = " | ".join([change, *need, "; ".join(decision.reasons)])
    return shortened(one_line(line), MAXIMUM_LENGTH)


def describe_change(before: str, after: str) -> str:
    """Return how a request is rewritten; one that stays, and gets a preference or a condition, is kept."""
    added = after.removeprefix(f"{before}, ")
    return f"{before} -> {after}" if added == after else f"{before} kept, {added}"


def _assumptions(assumed: Sequence[str]) -> list[str]:
    return [f"assumed {', '.join(assumed)}"] if assumed else []


def describe_need(need: GpuNeed) -> str:
    """Return what is predicted on one GPU, or on a share of it with what that costs, each figure with its interval."""
    if need.share_percent < WHOLE_PERCENT:
        part = part_of(need.share_percent, _MEMORY_AND_FORM.sub("", need.gpu))
        booked = replace(need.required_bytes, high=need.share_memory_bytes)
        return f"{part} costs {cost(need.slowdown)} | {_figure(booked, scale=1 / GIB, digits=1, unit='GiB')}"
    if need.source == "history":
        busy = _figure(need.gpu_utilization, scale=100, digits=0, unit="%")
        return f"on {need.gpu}: busy {busy}, {_figure(need.memory_bytes, scale=1 / GIB, digits=1, unit='GiB')}"
    activity = _figure(need.sm_activity, scale=100, digits=0, unit="%")
    memory = _figure(need.required_bytes, scale=1 / GIB, digits=1, unit="GiB")
    return f"on {need.gpu}: SM activity {activity}, {memory}"


def _figure(interval: Interval, *, scale: float, digits: int, unit: str) -> str:
    low, high = interval.low * scale, interval.high * scale
    return f"{interval.value * scale:.{digits}f} {unit} ({low:.{digits}f}-{high:.{digits}f})"
