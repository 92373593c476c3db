"""What a summary says of a model."""

from __future__ import annotations

from gpusage.cli.cards.card import summarize
from unit.graphs.card.test_text import GRAPH


def test_a_summary_counts_kinds_and_operators() -> None:
    output = summarize(GRAPH)
    assert (output["node_count"], output["kind_count"], output["op_types"]) == (3, 2, {"Relu": 2, "Conv": 1})
