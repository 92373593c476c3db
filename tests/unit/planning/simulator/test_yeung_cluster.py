"""Yeung's cluster on a made-up table of pairs: where jobs do not hurt each other, packing must gain."""

from __future__ import annotations

import numpy as np
import pytest

from gpusage.decisions.advisor import make_advisor
from gpusage_hooks.types import Workload
from gpusage_lab.seeds import yeung_cluster
from gpusage_lab.seeds.pair_truth import PairTruth
from gpusage_planning.simulator.contract import Kind, Tenant
from gpusage_planning.zoo import load_zoo

KEYS = ("gavel:resnet18@32", "gavel:lm@35", "gavel:recommendation@20108")


def truth(slowdown: float) -> PairTruth:
    """Return jobs that each use a fifth of a GPU and have this speed beside another."""
    advisor = make_advisor()
    gpu = advisor.catalogue.find("v100")
    needs = tuple(advisor.predict(load_zoo().graph(key), Workload(batch_size=16), [gpu])[0] for key in KEYS)
    return PairTruth(
        name="made up",
        gpu=gpu,
        kinds=tuple(Kind(name=key) for key in KEYS),
        needs=needs,
        observed=needs,
        utilization=np.full(3, 0.2),
        memory=np.full(3, 1e9),
        pair_throughputs=np.full((3, 3), slowdown),
        busy=np.full((3, 3), np.nan),
    )


@pytest.mark.parametrize(("slowdown", "gains"), [(1.0, True), (0.4, False)])
def test_packing_gains_where_jobs_do_not_hurt_each_other_and_loses_where_they_do(
    monkeypatch: pytest.MonkeyPatch, *, slowdown: float, gains: bool
) -> None:
    monkeypatch.setitem(yeung_cluster.TRUTHS, "made up", lambda *_: truth(slowdown))
    outcomes = {one.policy: one for one in yeung_cluster.experiment(None, "made up")}
    assert outcomes[yeung_cluster.SLOTS].makespan_gain == 0
    assert (outcomes[yeung_cluster.PERFECT].makespan_gain > 0.3) is gains
    assert outcomes[yeung_cluster.OURS_PERFECT].worst_makespan_gain >= (0.3 if gains else 0.0)
    assert outcomes[yeung_cluster.REACTIVE].jct_s > outcomes[yeung_cluster.PERFECT].jct_s


def test_the_delays_of_three_jobs_add_up() -> None:
    """At 0.5 beside each of two others, a step takes 1 + 1 + 1 times as long."""
    together = truth(0.5).colocation_of([Tenant(0), Tenant(1), Tenant(2)], 0)
    assert together.speeds == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert together.utilization == pytest.approx(1 - 0.8**3)
