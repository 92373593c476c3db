"""How long gradients take from GPU to GPU, by the links that a board has; nothing of it was fitted.

A ring of n GPUs sends 2 (n - 1) / n bytes from each GPU for each byte of gradients: once while they are added up, once
while the sums are handed out. The slowest link on the way decides.

Invariants:

1. More GPUs never take less time, nor do GPUs on more hosts.
2. A link that carries more bytes per second never takes more time.

Source:
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009; the
    vendors' data sheets; Jeaugey on NVIDIA/nccl-tests issue 212 (of 450 GB/s, 370 are left); NVIDIA/nccl issue 1639
    (without peer access, the host's memory and its lanes carry each byte in both directions).
"""

from __future__ import annotations

from typing import NamedTuple

from gpusage_hooks.types import Gpu

GPUS_OF_HOST = 8
"""More are on several hosts."""
NETWORK_BYTES_PER_S = 10e9
"""What a host sends to the next one: 100 Gb/s, of which headers and pauses leave four fifths."""
LINKED_SHARE = 0.8
"""What the protocol leaves of a link between boards."""
LINKED_BYTES_PER_S = {
    "pascal": 80e9,
    "volta": 150e9,
    "ampere": 300e9,
    "hopper": 450e9,
    "blackwell": 900e9,
    "cdna2": 200e9,
    "cdna3": 448e9,
    "cdna4": 537e9,
}
"""NVLink's and Infinity Fabric's one way, all links of a board together."""
LINKED_PARTS = ("-sxm", "gh200", "mi250", "mi3")
"""Of the names of boards that such links join to all others of their host."""
BRIDGED_PART, BRIDGED_BYTES_PER_S, BRIDGED_GPUS = "-nvl", 300e9, 2
"""Boards that a bridge joins to one other."""


class Bus(NamedTuple):
    """The way through the host, which boards without links share.

    Attributes:
        bytes_per_s: Of 16 lanes, one way, after headers and pauses.
        sharers: GPUs that share these lanes, where a host has so many.
    """

    bytes_per_s: float
    sharers: int


GENERATION_3, GENERATION_4, GENERATION_5 = Bus(13e9, 4), Bus(26e9, 2), Bus(52e9, 2)
"""Of PCI Express. Processors with generation 3 have 40 to 48 lanes, for up to four GPUs; newer ones 64 or more."""
BUSES = {
    **dict.fromkeys(("kepler", "maxwell", "pascal", "volta", "turing"), GENERATION_3),
    **dict.fromkeys(("ampere", "ada", "cdna", "cdna2"), GENERATION_4),
}
"""All other generations have the newest."""


def seconds_per_byte(gpu: Gpu, gpus: int) -> float:
    """Return how long each byte of gradients takes to be summed over *gpus* boards like *gpu*; 0 for one."""
    sent = 2.0 * (gpus - 1) / gpus
    within = _within_host(gpu, min(gpus, GPUS_OF_HOST))
    return sent * (within if gpus <= GPUS_OF_HOST else max(within, 1.0 / NETWORK_BYTES_PER_S))


def way_of(gpu: Gpu, gpus: int) -> str:
    """Return what decides `seconds_per_byte`, in words."""
    within = _within_host(gpu, min(gpus, GPUS_OF_HOST))
    if gpus > GPUS_OF_HOST and within < 1.0 / NETWORK_BYTES_PER_S:
        return "the network between hosts, taken to carry 100 Gb/s"
    return "the links between boards" if _linked_bytes_per_s(gpu, gpus) else "the host's bus"


def _within_host(gpu: Gpu, gpus: int) -> float:
    """Return the seconds for each byte that a GPU sends to the next one of *gpus* in its host."""
    linked = _linked_bytes_per_s(gpu, gpus)
    if linked:
        return 1.0 / (LINKED_SHARE * linked)
    bus = BUSES.get(gpu.generation, GENERATION_5)
    return 2.0 * min(gpus, bus.sharers) / bus.bytes_per_s


def _linked_bytes_per_s(gpu: Gpu, gpus: int) -> float:
    """Return what links between boards carry one way; 0 where *gpus* boards have none, or parts of boards."""
    if gpu.cut_from:
        return 0.0
    if BRIDGED_PART in gpu.name:
        return BRIDGED_BYTES_PER_S if gpus <= BRIDGED_GPUS else 0.0
    is_linked = any(part in gpu.name for part in LINKED_PARTS)
    return LINKED_BYTES_PER_S.get(gpu.generation, 0.0) if is_linked else 0.0
