"""What a mark says of the nodes that its job avoids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.store.annotation import JobAnnotation, parse_annotation
from gpusage_slurm.jobs.placement import avoided_nodes_in, placement_in, readmitted_mark


def mark(after: str) -> JobAnnotation:
    annotation = parse_annotation(f"gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> {after} | why")
    assert annotation is not None
    return annotation


@given(
    st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True), min_size=1, max_size=12),
    st.sampled_from(("", "constraint v100", "constraint (v100|a100)&ib", "prefer h100")),
)
def test_what_is_written_is_read(names: list[str], place: str) -> None:
    after = ", ".join(filter(None, ("gres/mps:40", f"avoid {','.join(names)}", place)))
    assert avoided_nodes_in(mark(after)) == tuple(names)
    assert placement_in(mark(after)) == place
    assert readmitted_mark(mark(after), "room").after == ", ".join(filter(None, ("gres/mps:40", place)))


@pytest.mark.parametrize("after", ["gres/mps:40", "gres/mps:40, constraint avoid", "gres/gpu:1, prefer avoid"])
def test_a_mark_without_it_avoids_nothing(after: str) -> None:
    assert avoided_nodes_in(mark(after)) == ()
    assert placement_in(mark(after)) == after.partition(", ")[2]
    assert avoided_nodes_in(None) == ()
