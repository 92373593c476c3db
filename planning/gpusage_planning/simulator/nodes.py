"""The empty GPUs of one type, by the nodes in which they stand.

Invariants:

1. A job of at most a node's GPUs stands on one node, the fullest that has room; the first among equals.
2. A larger job has whole nodes, and what is left of it stands by rule 1: so it is on as few nodes as can be.
3. Where jobs are spread, a job has room wherever enough GPUs are empty, and is on as many nodes as can be.
"""

from __future__ import annotations

from heapq import heappop, heappush


class Nodes:
    """Empty GPUs that nothing is reserved of; heaps hold the lowest numbers first, and what is stale is skipped."""

    def __init__(self, start: int, gpu_count: int, gpus_per_node: int, *, spreads: bool = False) -> None:
        self._start = start
        self._gpus_per_node = gpus_per_node
        self._spreads = spreads
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

    def empty_count(self, node: int) -> int:
        """Return how many GPUs of *node* are empty."""
        return self._empty_counts[node]

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
            return self._allocate_spread(count)
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

    def _allocate_spread(self, count: int) -> list[int]:
        """Remove one GPU of each node, the emptiest first, and begin again until there are *count*."""
        order = sorted(range(len(self._empty_counts)), key=lambda node: -self._empty_counts[node])
        gpus: list[int] = []
        while len(gpus) < count:
            left = [node for node in order if self._empty_counts[node]][: count - len(gpus)]
            gpus += [gpu for node in left for gpu in self.allocate_on(node, 1)]
        return gpus

    def _fullest(self, count: int) -> int:
        """Return the first of the nodes with the fewest empty GPUs of those with *count* at least, of which one is."""
        empty: int = min(number for number in self._node_counts if number >= count)
        heap = self._nodes[empty]
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
