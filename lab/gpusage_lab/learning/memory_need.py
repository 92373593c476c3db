"""What a run needs of memory, learned where it could take no more than that.

cuDNN takes scratch memory for convolutions as far as it finds room. So the fit uses only rows in which that hardly
counts: of models whose convolutions write less than `FEW_CONVOLUTIONS` of all that is written, and of those whose
tensors take half of the GPU. Even their peaks have what the allocator keeps beyond need, so they bound the need from
above.

The high end is a quantile in which each family counts alike, as the next job's family is a new one. The last end is
above every row that a fit without its family predicts: with more than 1,000 rows, by the conformal argument, fewer than
1 of 1,000 jobs of unseen families need more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusage.predictors.arrays import BoolArray, FloatArray
from gpusage.predictors.memory.liveness import TRAINING_TERMS
from gpusage.predictors.memory.peak import FITTED_CONTEXT_BYTES
from gpusage_hooks.units import GIB
from gpusage_lab.learning.memory_fit import quantile_fit
from gpusage_lab.learning.memory_rows import MemoryRows
from gpusage_lab.learning.scores import weighted_quantile
from gpusage_lab.learning.splits import by_group

FEW_CONVOLUTIONS = 0.03
HALF_OF_THE_GPU = 18.5 * GIB
"""Of tensors, on 40 GB less the context."""
LOW_SHARE, HIGH_SHARE = 0.05, 0.95
FAILING = 0.001
ROUNDING = 1e-9
FOLDS = 10
FEWEST_FAMILIES = 2
POINT, HIGH, SHARE_HIGH = 1, 2, 3
"""Places of the ends; the low end is the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedFit:
    """What a run needs: *constants* and *factors* of its tensors, for low end, point, high end and a share's high end.

    Attributes:
        ratios: Of each training row, measured over the point of a fit without its family.
        families: Of each row.
    """

    constants: FloatArray
    factors: FloatArray
    ratios: FloatArray
    families: tuple[str, ...]

    def end(self, place: int) -> float:
        """Return an end as a multiple of the point."""
        return float(self.factors[place] / self.factors[POINT])

    def share_above(self, place: int) -> float:
        """Return the share of the rows that lie above an end, each predicted without its family."""
        return float((self.ratios > self.end(place) * (1 + ROUNDING)).mean())


def fit_need(rows: MemoryRows) -> NeedFit:
    """Return the fit on the rows that had no choice, its ends on families that the fit has not seen."""
    which = np.flatnonzero(had_no_choice(rows))
    if len({rows.family[index] for index in which}) < FEWEST_FAMILIES:
        which = np.flatnonzero(rows.sound)  # bounds the need from above all the same
    columns = np.column_stack([np.ones(len(which)), tensors_of(rows)[which]])
    measured, families = rows.measured[which] - FITTED_CONTEXT_BYTES, np.array(rows.family)[which]
    point = quantile_fit(columns, measured, 0.5)
    ratios = _ratios(columns, measured, families)
    farthest = float(np.quantile(ratios, 1 - FAILING, method="higher"))
    _, family, sizes = np.unique(families, return_inverse=True, return_counts=True)
    high = weighted_quantile(ratios, 1.0 / sizes[family], HIGH_SHARE)
    ends = np.array([np.quantile(ratios, LOW_SHARE), 1.0, high, farthest])
    return NeedFit(constants=point[0] * ends, factors=point[1] * ends, ratios=ratios, families=tuple(families.tolist()))


def tensors_of(rows: MemoryRows) -> FloatArray:
    """Return the most that each row's walk says must be there at once: in the backward pass, or in the update."""
    peak, weights, inputs = (rows.terms[:, TRAINING_TERMS.index(name)] for name in ("peak", "weights", "inputs"))
    most: FloatArray = np.maximum(peak + 2 * weights, 4 * weights + inputs)
    return most


def had_no_choice(rows: MemoryRows) -> BoolArray:
    """Return which sound rows could take hardly more than they needed."""
    written, stored = (rows.terms[:, TRAINING_TERMS.index(name)] for name in ("written_convolutions", "stored"))
    few: BoolArray = written < FEW_CONVOLUTIONS * stored
    which: BoolArray = rows.sound & (few | (tensors_of(rows) > HALF_OF_THE_GPU))
    return which


def _ratios(columns: FloatArray, measured: FloatArray, families: npt.NDArray[np.str_]) -> FloatArray:
    """Return measured over predicted, each row by a fit that has not seen its family."""
    ratios = np.ones(len(measured))
    for fold in by_group(families.tolist(), FOLDS, "family"):
        fitted = quantile_fit(columns[fold.train], measured[fold.train], 0.5)
        ratios[fold.test] = measured[fold.test] / (columns[fold.test] @ fitted)
    return ratios
