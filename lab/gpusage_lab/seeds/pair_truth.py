"""Truths from measured pairs: Lucid's (time slicing) and Gavel's on a V100 under MPS.

What was not measured is the predictor with its own error: a pair that is missing has the predicted throughputs times
an error drawn from those on the pairs that are there. Of three jobs, the delays of pairs add up. Gavel measured neither
utilization nor memory: utilizations follow from the step times alone, and memory is predictions times errors drawn from
those on Lucid's jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusage_hooks.types import Gpu, GpuNeed
from gpusage_hooks.units import MIB
from gpusage_lab.learning import pairs as measured
from gpusage_lab.learning.pairs import Pairs
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.simulator.contract import Colocation, Kind, Tenant
from gpusage_planning.simulator.predictions import colocated_throughputs, pairs_of

FloatArray = npt.NDArray[np.float64]
LEAST = 0.02
"""Of a job's throughput, as the predictor has it: nothing starves."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairTruth:
    """What happens to the jobs of a table of pairs, on the GPU type that was measured.

    Attributes:
        needs: Of each kind, as predicted.
        observed: The same where a run alone has shown the utilization (Lucid) or the step time (Gavel).
        utilization: Of each kind alone (NVML's busy share).
        memory: Of each kind, in bytes.
        pair_throughputs: Throughput of each row's kind beside each column's, relative to alone, at most 1.
        busy: Utilization of each pair; NaN where it was not measured.
    """

    name: str
    gpu: Gpu
    kinds: tuple[Kind, ...]
    needs: tuple[GpuNeed, ...]
    observed: tuple[GpuNeed, ...]
    utilization: FloatArray
    memory: FloatArray
    pair_throughputs: FloatArray
    busy: FloatArray

    def speed(self, _: int, __: int, /) -> float:
        """Return 1: there is one GPU type."""
        return 1.0

    def memory_bytes(self, kind: int, _: int, /) -> float:
        """Return the memory of *kind*."""
        return float(self.memory[kind])

    def colocation_of(self, tenants: Sequence[Tenant], _: int, /) -> Colocation:
        """Return speeds from the pairs; the busy share of a pair as measured, else as if jobs did not meet."""
        kinds = [tenant.kind for tenant in tenants]
        busy = self.busy[kinds[0], kinds[1]] if len(kinds) == 2 else np.nan  # a pair
        if np.isnan(busy):
            busy = 1 - np.prod(1 - self.utilization[kinds])
        return Colocation(colocated_throughputs(self.pair_throughputs, kinds), float(busy))


def lucid(data: DataFolder, seed: int) -> PairTruth:
    """Return Lucid's pairs, for evaluation only; *seed* draws the errors where a pair was not measured."""
    pairs = measured.lucid(data)
    utilization, memory = _solo_figures(data, pairs)
    busy = np.full(pairs.sums.shape, np.nan)
    index = {job: place for place, job in enumerate(pairs.jobs)}
    for row in data.read("lucid_pairs.csv").itertuples():
        first = index.get((row.model1, int(row.batch_size_1), bool(row.amp1)))
        second = index.get((row.model2, int(row.batch_size_2), bool(row.amp2)))
        if first is not None and second is not None:
            busy[first, second] = busy[second, first] = row.gpu_util_pct / 100
    known = measured.lucid(data, measured.lucid_utilizations(data))
    return _truth("lucid", (pairs, known), utilization, memory, busy, seed)


def gavel(data: DataFolder, seed: int) -> PairTruth:
    """Return Gavel's pairs, utilizations from the step times alone; *seed* draws memory with the errors on Lucid's."""
    pairs, known = measured.gavel(data), measured.gavel(data, measured.gavel_step_times(data))
    others = measured.lucid(data)
    _, memory = _solo_figures(data, others)
    memory_error = np.log(memory / np.array([need.memory_bytes.value for need in others.needs]))
    drawn = np.random.default_rng(seed).choice(memory_error, size=len(pairs.jobs))
    taken = np.array([need.memory_bytes.value for need in pairs.needs]) * np.exp(drawn)
    busy = np.array([need.gpu_utilization.value for need in known.needs])
    most = float(pairs.gpu.memory_bytes)
    return _truth("gavel", (pairs, known), busy, np.minimum(taken, most), np.full(pairs.sums.shape, np.nan), seed)


def _solo_figures(data: DataFolder, pairs: Pairs) -> tuple[FloatArray, FloatArray]:
    """Return the measured utilization and memory of each of Lucid's jobs."""
    alone = {
        (row.model, int(row.batch_size), bool(row.amp)): (row.gpu_util_pct / 100, row.gmem_MiB * MIB)
        for row in data.read("lucid_solo.csv").itertuples()
    }
    figures = np.array([alone[job] for job in pairs.jobs])
    return figures[:, 0], figures[:, 1]


def _truth(
    name: str, both: tuple[Pairs, Pairs], utilization: FloatArray, memory: FloatArray, busy: FloatArray, seed: int
) -> PairTruth:
    pairs, observed = both
    predicted = pairs_of(pairs.needs)
    known = ~np.isnan(pairs.parts)
    errors = np.log(np.minimum(pairs.parts[known], 1.0) / predicted[known])
    drawn = np.random.default_rng(seed).choice(errors, size=predicted.shape)
    pair_throughputs = np.where(known, pairs.parts, predicted * np.exp(drawn))
    kinds = tuple(Kind(name=f"{job[0]}, batch {job[1]}{', amp' if job[2] else ''}") for job in pairs.jobs)
    return PairTruth(
        name=name,
        gpu=pairs.gpu,
        kinds=kinds,
        needs=pairs.needs,
        observed=observed.needs,
        utilization=utilization,
        memory=memory,
        pair_throughputs=np.clip(pair_throughputs, LEAST, 1.0),
        busy=busy,
    )
