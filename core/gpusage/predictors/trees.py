"""Boosted trees as flat arrays: read from JSON, walked with numpy for all rows and all trees at once.

Invariants:

1. A leaf points at itself, so that every walk takes the same number of turns.
2. Nothing but numpy is needed; what is out of every tree's range gets the nearest leaf's value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """All trees one after the other, *children* the left ones and then the right ones.

    Attributes:
        start: What the trees' values are added to.
        roots: Index of each tree's first node.
        children: Where a walk goes on: to the left where the feature is at most the threshold.
        depth: Turns that the longest walk takes.
    """

    start: float
    roots: IntArray
    feature: IntArray
    threshold: FloatArray
    children: IntArray
    value: FloatArray
    depth: int

    def predict(self, rows: FloatArray) -> FloatArray:
        """Return one figure a row of *rows*, of shape (rows, features)."""
        flat, nodes = rows.ravel(), len(self.feature)
        first = np.arange(len(rows))[:, np.newaxis] * rows.shape[1]
        at = np.broadcast_to(self.roots, (len(rows), len(self.roots)))
        for _ in range(self.depth):
            is_above = flat.take(self.feature.take(at) + first) > self.threshold.take(at)
            at = self.children.take(at + nodes * is_above)
        found: FloatArray = self.start + self.value.take(at).sum(axis=1)
        return found


def read_trees(parameters: Mapping[str, Any]) -> Trees:
    """Return the trees that an artifact's *parameters* describe."""
    return Trees(
        start=float(parameters["start"]),
        roots=np.array(parameters["roots"], dtype=np.int64),
        feature=np.array(parameters["feature"], dtype=np.int64),
        threshold=np.array(parameters["threshold"], dtype=np.float64),
        children=np.array([*parameters["left"], *parameters["right"]], dtype=np.int64),
        value=np.array(parameters["value"], dtype=np.float64),
        depth=int(parameters["depth"]),
    )
