"""Muon, which makes the update of each hidden matrix orthogonal: five Newton-Schulz steps of three products in bf16.

Hidden are the weights of products, but for the one that makes the model's output; AdamW updates all others. A step on a
matrix X of n rows and m columns, n <= m, multiplies X by its transpose, the result by itself, and the sum of both by X:
4 n^2 m + 2 n^3 FLOP, whatever the batch.

Source:
    Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, "Runtime analysis". What is read and
    written beside the products is counted in `torch.optim.Muon` of PyTorch 2.9.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.work.lowering import Lowering, is_adapter
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Workload

_STEPS = 5
MORE_TRAFFIC = 26.0
"""Bytes that the update of a hidden weight of 4 bytes moves beside AdamW's: two averages, a cast, a norm, a division,
the decay and the sum."""


def hidden_matrices(lowering: Lowering, workload: Workload) -> FloatArray:
    """Return a row for each size of hidden matrices that Muon updates: how many there are, n and m."""
    structure, rows = lowering.structure, []
    adapters, is_muon = is_adapter(structure), workload.optimizer == "muon"
    trained = (lowering.operator_class == OperatorClass.PRODUCT) & (adapters | ~adapters.any()) & is_muon
    trained[structure.kind_of_node[structure.output_nodes]] = False
    for kind in trained.nonzero()[0].tolist():
        # Experts lie one behind the other in one tensor.
        matrices = [weight for weight in structure.kinds[kind].parameters if len(weight) > 1]
        rows += [(int(structure.counts[kind]) * prod(one[:-2]), *sorted(one[-2:])) for one in matrices]
    return np.array(rows, dtype=float).reshape(-1, 3)


def hidden_share(lowering: Lowering, workload: Workload) -> float:
    """Return which part of the weights Muon updates, 0 to 1."""
    return min(float(hidden_matrices(lowering, workload).prod(axis=1).sum()) / max(lowering.parameter_count, 1), 1.0)


def products(lowering: Lowering, workload: Workload) -> Iterator[tuple[float, float, float, float, float, float]]:
    """Yield the products that update hidden matrices: FLOP, bytes moved, outputs, count, inner and width."""
    for count, n, m in hidden_matrices(lowering, workload).tolist():
        # Numbers of bf16 have two bytes.
        each, size, square = _STEPS * count, n * m, n * n
        yield 2 * square * m, 2 * (size + square), square, each, m, n
        yield 2 * square * n, 2 * 3 * square, square, each, n, n
        yield 2 * square * m, 2 * (2 * size + square), size, each, n, m
