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

from collections.abc import Mapping
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
    """Return the trees that the parameters of each of *forests* describe."""
    trees = [_leaves(parameters, root, 0) for parameters in forests for root in parameters["roots"]]
    counts = [len(parameters["roots"]) for parameters in forests]
    rows = [questions + [_NO_QUESTION] * (_QUESTIONS - len(questions)) for _, questions in trees]
    feature, threshold, ruled_out = np.array(rows).transpose(2, 1, 0).reshape(3, -1)
    sets = np.arange(2**MAXIMUM_LEAVES)
    return Trees(
        starts=np.array([parameters["start"] for parameters in forests], dtype=np.float64),
        firsts=np.cumsum([0, *counts[:-1]]),
        feature=feature.astype(np.int64),
        threshold=threshold,
        ruled_out=ruled_out.astype(np.uint16),
        values=np.concatenate([values + [0.0] * (MAXIMUM_LEAVES - len(values)) for values, _ in trees]),
        leaf_offsets=np.arange(len(trees)) * MAXIMUM_LEAVES,
        leftmost=np.log2(~sets & (sets + 1)).astype(np.uint8),
    )


_Question = tuple[float, float, float]
"""Feature, threshold and the leaves that a yes rules out, as bits."""
_NO_QUESTION: _Question = (0.0, np.inf, 0.0)


def _leaves(parameters: Mapping[str, Any], node: int, first: int) -> tuple[list[float], list[_Question]]:
    """Return the values of the leaves below *node* from left to right, and the questions; leaf *first* is the first."""
    left, right = parameters["left"][node], parameters["right"][node]
    if left == node:
        return [parameters["value"][node]], []
    values, questions = _leaves(parameters, left, first)
    ruled_out = 2 ** (first + len(values)) - 2**first
    values_right, questions_right = _leaves(parameters, right, first + len(values))
    question = (parameters["feature"][node], parameters["threshold"][node], ruled_out)
    return values + values_right, [*questions, question, *questions_right]
