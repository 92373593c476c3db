"""What holds a container to its share, as a client with the container's variables sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpusage.dividing.client import PIPE_VARIABLE, seen_with, whole_sm_count
from gpusage.dividing.granted import LIMIT_VARIABLE, NOT_READ_BACK, PERCENT_VARIABLE, limit_bytes, read_back
from gpusage_hooks.types import Granted
from gpusage_hooks.units import WHOLE_PERCENT


def granted_to(share_percent: int, environment: Mapping[str, str]) -> Granted:
    """Return what a container with a share of *share_percent* really has.

    Args:
        share_percent: As YARN booked it.
        environment: Of this process, in which the NodeManager set the container's own variables ``CUDA_*``; it has
            none of them where the container runs as another user, whose MPS daemon our client must not keep waiting.
    """
    if share_percent >= WHOLE_PERCENT:
        return Granted()
    limits = {name: value for name, value in environment.items() if name.startswith("CUDA_")}
    percent = limits.get(PERCENT_VARIABLE, "")
    given = Granted(
        division="percentage",
        share_percent=share_percent,
        thread_percent=int(percent) if percent.isdecimal() else None,
        memory_limit_bytes=limit_bytes(limits.get(LIMIT_VARIABLE)),
    )
    if PIPE_VARIABLE not in limits:
        return replace(given, trouble=NOT_READ_BACK)
    return read_back(given, seen_with(limits), whole_sm_count(limits))
