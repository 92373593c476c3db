"""Who gets the new GPUs, scored by the share of the attainable gain."""

from __future__ import annotations

import pytest

from gpusage_lab.seeds import takayama_cluster


def test_a_perfect_order_saves_more_than_any_ranking_and_chance_less() -> None:
    perfect, at_random, ways = takayama_cluster.rankings()
    assert perfect == pytest.approx(7.36, abs=0.01)  # of the slides' nine times, one GPU of each kind always busy
    assert at_random.mean() < min(way.saved for way in ways)
    assert max(way.saved for way in ways) < perfect
    observed = next(way for way in ways if way.name == "observed utilization")
    assert observed.score >= 80
