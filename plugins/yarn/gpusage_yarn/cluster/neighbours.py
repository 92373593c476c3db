"""Encoding a share's need in its plan, and parsing the needs of running shares that the ResourceManager shows.

A plan travels with its application, so whoever may see the ResourceManager's /jmx knows what a new share's neighbours
need, though they be other users' jobs, decided on other hosts. No model, user or application is named there.

Invariants:

1. What is said of a neighbour may have been written by its user: a line that cannot be believed is left out.
2. Who lies about a need keeps others off its node, and only while they have room elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import cast

from gpusage_hooks.types import Decision, GpuNeed, Interval, Mode, Neighbour, Slo, Workload
from gpusage_hooks.units import WHOLE_PERCENT

_LINE_WORDS = 3
_MOST = 1e9
_UNKNOWN = Interval(value=0.0, low=0.0, high=0.0)


def describe_need(decision: Decision, workload: Workload | None) -> str:
    """Return what each container of *decision* needs and promises, in small letters, digits and ``.,:=+-``.

    It is empty where the decision gives no share, or nothing is predicted.
    """
    need, percent = decision.need, decision.request.mps_thread_percent
    if need is None or workload is None or not percent or percent >= WHOLE_PERCENT:
        return ""
    words = {
        "mode": workload.mode,
        "threads": f"{decision.request.thread_cap_percent or percent}",
        "of": f"{need.share_percent}",
        "sm": _format_interval(need.sm_activity),
        "dram": _format_interval(need.dram_activity),
        "busy": _format_interval(need.gpu_utilization),
        "slow": _format_interval(need.slowdown),
    }
    if workload.slowdown is not None:
        words["accept"] = _format_number(workload.slowdown)
    if workload.slo is not None:
        words |= {"step": _format_interval(need.step_time_s), "batch": f"{workload.batch_size}"}
        words["latency"] = _format_number(workload.slo.latency_s)
        if workload.slo.rate_per_s is not None:
            words["rate"] = _format_number(workload.slo.rate_per_s)
    return ",".join(f"{word}={value}" for word, value in words.items())


def parse_neighbours(text: str) -> tuple[Neighbour, ...]:
    """Return the neighbours in *text*, a line ``NODE SHARE NEED`` each, as our processor shows them."""
    return tuple(_neighbours(text))


def _neighbours(text: str) -> Iterator[Neighbour]:
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) == _LINE_WORDS:
            try:
                yield _neighbour(*words)
            except (ValueError, KeyError):
                continue


def _neighbour(node: str, share: str, need: str) -> Neighbour:
    """Return one neighbour.

    Raises:
        ValueError: A figure is none, or out of its range.
        KeyError: One is missing.
    """
    fields = dict(word.split("=") for word in need.split(","))
    share_percent, thread_percent = (
        _parse_integer(share, WHOLE_PERCENT - 1),
        _parse_integer(fields["threads"], WHOLE_PERCENT),
    )
    return Neighbour(
        nodes=(node,),
        share_percent=share_percent,
        thread_percent=thread_percent,
        need=_need(fields),
        workload=_workload(fields),
    )


def _need(fields: Mapping[str, str]) -> GpuNeed:
    return GpuNeed(
        gpu="",
        step_time_s=_interval(fields.get("step", "0:0"), 0.0, _MOST),
        memory_bytes=_UNKNOWN,
        throughput_samples_per_s=_UNKNOWN,
        fits=True,
        share_percent=_parse_integer(fields["of"], WHOLE_PERCENT),
        slowdown=_interval(fields["slow"], 1.0, _MOST),
        gpu_utilization=_activity(fields["busy"]),
        sm_activity=_activity(fields["sm"]),
        dram_activity=_activity(fields["dram"]),
    )


def _workload(fields: Mapping[str, str]) -> Workload:
    if fields["mode"] not in ("train", "infer"):
        raise ValueError(fields["mode"])
    latency, rate, accepted = (fields.get(word) for word in ("latency", "rate", "accept"))
    slo = None
    if latency is not None:
        slo = Slo(
            latency_s=_parse_number(latency, 0.0, _MOST), rate_per_s=_parse_number(rate, 0.0, _MOST) if rate else None
        )
    return Workload(
        mode=cast("Mode", fields["mode"]),
        batch_size=_parse_integer(fields.get("batch", "1"), int(_MOST)),
        slo=slo,
        slowdown=_parse_number(accepted, 1.0, _MOST) if accepted else None,
    )


def _format_interval(interval: Interval) -> str:
    """Return the expected figure and the high end; nobody decides by the low ends of neighbours."""
    return f"{_format_number(interval.value)}:{_format_number(interval.high)}"


def _format_number(figure: float) -> str:
    return f"{figure:.4g}"


def _activity(text: str) -> Interval:
    return _interval(text, 0.0, 1.0)


def _interval(text: str, least: float, most: float) -> Interval:
    value, high = (_parse_number(end, least, most) for end in text.split(":"))
    return Interval(value=value, low=value, high=max(value, high))


def _parse_number(text: str, least: float, most: float) -> float:
    figure = float(text)
    if not math.isfinite(figure) or not least <= figure <= most:
        raise ValueError(text)
    return figure


def _parse_integer(text: str, most: int) -> int:
    number = int(text)
    if not 1 <= number <= most:
        raise ValueError(text)
    return number
