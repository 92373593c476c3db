"""The predictions for each kind of jobs on each GPU type: all that a policy sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusage.predictors.artifacts import pretrained
from gpusage.predictors.sharing.colocation import features_of, learned_colocation, pair_throughputs
from gpusage_hooks.types import GpuNeed
from gpusage_planning.simulator.packing import Load

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Foresight:
    """Predictions for the kinds that have a model, by kind and GPU type.

    Attributes:
        loads: What a job takes of a GPU.
        pair_throughputs: For each GPU type, the throughput of each row's kind beside each column's, relative to alone.
    """

    loads: Mapping[tuple[int, int], Load]
    pair_throughputs: Sequence[FloatArray]


def colocated_throughputs(pair_throughputs: FloatArray, kinds: Sequence[int]) -> tuple[float, ...]:
    """Return each job's throughput relative to alone; the delays that its partners cause add up."""
    return tuple(
        1 / (1 + sum(1 / pair_throughputs[one, other] - 1 for place, other in enumerate(kinds) if place != own))
        for own, one in enumerate(kinds)
    )


def pairs_of(needs: Sequence[GpuNeed]) -> FloatArray:
    """Return the predicted throughput of each of *needs* beside each, relative to alone."""
    matrix, _ = pair_throughputs(
        learned_colocation(pretrained().colocation), features_of(needs), [need.parameter_count for need in needs]
    )
    return matrix


def load_of(need: GpuNeed) -> Load:
    """Return what a job with *need* is expected to take; the memory is what a share would book."""
    return Load(utilization=need.gpu_utilization.value, memory_bytes=need.share_memory_bytes)
