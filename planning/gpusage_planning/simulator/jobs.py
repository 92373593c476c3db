"""Jobs of a trace, in columns, so that a million of them fit into little memory.

Invariants:

1. Jobs are in the order of their submission; a job's number is its place in it.
2. Jobs of one kind are predicted, decided and slowed alike: whatever depends on the kind alone is worked out once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from gpusage_hooks.types import Workload
from gpusage_hooks.units import WHOLE_PERCENT

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
UNSAID = Workload()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Jobs that are alike.

    Attributes:
        name: For people.
        model: What the advisor reads, or the key of a card of the zoo; ``None`` where the trace has no model.
        workload: How the model is run.
        gpu_type: The site's name of the GPU type that the jobs insist on.
        share_percent: The part of one GPU that the jobs ask for themselves; 100 where they ask for whole ones.
    """

    name: str
    model: str | None = None
    workload: Workload = UNSAID
    gpu_type: str | None = None
    share_percent: int = WHOLE_PERCENT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Jobs:
    """Jobs in the order of their submission; each column has one entry per job.

    Attributes:
        ids: In the manager's own form.
        submit_s: Seconds since any one moment.
        work_s: How long the job runs alone on whole GPUs on which its kind has speed 1.
        limit_s: Its time limit, by which backfill plans; nothing ends a job at it.
        gpu_count: GPUs that it asks for, at least 1; 1 where it asks for a part of one.
        kind: Index into *kinds*.
        user: Index into *users*.
    """

    ids: Sequence[str]
    submit_s: FloatArray
    work_s: FloatArray
    limit_s: FloatArray
    gpu_count: IntArray
    kind: IntArray
    user: IntArray
    kinds: tuple[Kind, ...]
    users: tuple[str, ...]

    def arrivals(self) -> Iterator[tuple[float, list[int]]]:
        """Yield each time at which jobs come, with these jobs."""
        times = self.submit_s.tolist()
        for now_s, group in groupby(range(len(times)), key=times.__getitem__):
            yield now_s, [*group]

    def __len__(self) -> int:
        return len(self.submit_s)
