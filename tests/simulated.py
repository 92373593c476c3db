"""Jobs of simulations: drawn, as property tests have them, or of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from gpusage_planning.simulator.contract import Jobs, Kind
from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.simulator.formats import find_format
from gpusage_planning.simulator.trace import Trace, trace_of

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


def read_trace(path: Path, fleet: Fleet) -> Trace:
    """Return the jobs of a file with our own columns."""
    read = find_format(path, "table").read
    assert read is not None
    return trace_of(read(path), str(path), fleet)
