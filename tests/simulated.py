"""Jobs of simulations, as property tests draw them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from gpusage_lab.simulator.jobs import Jobs, Kind

KINDS = 3


@st.composite
def traces(draw: st.DrawFn, *, most_jobs: int = 40, users: int = 1) -> Jobs:
    """Draw some jobs of `KINDS` kinds, several of which may come at once."""
    count = draw(st.integers(1, most_jobs))

    def column(values: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(values, min_size=count, max_size=count))

    work_s = np.array(column(st.sampled_from([1.0, 5.0, 20.0, 33.5, 100.0])))
    return Jobs(
        ids=[str(number) for number in range(count)],
        submit_s=np.cumsum(column(st.sampled_from([0.0, 0.0, 1.0, 30.0]))),
        work_s=work_s,
        limit_s=work_s * np.array(column(st.sampled_from([0.5, 1.0, 3.0]))),
        gpu_count=np.array(column(st.sampled_from([1, 1, 1, 2, 3])), dtype=np.int32),
        kind=np.array(column(st.integers(0, KINDS - 1)), dtype=np.int32),
        user=np.array(column(st.integers(0, users - 1)), dtype=np.int32),
        kinds=tuple(Kind(name=str(number)) for number in range(KINDS)),
        users=tuple(str(number) for number in range(users)),
    )
