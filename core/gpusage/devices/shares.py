"""A share of a GPU as a GPU of its own: the same one with fewer SMs.

An MPS thread percentage takes SMs away, and with them the arithmetic and, since each SM has only so many requests under
way, the bandwidth. The cache stays whole, and so does the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from gpusage.predictors.identity import Identity
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Gpu
from gpusage_hooks.units import WHOLE_PERCENT


def share_of(gpu: Gpu, percent: int) -> Gpu:
    """Return *percent* % of *gpu* as a GPU of the same name; the whole one is *gpu* itself.

    Args:
        gpu: A row of the catalogue.
        percent: The MPS active thread percentage, 1 to 100. A share of less than one SM counts as one.

    Raises:
        DeviceError: *percent* is not from 1 to 100.
    """
    if not 1 <= percent <= WHOLE_PERCENT:
        message = f"Share of {gpu.name} must be from 1 to 100 percent; got {percent}. Change it."
        raise DeviceError(message)
    return gpu if percent == WHOLE_PERCENT else part_of(gpu, percent / WHOLE_PERCENT)


def shares_of(gpu: Gpu, percents: Sequence[int]) -> tuple[Gpu, ...]:
    """Return the shares of *gpu*, made once for each question, so that predictors know them again.

    Raises:
        DeviceError: One of *percents* is not from 1 to 100.
    """
    return _shares(Identity(gpu), tuple(percents))


@lru_cache(maxsize=256)
def _shares(gpu: Identity[Gpu], percents: tuple[int, ...]) -> tuple[Gpu, ...]:
    return tuple(share_of(gpu.value, percent) for percent in percents)


def part_of(gpu: Gpu, part: float) -> Gpu:
    """Return *gpu* with *part*, 0 to 1, of its SMs, rates, bandwidth and watts."""
    return replace(
        gpu,
        sm_count=max(round(gpu.sm_count * part), 1),
        peak_flop_per_s=MappingProxyType({name: rate * part for name, rate in gpu.peak_flop_per_s.items()}),
        bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s * part,
        power_limit_w=gpu.power_limit_w * part,
    )
