"""How much of a known step the GPU works."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.decisions.advisor import make_advisor
from gpusage.predictors.artifacts import HostUncertainty
from gpusage.predictors.sharing.host import gpu_time_shares
from gpusage_hooks.types import Mode, SoloRun, Workload
from graphs import chain, node

DOUBT = HostUncertainty(launch_s=50e-6, host=0.3, own=0.2)
SECONDS = st.floats(1e-6, 1e3)


def working(busy_s: float, step_s: float, kernel_count: float) -> float:
    return float(gpu_time_shares(np.array([busy_s]), np.array([step_s]), np.array([kernel_count]), DOUBT)[0])


def test_a_step_as_long_as_its_host_takes_to_launch_its_kernels_waits_for_the_host() -> None:
    # 400 kernels of 50 us: the host's 20 ms, of which the GPU works 5
    assert working(5e-3, 20e-3, 400) == pytest.approx(0.25, abs=0.02)


def test_a_step_that_launches_cannot_explain_is_the_gpu_s_own() -> None:
    # 400 kernels take a host 20 ms; the GPU's time was predicted too short by a third
    assert working(200e-3, 300e-3, 400) > 0.95


def test_a_step_far_longer_than_both_waits_for_something_else_such_as_a_loader() -> None:
    assert working(5e-3, 500e-3, 100) == pytest.approx(0.01, rel=0.1)


def test_a_step_shorter_than_predicted_keeps_the_gpu_busy() -> None:
    assert working(100e-3, 60e-3, 100) > 0.95


def test_a_model_without_kernels_waits_for_its_host() -> None:
    assert 0.0 < working(0.0, 60e-3, 0) < 0.01


def test_a_known_step_of_a_model_of_views_alone_gives_numbers() -> None:
    views = chain("views", [node("Reshape", [(-1, 3, 8, 8)], (-1, 192))], (-1, 3, 8, 8))
    advisor = make_advisor()
    gpus = [advisor.catalogue.find(name) for name in ("v100", "a100")]
    modes: tuple[Mode, ...] = ("train", "infer")
    for mode in modes:
        run = Workload(mode=mode, alone=SoloRun(step_time_s=0.06, gpu=gpus[0].name))
        for need in advisor.predict(views, run, gpus):
            figures = (need.step_time_s, need.gpu_utilization, need.sm_activity, need.dram_activity)
            assert all(0 <= one.low <= one.value <= one.high < 1 for one in figures)


@given(SECONDS, SECONDS, st.floats(1, 1e5))
def test_a_gpu_works_a_part_of_the_step(busy_s: float, step_s: float, kernel_count: float) -> None:
    assert 0.0 < working(busy_s, step_s, kernel_count) <= 1.0
