"""What a summary says of a model."""

from __future__ import annotations

from gpusage.graphs.summary import summary
from unit.graphs.card.test_text import GRAPH


def test_a_summary_counts_kinds_and_operators() -> None:
    said = summary(GRAPH)
    assert (said["node_count"], said["kind_count"], said["op_types"]) == (3, 2, {"Relu": 2, "Conv": 1})
