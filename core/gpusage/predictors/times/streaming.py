"""What a GPU's memory leaves possible where keys, values and weights are streamed for each token.

The networks learned from whole steps, and from kernels whose operands often lie in the cache. A pass over one token
reads far more than a cache holds, and one query for each sample makes products that no whole step has. Both are held to
what kernels of their own were measured to do. Only answers are: a step's kernels follow one another closely, and what
they count as traffic may come from the cache.

Source: NeuSight's operators in fp32 (MIT), on P4, P100, T4, V100 and A100; ``python bench/streaming.py`` prints them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from gpusage.predictors.learned.arrays import BoolArray, FloatArray
from gpusage.predictors.times.efficiency import Efficiency
from gpusage.predictors.work.kernels import Kernels
from gpusage.predictors.work.operators import OperatorClass

MOST_SHARE = 0.93
"""Of the memory's peak: no measured kernel of one number after the other moved more, of 300 MB and above."""
LEAST_SHARE = 0.5
"""The same of batched products of at most four columns, of 100 MB and above: the median, from 0.44 (T4) to 0.73."""
FILLING_S = 50e-6
"""What smaller ones of these take beside that: with it 9 of 10 are within 1.2 times the limit, on each GPU."""
_FEW_FLOP_PER_BYTE = 4.0
_SHORT_SUM = 4.0
"""A product of sums as short as this writes more than it reads: it is an outer product, which is slower."""


@lru_cache(maxsize=4)
def streaming(efficiency: Efficiency) -> Efficiency:
    """Return *efficiency* where kernels are held to what memory can do."""
    return replace(efficiency, streams=True)


def least_s(traffic_s: FloatArray, cache_s: FloatArray) -> FloatArray:
    """Return the least seconds of kernels, shape (kernels, GPUs): what is beyond the cache comes from the memory.

    Args:
        traffic_s: Of each kernel, at the memory's peak; shape (kernels, GPUs).
        cache_s: Of as many bytes as the cache holds, one entry per GPU.
    """
    return np.maximum(traffic_s - cache_s, 0.0) / MOST_SHARE


def most_s(traffic_s: FloatArray, kernels: Kernels) -> FloatArray:
    """Return the most seconds of kernels, shape (kernels, GPUs): infinite but for batched products of few columns."""
    return np.where(_few_columns(kernels)[:, np.newaxis], traffic_s / LEAST_SHARE + FILLING_S, np.inf)


def _few_columns(kernels: Kernels) -> BoolArray:
    few = kernels.flop <= _FEW_FLOP_PER_BYTE * kernels.traffic_bytes
    chosen: BoolArray = (kernels.operator_class == OperatorClass.BATCHED_PRODUCT) & few & (kernels.inner > _SHORT_SUM)
    return chosen
