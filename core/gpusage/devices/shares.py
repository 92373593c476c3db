"""A share of a GPU as a GPU of its own, the same one with fewer SMs, and the part of the memory that the share may use.

An MPS thread percentage takes SMs away, and with them the arithmetic. The cache stays whole, and so does the clock. The
memory is there for all: a share has its part of the bandwidth beside partners who use it as much, and all of it alone,
as far as its SMs can draw it.

Invariants of the memory cap:

1. Shares that add up to 100 % at most fit together: their caps are rounded down, and the reserve is left.
2. A cap follows from the GPU and the percentage alone; no prediction makes it smaller.

A node counts the same in whole MiB with the memory that NVML shows there, as `gpusage-mps` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from gpusage.caches import Identity
from gpusage.devices.catalogue import part_of
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Gpu
from gpusage_hooks.units import MIB, WHOLE_PERCENT

RESERVE_MIB = 256
"""Memory of the MPS server, and of the driver on a small GPU.

Assumption: public listings of nvidia-smi show 25 to 30 MiB for the server; its clients' contexts count in their caps.
"""
RESERVE_PER_THOUSAND = 15
"""The driver's part of the memory, in addition.

Source: NVML's total against what CUDA can give out (the catalogue): 549 of 81,559 MiB on an H100, 516 of 24,576 on an
A30, 441 of 23,028 on an A10G.
"""

THREAD_LIMITS = (7, 0)
"""The first compute capability whose MPS holds a client to its thread percentage: Volta.

Source: NVIDIA, Multi-Process Service, "Volta MPS Execution Resource Provisioning".
"""


def has_thread_limits(gpu: Gpu) -> bool:
    """Return whether MPS on *gpu*, one of Nvidia's, holds a client to its thread percentage."""
    return gpu.compute_capability >= THREAD_LIMITS


def memory_cap_bytes(memory_bytes: float, share_percent: int) -> int:
    """Return the memory that a share may use, in bytes: a whole number of MiB, 0 on a very small GPU.

    Args:
        memory_bytes: Of the whole GPU.
        share_percent: 1 to 100.
    """
    # In whole MiB and in this order, because a node's shell and Java round in the same places.
    memory_mib = int(memory_bytes // MIB)
    usable_mib = max(memory_mib - RESERVE_MIB - memory_mib * RESERVE_PER_THOUSAND // 1000, 0)
    return usable_mib * share_percent // WHOLE_PERCENT * MIB


def share_of(gpu: Gpu, percent: int) -> Gpu:
    """Return *percent* % of *gpu* as a GPU of the same name; 100 % is *gpu* itself.

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
    """Return the shares of *gpu*, the same objects for the same arguments: predictors cache by identity.

    Raises:
        DeviceError: One of *percents* is not from 1 to 100.
    """
    return _shares(Identity(gpu), tuple(percents))


def shares_alone_of(gpu: Gpu, percents: Sequence[int]) -> tuple[Gpu, ...]:
    """Return what `shares_of` does as each is while no partner uses the memory.

    Raises:
        DeviceError: One of *percents* is not from 1 to 100.
    """
    return _shares_alone(Identity(gpu), tuple(percents))


@lru_cache(maxsize=256)
def _shares(gpu: Identity[Gpu], percents: tuple[int, ...]) -> tuple[Gpu, ...]:
    return tuple(share_of(gpu.value, percent) for percent in percents)


@lru_cache(maxsize=256)
def _shares_alone(gpu: Identity[Gpu], percents: tuple[int, ...]) -> tuple[Gpu, ...]:
    return tuple(alone_on(share, gpu.value) for share in shares_of(gpu.value, percents))


def alone_on(share: Gpu, gpu: Gpu) -> Gpu:
    """Return *share* of *gpu* while no partner uses the memory."""
    return share if share is gpu else replace(share, bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s)
