"""The queue in order of the gain, on a simulated cluster of two generations."""

from __future__ import annotations

import numpy as np
import pytest

from gpusage.policies.generation import turn
from gpusage_lab.seeds.takayama_online import ByGain, Truth, fleet, jobs, measured
from gpusage_lab.simulator.engine import simulate


def test_new_gpus_go_first_to_who_gains_most_and_old_ones_to_who_loses_least() -> None:
    gains = [1.0, 1.5, 1.2]
    assert sorted(gains, key=lambda gain: turn(gain, newest=True)) == [1.5, 1.2, 1.0]
    assert sorted(gains, key=lambda gain: turn(gain, newest=False)) == [1.0, 1.2, 1.5]


@pytest.mark.parametrize("load", [0.7, 0.95])
def test_the_order_of_the_true_gain_is_never_worse_than_first_come(load: float) -> None:
    old, new = measured()
    truth = Truth(gains=old / new)
    even = ByGain(name="even", gains=np.ones(len(old)), ordered=False)
    best = ByGain(name="best", gains=old / new)
    first, second = (simulate(jobs(load, 0), fleet(), policy, truth).figures for policy in (even, best))
    assert second.gpu_hours < first.gpu_hours
    assert second.jct_s < first.jct_s
