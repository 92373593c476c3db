"""Activation checkpointing: the repeated blocks of a model, whose tensors the backward pass recomputes.

A block is what `torch.utils.checkpoint` is usually put around, as ``gradient_checkpointing_enable`` of Hugging Face
does: one layer of a transformer. A graph has no names of layers, but equal nodes in equal order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpusage.predictors.arrays import BoolArray, FloatArray, IntArray
from gpusage.predictors.work.lowering import Lowering
from gpusage.predictors.work.structure import Structure

LONGEST_BLOCK = 1000
"""Nodes; no longer block is looked for."""
LEAST_SHARE = 0.5
"""Of all stored bytes: blocks that write less are not what the user wrapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """What a training step with checkpoints computes twice and keeps.

    Attributes:
        start: For each node the first node of its block; itself outside of blocks.
        recomputed_nodes: For each node whether it runs twice forward.
        has_blocks: Whether the model has blocks; else everything runs twice and nothing less is kept.
    """

    start: IntArray
    recomputed_nodes: BoolArray
    has_blocks: bool

    def recomputed_counts(self, structure: Structure) -> FloatArray:
        """Return how often nodes of each kind run once more."""
        kinds = structure.kind_of_node[self.recomputed_nodes]
        return np.bincount(kinds, minlength=len(structure.counts)).astype(np.float64)

    def checkpointed_bytes(self, structure: Structure, stored: FloatArray, saved: FloatArray) -> FloatArray:
        """Return what the forward pass leaves of each node's bytes: in a block, what is read behind it.

        Outside of blocks, what a block reads is left as well, for the block starts from it once more.
        """
        last_reader = structure.last_reader
        outlives = self.start[last_reader] != self.start
        outside = np.where(self.recomputed_nodes[last_reader], np.maximum(saved, stored), saved)
        return np.where(self.recomputed_nodes, stored * outlives, outside)

    def materialized(self) -> BoolArray:
        """Return the nodes outside of blocks and those of the last block: no two blocks are there at once."""
        inside = self.recomputed_nodes.nonzero()[0]
        materialized: BoolArray = ~self.recomputed_nodes | (self.start == self.start[inside[-1]])
        return materialized


def checkpoints_of(lowering: Lowering, least_share: float = LEAST_SHARE) -> Checkpoints:
    """Return the checkpoints of a model: one at the start of each of its repeated blocks.

    Args:
        lowering: Of the model.
        least_share: Of all stored bytes that blocks write; what writes less counts as no blocks.
    """
    structure = lowering.structure
    stored = lowering.output_bytes[structure.kind_of_node]
    nodes = np.arange(len(stored))
    start, twice = nodes.copy(), np.zeros(len(nodes), dtype=bool)

    # A block starts where least is kept for the backward pass: between two nodes, what is stored and still to be read.
    first, length, cover = _repetition(structure.kind_of_node)
    count = 0
    if length:
        ends = np.bincount(structure.last_reader, weights=stored, minlength=len(stored))
        crossing = np.cumsum(stored) - np.cumsum(ends)
        means = [crossing[first + at + length - 1 : first + cover : length].mean() for at in range(length)]
        shift = int(np.argmin(means))
        first, count = first + shift, (cover - shift) // length

    inside = slice(first, first + count * length)
    twice[inside] = True
    if not count or float(stored[twice].sum()) < least_share * float(stored.sum()):
        return Checkpoints(start=nodes, recomputed_nodes=np.ones(len(nodes), dtype=bool), has_blocks=False)

    start[inside] = first + (nodes[inside] - first) // length * length
    return Checkpoints(start=start, recomputed_nodes=twice, has_blocks=True)


def _repetition(kinds: IntArray) -> tuple[int, int, int]:
    """Return first node, period and length of the longest part that repeats; the least such period, 0 for none."""
    best = (0, 0, 0)
    for period in range(1, min(len(kinds) // 2, LONGEST_BLOCK) + 1):
        # The longest run of nodes each of which equals the one a period later.
        edges = np.flatnonzero(np.diff(np.concatenate(([False], kinds[:-period] == kinds[period:], [False]))))
        if not len(edges):
            continue

        # Of periods that cover as much, the first is kept: the least, as a double period is two blocks.
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        longest = int(np.argmax(lengths))
        run = int(lengths[longest])
        if run >= period and run + period > best[2]:
            best = (int(starts[longest]), period, run + period)
    return best
