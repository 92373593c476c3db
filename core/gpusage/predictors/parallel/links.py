"""How long GPUs take to send each other bytes: over links between boards, through their host, and between hosts.

A ring of n GPUs sends 2 (n - 1) / n bytes from each GPU for each byte that is summed: once for the sum, and once while
the sums are handed out. The slowest link on the way decides. None of it was fitted.

Invariants:

1. More GPUs never wait less for each other, nor do GPUs on more hosts.
2. A link that carries more bytes per second never takes more time.

Source:
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009; the
    vendors' data sheets; Jeaugey on NVIDIA/nccl-tests issue 212 (of 450 GB/s, 370 are left); NVIDIA/nccl issue 1639
    (without peer access, the host's memory and its lanes carry each byte in both directions).
"""

from __future__ import annotations

from typing import NamedTuple

from gpusage_hooks.job_values import BYTES_PER_GBIT
from gpusage_hooks.types import Gpu

GPUS_PER_HOST = 8
"""More are on several hosts."""
HOST_NETWORK_BYTES_PER_S = 100 * BYTES_PER_GBIT / GPUS_PER_HOST
"""Of one GPU, one way, where its host has one network card of 100 Gb/s: what hosts of V100s (AWS's p3dn), T4s and
other boards without links between hosts commonly have."""
LINKED_SHARE = 0.8
"""What the protocol leaves of a link between boards, and headers and pauses of a network."""
EXCHANGE_S = 10e-6
"""What a sum over GPUs, or another exchange, takes however small it is: a round number above the 6 to 7 us of two
boards in nccl-tests (NVIDIA/nccl issue 1259, H100; NVIDIA/nccl-tests issue 44, RTX 2080 Ti), as there are mostly more.
Published rates hardly decide it: with 2 to 40 us their median factor is 1.17 to 1.20."""


class Bus(NamedTuple):
    """The way through the host, which boards without links share.

    Attributes:
        bytes_per_s: Of 16 lanes, one way, after headers and pauses.
        sharers: GPUs that share these lanes, where a host has so many.
    """

    bytes_per_s: float
    sharers: int


NEWEST_BUS = 5
BUSES = {3: Bus(13e9, 4), 4: Bus(26e9, 2), NEWEST_BUS: Bus(52e9, 2)}
"""By generation of PCI Express. Processors with the third have 40 to 48 lanes, for up to four GPUs; newer ones 64 or
more."""


def allreduce_s_per_byte(gpu: Gpu, gpus: int, network: float | None = None, distance: int = 1) -> float:
    """Return how long each byte of gradients takes to be summed over *gpus* boards like *gpu*; 0 for one.

    Args:
        gpu: Each of them.
        gpus: How many; those of a host send side by side.
        network: What the network carries for each GPU, bytes per second one way; ``None`` is what is usual.
        distance: From one of them to the next; so many rings stand side by side, and share the cards of a host.
    """
    return 2.0 * (gpus - 1) / gpus * send_s_per_byte(gpu, gpus * distance, network, distance)


def send_s_per_byte(gpu: Gpu, gpus: int, network: float | None, distance: int) -> float:
    """Return how long each byte takes that each of *gpus* boards sends to the one that is *distance* boards away."""
    leaving = min(distance, GPUS_PER_HOST)
    return max(_within_host(gpu, min(gpus, GPUS_PER_HOST)), leaving * _between_hosts(gpu, gpus, network))


def exchange_s_per_byte(gpu: Gpu, gpus: int, network: float | None = None) -> float:
    """Return how long each byte takes that each of *gpus* boards sends, as much of it to one as to another.

    What leaves a host goes by the card of each GPU, at the same time as the rest.
    """
    inside = min(gpus, GPUS_PER_HOST)
    within_s = (inside - 1) / gpus * _within_host(gpu, inside)
    return max(within_s, (gpus - inside) / gpus * GPUS_PER_HOST * _between_hosts(gpu, gpus, network))


def bottleneck_link(gpu: Gpu, gpus: int, network: float | None = None) -> str:
    """Return what decides `allreduce_s_per_byte`, in words."""
    if _within_host(gpu, min(gpus, GPUS_PER_HOST)) < _between_hosts(gpu, gpus, network):
        rate = network_bytes_per_s(gpu, network) / BYTES_PER_GBIT
        origin = "" if network or gpu.network_bytes_per_s else ", usual for such hosts"
        return f"the network between hosts, {rate:g} Gb/s per GPU{origin}"
    return "the links between boards" if _linked_bytes_per_s(gpu, gpus) else "the host's bus"


def network_bytes_per_s(gpu: Gpu, network: float | None = None) -> float:
    """Return what the network carries for each GPU, one way: the job's, the site's, or what is usual."""
    return network or gpu.network_bytes_per_s or gpu.usual_network_bytes_per_s or HOST_NETWORK_BYTES_PER_S


def _between_hosts(gpu: Gpu, gpus: int, network: float | None) -> float:
    """Return the seconds for each byte that a host sends to the next one, by all its cards; 0 for one host."""
    of_host = GPUS_PER_HOST * network_bytes_per_s(gpu, network)
    return 1.0 / (LINKED_SHARE * of_host) if gpus > GPUS_PER_HOST else 0.0


def _within_host(gpu: Gpu, gpus: int) -> float:
    """Return the seconds for each byte that a GPU sends to the next one of *gpus* in its host."""
    linked = _linked_bytes_per_s(gpu, gpus)
    if linked:
        return 1.0 / (LINKED_SHARE * linked)
    bus = BUSES[min(gpu.pci_express or NEWEST_BUS, NEWEST_BUS)]
    return 2.0 * min(gpus, bus.sharers) / bus.bytes_per_s


def _linked_bytes_per_s(gpu: Gpu, gpus: int) -> float:
    """Return what links between boards carry one way; 0 where *gpus* boards have none, or parts of boards."""
    joins_all = gpu.linked_gpu_count is None or gpus <= gpu.linked_gpu_count
    return gpu.link_bytes_per_s if gpu.link_bytes_per_s and joins_all else 0.0
