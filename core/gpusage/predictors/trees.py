"""Boosted trees as flat arrays: read from JSON, asked with numpy for all rows and all trees of several forests at once.

No tree is walked. Every node's question is asked of every row; a yes to *above* rules out the leaves to the node's
left, and the leaf that a walk would end at is the leftmost one that no answer rules out.

Invariants:

1. Nothing but numpy is needed; what is out of every tree's range gets the nearest leaf's value.
2. A tree has at most `MAXIMUM_LEAVES` leaves, one bit each.

Source:
    Lucchese et al., "QuickScorer: a Fast Algorithm to Rank Documents with Additive Ensembles of Regression Trees",
    SIGIR 2015.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MAXIMUM_LEAVES = 16
_QUESTIONS = MAXIMUM_LEAVES - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """All trees of all forests one after the other.

    Attributes:
        starts: What the values of each forest's trees are added to.
        firsts: Each forest's first tree.
        feature: Of each question: the first ones of all trees, then the second ones, and so on.
        threshold: A question is whether the feature is above it; infinite where a tree has no such question.
        ruled_out: Leaves, as bits, that a yes rules out.
        values: Of the leaves, `MAXIMUM_LEAVES` a tree.
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
        """Return one figure a row of *rows* and a forest, shape (rows, forests); *rows* has shape (rows, features)."""
        above = rows.take(self.feature, axis=1) > self.threshold
        answers = (above * self.ruled_out).reshape(len(rows), _QUESTIONS, len(self.leaf_offsets))
        leaves = self.leftmost.take(np.bitwise_or.reduce(answers, axis=1)) + self.leaf_offsets
        found: FloatArray = self.starts + np.add.reduceat(self.values.take(leaves), self.firsts, axis=1)
        return found


def read_trees(*forests: Mapping[str, Any]) -> Trees:
    """Return the trees that the parameters of each of *forests* describe.

    Their nodes are in depth-first order, left ones first, and a leaf is its own left child; so the leaves to the left
    of a question are those between its left child and its right one.
    """
    counts = [len(parameters["roots"]) for parameters in forests]
    roots, left, right = (_joined(forests, name) for name in ("roots", "left", "right"))
    nodes = np.arange(len(left))
    tree = np.searchsorted(roots, nodes, side="right") - 1
    is_leaf = left == nodes
    leaf = np.cumsum(is_leaf) - is_leaf
    leaf -= leaf[roots][tree]
    leaves, asking = is_leaf.nonzero()[0], (~is_leaf).nonzero()[0]
    at = (asking - roots[tree[asking]] - leaf[asking], tree[asking])
    feature = np.zeros((_QUESTIONS, len(roots)), dtype=np.int64)
    threshold = np.full(feature.shape, np.inf)
    ruled_out = np.zeros(feature.shape, dtype=np.uint16)
    values = np.zeros((len(roots), MAXIMUM_LEAVES))
    feature[at] = _columns(forests, "feature")[asking]
    threshold[at] = _columns(forests, "threshold")[asking]
    ruled_out[at] = 2 ** leaf[right[asking]] - 2 ** leaf[left[asking]]
    values[tree[leaves], leaf[leaves]] = _columns(forests, "value")[leaves]
    sets = np.arange(2**MAXIMUM_LEAVES)
    return Trees(
        starts=np.array([parameters["start"] for parameters in forests], dtype=np.float64),
        firsts=np.cumsum([0, *counts[:-1]]),
        feature=feature.ravel(),
        threshold=threshold.ravel(),
        ruled_out=ruled_out.ravel(),
        values=values.ravel(),
        leaf_offsets=np.arange(len(roots)) * MAXIMUM_LEAVES,
        leftmost=np.log2(~sets & (sets + 1)).astype(np.uint8),
    )


def _columns(forests: Sequence[Mapping[str, Any]], name: str) -> FloatArray:
    return np.concatenate([np.array(parameters[name], dtype=np.float64) for parameters in forests])


def _joined(forests: Sequence[Mapping[str, Any]], name: str) -> IntArray:
    """Return the numbers of nodes that *name* holds, counted over all forests."""
    starts = np.cumsum([0, *(len(parameters["left"]) for parameters in forests)])
    parts = [np.array(parameters[name], dtype=np.int64) for parameters in forests]
    return np.concatenate([part + start for part, start in zip(parts, starts, strict=False)])
