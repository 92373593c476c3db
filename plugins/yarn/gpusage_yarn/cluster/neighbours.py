"""Encoding a share's need in its plan, and parsing the needs of running shares that the ResourceManager shows.

A plan travels with its application, so whoever may see the ResourceManager's /jmx knows what a new share's neighbours
need, though they be other users' jobs, decided on other hosts. No model, user or application is named there.

Invariants:

1. What is said of a neighbour may have been written by its user: a line that cannot be believed is left out.
2. Who lies about a need keeps others off its node, and only while they have room elsewhere.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import cast

from gpusage_hooks.types import Decision, GpuNeed, Interval, Mode, Neighbour, Slo, Workload
from gpusage_hooks.units import WHOLE_PERCENT

_LINE_WORDS = 3
_MOST = 1e9
_UNKNOWN = Interval(value=0.0, low=0.0, high=0.0)


def describe_need(decision: Decision, workload: Workload | None) -> str:
    """Return the need and the promises of each container of *decision*, in small letters, digits and ``.,:=+-``.

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
        words["accept"] = f"{workload.slowdown:.4g}"
    if workload.slo is not None:
        words |= {"step": _format_interval(need.step_time_s), "batch": f"{workload.batch_size}"}
        words["latency"] = f"{workload.slo.latency_s:.4g}"
        if workload.slo.rate_per_s is not None:
            words["rate"] = f"{workload.slo.rate_per_s:.4g}"
    return ",".join(f"{word}={value}" for word, value in words.items())


def _format_interval(interval: Interval) -> str:
    """Return the expected figure and the high end; nobody decides by the low ends of neighbours."""
    return f"{interval.value:.4g}:{interval.high:.4g}"


def parse_neighbours(text: str) -> tuple[Neighbour, ...]:
    """Return the neighbours in *text*, a line ``NODE SHARE NEED`` each, as our processor shows them."""
    neighbours = []
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) == _LINE_WORDS:
            with suppress(ValueError, KeyError):  # a figure is none, out of its range, or missing
                neighbours.append(_parse_neighbour(*words))
    return tuple(neighbours)


def _parse_neighbour(node: str, share: str, need: str) -> Neighbour:
    """Return a neighbour.

    Raises:
        ValueError: A figure is none, or out of its range.
        KeyError: One is missing.
    """
    # A word without a value, or with two, is a ValueError, too.
    fields = dict(word.split("=") for word in need.split(","))
    gpu_need = GpuNeed(
        gpu="",
        step_time_s=_interval(fields.get("step", "0:0"), 0.0, _MOST),
        memory_bytes=_UNKNOWN,
        throughput_samples_per_s=_UNKNOWN,
        fits=True,
        share_percent=_parse_integer(fields["of"], WHOLE_PERCENT),
        slowdown=_interval(fields["slow"], 1.0, _MOST),
        gpu_utilization=_interval(fields["busy"], 0.0, 1.0),
        sm_activity=_interval(fields["sm"], 0.0, 1.0),
        dram_activity=_interval(fields["dram"], 0.0, 1.0),
    )

    if fields["mode"] not in ("train", "infer"):
        raise ValueError(fields["mode"])
    latency, rate, accepted = (fields.get(word) for word in ("latency", "rate", "accept"))
    slo = None
    if latency is not None:
        rate_per_s = _parse_number(rate, 0.0, _MOST) if rate else None
        slo = Slo(latency_s=_parse_number(latency, 0.0, _MOST), rate_per_s=rate_per_s)
    workload = Workload(
        mode=cast("Mode", fields["mode"]),
        batch_size=_parse_integer(fields.get("batch", "1"), int(_MOST)),
        slo=slo,
        slowdown=_parse_number(accepted, 1.0, _MOST) if accepted else None,
    )

    return Neighbour(
        nodes=(node,),
        share_percent=_parse_integer(share, WHOLE_PERCENT - 1),
        thread_percent=_parse_integer(fields["threads"], WHOLE_PERCENT),
        need=gpu_need,
        workload=workload,
    )


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
