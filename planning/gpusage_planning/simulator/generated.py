"""Jobs drawn by chance, with sizes and times as in published traces of GPU clusters.

Most jobs ask for one GPU, run times spread over orders of magnitude, and users are unequal. The shares are round
figures near those of Philly and Helios, not fitted to them.

Source:
    Jeon et al., USENIX ATC 2019 (Philly); Hu et al., SC 2021 (Helios).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.simulator.jobs import Jobs, Kind

GPU_COUNTS, GPU_SHARES = (1, 2, 4, 8), (0.87, 0.05, 0.04, 0.04)
MEDIAN_S, SPREAD = 600.0, 1.8
"""Of the run time: a logarithmic normal distribution."""
SHORTEST_S, LONGEST_S = 30.0, 7 * 86400.0
USERS = 50


def generated(count: int, kinds: Sequence[Kind], fleet: Fleet, seed: int, load: float = 0.9) -> Jobs:
    """Return *count* jobs that arrive by chance and keep the GPUs of *fleet* busy to *load* of their time.

    Args:
        count: At least 1.
        kinds: Drawn evenly.
        fleet: No job asks for more GPUs than each of its types has.
        seed: The same one gives the same jobs.
        load: GPU time that jobs ask for over what there is.
    """
    generator = np.random.default_rng(seed)
    work_s = np.clip(MEDIAN_S * np.exp(SPREAD * generator.standard_normal(count)), SHORTEST_S, LONGEST_S)
    gpus = np.minimum(
        generator.choice(GPU_COUNTS, count, p=GPU_SHARES), min(one.gpu_count for one in fleet.types)
    ).astype(np.int32)
    gaps = generator.exponential(1.0, count)
    gaps *= float((work_s * gpus).sum()) / (fleet.gpu_count * load * gaps.sum())
    weights = 1.0 / np.arange(1, USERS + 1)
    return Jobs(
        ids=range_ids(count),
        submit_s=np.cumsum(gaps) - gaps[0],
        work_s=work_s,
        limit_s=work_s,
        gpu_count=gpus,
        kind=generator.integers(len(kinds), size=count).astype(np.int32),
        user=generator.choice(USERS, count, p=weights / weights.sum()).astype(np.int32),
        kinds=tuple(kinds),
        users=tuple(f"user{number}" for number in range(1, USERS + 1)),
    )


def range_ids(count: int) -> list[str]:
    """Return the ids 1 to *count*."""
    return [str(number) for number in range(1, count + 1)]
