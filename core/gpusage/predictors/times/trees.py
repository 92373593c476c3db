"""Gradient-boosted trees as flat arrays: read from JSON, evaluated with numpy for all rows and trees of all forests.

No tree is walked. Every node's condition is evaluated for every row; where a feature is above its threshold, the leaves
left of the node are ruled out. A walk would end at the leftmost leaf that no condition rules out.

Invariants:

1. Nothing but numpy is needed; what is out of every tree's range gets the nearest leaf's value.
2. A tree has at most `MAXIMUM_LEAVES` leaves, one bit each.

Source:
    Lucchese et al., "QuickScorer: a Fast Algorithm to Rank Documents with Additive Ensembles of Regression Trees",
    SIGIR 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gpusage.predictors.arrays import FloatArray, IntArray, shaped
from gpusage.predictors.artifacts import ForestParameters

MAXIMUM_LEAVES = 16
"""Of a tree: the bits of `Trees.ruled_out`."""
_SPLITS = MAXIMUM_LEAVES - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """All trees of all forests one after the other.

    Attributes:
        starts: What the values of each forest's trees are added to.
        firsts: Each forest's first tree.
        feature: Of each split: the first ones of all trees, then the second ones, and so on.
        threshold: What the feature must exceed; infinite where a tree has no such split.
        ruled_out: Leaves, as bits, that a yes rules out.
        values: Of the leaves, `MAXIMUM_LEAVES` per tree.
        leaf_offsets: Where the leaves of each tree begin among them.
        leftmost: By the bits of leaves that are ruled out: the leftmost one that is not.
    """

    starts: FloatArray
    firsts: IntArray
    feature: IntArray
    threshold: FloatArray
    ruled_out: npt.NDArray[np.uint16]
    values: FloatArray
    leaf_offsets: IntArray
    leftmost: npt.NDArray[np.uint8]

    def predict(self, rows: FloatArray) -> FloatArray:
        """Return a figure of each forest for each of *rows*: shape (rows, forests), from shape (rows, features)."""
        above = rows.take(self.feature, axis=1) > self.threshold
        excluded = (above * self.ruled_out).reshape(len(rows), _SPLITS, len(self.leaf_offsets))
        leaves = self.leftmost.take(np.bitwise_or.reduce(excluded, axis=1)) + self.leaf_offsets
        sums: FloatArray = self.starts + np.add.reduceat(self.values.take(leaves), self.firsts, axis=1)
        return sums


def read_trees(*forests: ForestParameters) -> Trees:
    """Return the trees that the parameters of each of *forests* describe.

    The leaves to the left of a split are those between its left child and its right one.

    Raises:
        ValueError: A forest's columns have different lengths.
    """
    counts = [len(forest.roots) for forest in forests]
    starts = np.cumsum([0, *(len(forest.left) for forest in forests)])[:-1]
    roots = _joined([forest.roots for forest in forests], starts)
    left = _joined([forest.left for forest in forests], starts)
    right = _joined([forest.right for forest in forests], starts)

    # Leaves are numbered from left to right within their tree, as nodes stand in depth-first order.
    nodes = np.arange(len(left))
    tree = np.searchsorted(roots, nodes, side="right") - 1
    is_leaf = left == nodes
    leaf = np.cumsum(is_leaf) - is_leaf
    leaf -= leaf[roots][tree]
    leaves, splits = is_leaf.nonzero()[0], (~is_leaf).nonzero()[0]

    # The k-th split of each tree stands in the k-th row: all trees' first splits are evaluated side by side.
    at = (splits - roots[tree[splits]] - leaf[splits], tree[splits])
    feature = np.zeros((_SPLITS, len(roots)), dtype=np.int64)
    threshold = np.full(feature.shape, np.inf)
    ruled_out = np.zeros(feature.shape, dtype=np.uint16)
    values = np.zeros((len(roots), MAXIMUM_LEAVES))
    feature[at] = _column(forests, "feature")[splits]
    threshold[at] = _column(forests, "threshold")[splits]
    ruled_out[at] = 2 ** leaf[right[splits]] - 2 ** leaf[left[splits]]
    values[tree[leaves], leaf[leaves]] = _column(forests, "value")[leaves]

    sets = np.arange(2**MAXIMUM_LEAVES)
    return Trees(
        starts=np.array([forest.start for forest in forests], dtype=np.float64),
        firsts=np.cumsum([0, *counts[:-1]]),
        feature=feature.ravel(),
        threshold=threshold.ravel(),
        ruled_out=ruled_out.ravel(),
        values=values.ravel(),
        leaf_offsets=np.arange(len(roots)) * MAXIMUM_LEAVES,
        leftmost=np.log2(~sets & (sets + 1)).astype(np.uint8),  # the lowest bit that is not set
    )


def _column(forests: Sequence[ForestParameters], name: Literal["feature", "threshold", "value"]) -> FloatArray:
    """Return what *name* holds for the nodes of all forests."""
    return np.concatenate([shaped(name, getattr(forest, name), len(forest.left)) for forest in forests])


def _joined(forests: Sequence[Sequence[int]], starts: IntArray) -> IntArray:
    """Return the numbers of nodes that *forests* hold, counted over all of them; *starts* is each one's first node."""
    parts = [np.array(numbers, dtype=np.int64) for numbers in forests]
    return np.concatenate([part + start for part, start in zip(parts, starts, strict=True)])
