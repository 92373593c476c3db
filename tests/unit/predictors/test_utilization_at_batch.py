"""A utilization at one batch tells the wait, and so the utilization at another."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.decisions.advisor import Advisor
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.plugins.loading import make_hooks
from gpusage.predictors.sharing.host import MAX_STEP_GAPS, StepAccount, utilization_at_batch
from gpusage_hooks.types import GpuNeed, SoloRun, Workload
from graphs import convolution_graph

GRAPH = convolution_graph(depth=16, channels=128)
GPUS = [builtin_catalogue().find(name) for name in ("v100", "h100")]
PLAIN = Advisor(hooks=make_hooks(), catalogue=builtin_catalogue())
RUN = Workload(batch_size=64)
SECONDS = st.floats(1e-6, 10.0)
SHARES = st.floats(1e-3, 1.0)


def needs_at(batch_size: int, utilization: float, seen_at: int | None) -> tuple[GpuNeed, ...]:
    """Return the needs of a job whose utilization was seen at another batch."""
    alone = SoloRun(utilization=utilization, batch_size=seen_at)
    return PLAIN.predict(GRAPH, replace(RUN, batch_size=batch_size, alone=alone), GPUS)


def account(busy_s: float, waiting_s: float, gaps_s: float) -> StepAccount:
    """Return the account of one GPU."""
    return StepAccount(np.array([busy_s]), np.array([busy_s + waiting_s]), np.array([gaps_s]))


def test_a_utilization_of_the_same_batch_is_what_it_is() -> None:
    assert needs_at(64, 0.3, 64) == needs_at(64, 0.3, None)
    assert needs_at(64, 0.3, 64)[0].gpu_utilization.low == 0.3


def test_a_short_wait_is_of_each_step_so_that_larger_batches_keep_the_gpu_busier() -> None:
    (usual, _) = PLAIN.predict(GRAPH, replace(RUN, batch_size=8), GPUS)
    reported = 0.8 * usual.gpu_utilization.value
    shares = [needs_at(batch_size, reported, 8)[0].gpu_utilization.value for batch_size in (8, 16, 32, 64, 128)]
    assert shares[0] == reported
    assert all(before < after for before, after in pairwise(shares))


def test_a_full_gpu_at_a_large_batch_says_little_of_a_small_one() -> None:
    """It said that a batch of one fills the GPU, too, and was sure of it."""
    small = needs_at(1, 1.0, 512)[1].gpu_utilization
    assert small.low < 0.9
    assert small.low <= small.value <= small.high


def test_a_long_wait_is_for_data_so_that_no_batch_keeps_the_gpu_busy() -> None:
    small, large = needs_at(64, 0.02, 64)[0].gpu_utilization, needs_at(1024, 0.02, 64)[0].gpu_utilization
    assert small.value == 0.02
    assert large.value < 0.06
    assert large.low <= large.value <= large.high


def test_the_note_says_which_batch_the_figure_is_of_and_the_rest_follows() -> None:
    (need, _), (plain, _) = needs_at(64, 0.2, 8), PLAIN.predict(GRAPH, RUN, GPUS)
    assert need.notes[-1] == "The GPU utilization is known from what you said of batch 8."
    busier = need.gpu_utilization.value / plain.gpu_utilization.value
    assert need.sm_activity.value == pytest.approx(plain.sm_activity.value * busier)


@given(SHARES, SECONDS, SECONDS, SECONDS, st.integers(1, 1000))
def test_one_and_the_same_batch_gives_the_figure_back(
    known: float, busy_s: float, waiting_s: float, gaps_s: float, most: int
) -> None:
    of_it = account(busy_s, waiting_s, gaps_s)
    assert utilization_at_batch(known, of_it, of_it, 1.0, float(most))[0] == pytest.approx(known, rel=1e-6)


@given(SHARES, SECONDS, SECONDS, SECONDS, st.lists(st.floats(1.0, 10.0), min_size=2, max_size=6))
def test_at_the_same_host_a_larger_batch_whose_wait_is_of_each_step_never_lowers_it(
    known: float, busy_s: float, waiting_s: float, gaps_s: float, growths: list[float]
) -> None:
    """And a share of the GPU is never above 1."""
    there = account(busy_s, waiting_s, gaps_s)
    reported = [
        float(utilization_at_batch(known, there, account(busy_s * growth, waiting_s, gaps_s), growth, np.inf)[0])
        for growth in sorted(growths)
    ]
    assert all(after >= before - 1e-9 for before, after in pairwise(reported))
    assert max(reported) <= 1.0


@given(SHARES, SECONDS, SECONDS, SECONDS, st.floats(0.01, 100.0))
def test_the_point_lies_between_all_of_each_step_and_all_for_each_sample(
    known: float, busy_s: float, waiting_s: float, gaps_s: float, growth: float
) -> None:
    there, here = account(busy_s, waiting_s, gaps_s), account(busy_s * growth, waiting_s, gaps_s)
    first, point, last = (
        utilization_at_batch(known, there, here, growth, most)[0] for most in (0.0, MAX_STEP_GAPS, np.inf)
    )
    assert min(first, last) <= point * (1 + 1e-9)
    assert point <= max(first, last) * (1 + 1e-9)
