"""The GPUs of a cluster, numbered; those of one type are neighbours, and so are those of one node.

Invariants of jobs on nodes:

1. A job of at most a node's GPUs stands on one node, the fullest that has room; the first among equals.
2. A larger job has whole nodes, and what is left of it stands by rule 1: so it is on as few nodes as can be.
3. Where jobs are spread, a job has room wherever enough GPUs are empty, and is on as many nodes as can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import gcd, inf

from gpusage.devices.catalogue import Catalogue
from gpusage.policies.candidates import shared_pool
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Cluster, Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """The GPUs of one type; *gpu* is ``None`` where the catalogue does not know it, and their memory is without end.

    Attributes:
        power_w: What one of them was measured to take while busy, and while idle; ``None`` where nobody measured.
        gpus_per_node: How many stand in each node, a divisor of their number; ``None`` means that all stand in one.
        node_gpu_counts: How many really stand in nodes, each number once; none means not known.
    """

    name: str
    gpu_count: int
    memory_bytes: float = inf
    gpu: Gpu | None = None
    power_w: tuple[float, float] | None = None
    gpus_per_node: int | None = None
    node_gpu_counts: tuple[int, ...] = ()

    @property
    def node_gpu_count(self) -> int:
        """Return how many GPUs a node has; all of them where no nodes are known."""
        return self.gpus_per_node or self.gpu_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All GPUs: the first type's have the numbers from 0 on, then come the second's.

    Attributes:
        cluster: As the policies of production are asked about it.
        spreads_jobs: Whether a job's GPUs are on as many nodes as can be, and not on as few.
    """

    types: tuple[GpuType, ...]
    cluster: Cluster
    spreads_jobs: bool = False

    @property
    def gpu_count(self) -> int:
        """Return how many GPUs there are."""
        return sum(one.gpu_count for one in self.types)

    @property
    def starts(self) -> tuple[int, ...]:
        """Return the number of each type's first GPU."""
        return tuple(sum(one.gpu_count for one in self.types[:index]) for index in range(len(self.types)))


def fleet_of(cluster: Cluster, catalogue: Catalogue) -> Fleet:
    """Return the GPUs of *cluster*; its pools without GPUs are left out."""
    types = []
    for pool in cluster.pools:
        if not pool.gpu_count:
            continue
        gpu = None if pool.gpu is None else catalogue.find(pool.gpu)

        # Nodes of several sizes are divided into the largest that all of them are multiples of; into single GPUs only
        # where nodes really have one.
        size = gcd(*pool.node_gpu_counts)
        one = GpuType(
            name=pool.site_type,
            gpu_count=pool.gpu_count,
            memory_bytes=inf if gpu is None else float(gpu.memory_bytes),
            gpu=gpu,
            gpus_per_node=size if size > 1 or {*pool.node_gpu_counts} == {1} else None,
            node_gpu_counts=pool.node_gpu_counts,
        )
        types.append(one)
    return Fleet(types=tuple(types), cluster=cluster)


def with_power(fleet: Fleet, power_w: Mapping[str, tuple[float, float]]) -> Fleet:
    """Return *fleet*, where the types that *power_w* names take so much, busy and idle."""
    return replace(fleet, types=tuple(replace(one, power_w=power_w.get(one.name)) for one in fleet.types))


def with_nodes(fleet: Fleet, usual: int | None = None) -> Fleet:
    """Return *fleet* in nodes of *usual* GPUs, where nothing is known of a type's nodes.

    Raises:
        RequestError: A type's GPUs do not fill its nodes.
    """
    types = tuple(replace(one, gpus_per_node=usual) if not one.node_gpu_counts else one for one in fleet.types)
    for one in types:
        if one.gpu_count % one.node_gpu_count:
            message = (
                f"Nodes of {one.node_gpu_count} GPUs must divide the {one.gpu_count} GPUs of type {one.name!r}; got a "
                f"rest of {one.gpu_count % one.node_gpu_count}. Correct gpus_per_node, or write the other nodes as a "
                "pool of their own."
            )
            raise RequestError(message)

    return replace(fleet, types=types)


def as_if_installed(cluster: Cluster, catalogue: Catalogue) -> tuple[Cluster, tuple[str, ...]]:
    """Return *cluster* as a site that installs gpusage has it, and the types that it does not divide today.

    Each of its GPUs of a known type is divided, and a feature holds a job to the type. Slices stay as they are.
    Partitions are left out: no job of a trace names one.
    """
    pools, undivided = [], []
    for pool in cluster.pools:
        everywhere = replace(pool, partitions=(), node_kinds=())
        if pool.mps_per_gpu is None and pool.gpu is not None and catalogue.find(pool.gpu).parent_gpu is None:
            everywhere = shared_pool(everywhere)
            undivided.append(pool.site_type)
        pools.append(everywhere)

    return replace(cluster, pools=tuple(pools), default_partition=None), tuple(undivided)


class Nodes:
    """Empty GPUs that nothing is reserved of; heaps hold the lowest numbers first, and what is stale is skipped."""

    def __init__(self, start: int, gpu_count: int, gpus_per_node: int, *, spreads: bool = False) -> None:
        self._start, self._gpus_per_node, self._spreads = start, gpus_per_node, spreads
        node_count = gpu_count // gpus_per_node
        self._is_empty = [True] * gpu_count
        self._gpus: list[list[int]] = [
            [*range(node * gpus_per_node, (node + 1) * gpus_per_node)] for node in range(node_count)
        ]
        self._is_listed = [True] * gpu_count
        self._empty_counts = [gpus_per_node] * node_count
        self._nodes: dict[int, list[int]] = {gpus_per_node: [*range(node_count)]}
        self._listed_nodes = {(gpus_per_node, node) for node in range(node_count)}
        self._node_counts = {gpus_per_node: node_count}

    def node(self, gpu: int) -> int:
        """Return the node of *gpu*, counted within the type."""
        return (gpu - self._start) // self._gpus_per_node

    def add(self, gpu: int) -> None:
        """Let *gpu* be empty."""
        place = gpu - self._start
        if not self._is_empty[place]:
            self._is_empty[place] = True
            node = place // self._gpus_per_node
            if not self._is_listed[place]:
                self._is_listed[place] = True
                heappush(self._gpus[node], place)
            self._count(node, 1)

    def remove(self, gpu: int) -> None:
        """Let *gpu* no more be empty."""
        place = gpu - self._start
        if self._is_empty[place]:
            self._is_empty[place] = False
            self._count(place // self._gpus_per_node, -1)

    def first(self) -> int | None:
        """Return an empty GPU of the fullest node that has one; ``None`` where none is empty."""
        return self._first_of(self._fullest(1)) if self._node_counts else None

    def fits(self, count: int) -> bool:
        """Return whether a job on *count* GPUs has room."""
        if self._spreads:
            return sum(empty * nodes for empty, nodes in self._node_counts.items()) >= count
        whole, rest = divmod(count, self._gpus_per_node)
        spare = self._node_counts.get(self._gpus_per_node, 0) - whole
        if spare < 0:
            return False
        return spare > 0 or rest == 0 or any(rest <= empty < self._gpus_per_node for empty in self._node_counts)

    def allocate(self, count: int) -> list[int]:
        """Remove the GPUs of a job on *count* that has room."""
        if self._spreads:
            order = sorted(range(len(self._empty_counts)), key=lambda node: -self._empty_counts[node])
            gpus: list[int] = []
            while len(gpus) < count:
                left = [node for node in order if self._empty_counts[node]][: count - len(gpus)]
                gpus += [gpu for node in left for gpu in self.allocate_on(node, 1)]
            return gpus

        whole, rest = divmod(count, self._gpus_per_node)
        parts = [self._gpus_per_node] * whole + [rest] * (rest > 0)
        return [gpu for part in parts for gpu in self.allocate_on(self._fullest(part), part)]

    def allocate_on(self, node: int, count: int) -> list[int]:
        """Remove the first *count* empty GPUs of *node*."""
        gpus = []
        for _ in range(count):
            gpus.append(self._first_of(node))
            self.remove(gpus[-1])
        return gpus

    def _fullest(self, count: int) -> int:
        """Return the first of the nodes with the fewest empty GPUs of those with *count* at least, of which one is."""
        empty: int = min(number for number in self._node_counts if number >= count)
        heap = self._nodes[empty]
        # Entries of nodes that have changed stay in the heap until they come up: searching for them would take longer.
        while self._empty_counts[heap[0]] != empty:
            self._listed_nodes.discard((empty, heappop(heap)))
        return heap[0]

    def _first_of(self, node: int) -> int:
        heap = self._gpus[node]
        while not self._is_empty[heap[0]]:
            self._is_listed[heappop(heap)] = False
        return self._start + heap[0]

    def _count(self, node: int, change: int) -> None:
        before = self._empty_counts[node]
        after = self._empty_counts[node] = before + change
        if before:
            self._node_counts[before] -= 1
            if not self._node_counts[before]:
                del self._node_counts[before]

        if after:
            self._node_counts[after] = self._node_counts.get(after, 0) + 1
            if (after, node) not in self._listed_nodes:
                self._listed_nodes.add((after, node))
                heappush(self._nodes.setdefault(after, []), node)
