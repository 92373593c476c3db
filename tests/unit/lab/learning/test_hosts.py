"""A campaign's host is told by some of its runs, and tells how busy the others were."""

from __future__ import annotations

import numpy as np
import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.times.activity import GREATEST_SHARE
from gpusage_hooks.types import Workload
from gpusage_lab.learning.hosts import DOUBT, USUAL, Host, Loads, fit_host, held_out, load_of, percents
from graphs import convolution_graph

SLOW = Host(launch_s=80e-6, kernel_s=20e-6, step_s=3e-4, sample_s=8e-6, element_s=2e-9, copied_s=1e-9)


def loads(count: int = 400) -> Loads:
    """Return runs of small and large models at many batch sizes."""
    random = np.random.default_rng(0)
    samples = random.integers(1, 1024, count).astype(float)
    busy_s, launches = np.exp(random.uniform(-9, -3, count)), random.integers(10, 300, count).astype(float)
    return Loads(busy_s, launches, samples, samples * random.integers(4, 4096, count))


def test_a_host_that_nobody_saw_is_a_usual_one() -> None:
    nothing = Loads(*np.zeros((4, 0)))
    assert fit_host(nothing, np.zeros(0)) == pytest.approx(USUAL)
    assert len(USUAL) == len(DOUBT)


def test_what_a_host_takes_is_found_again_and_told_of_other_families() -> None:
    runs = loads()
    measured = percents(SLOW, runs)
    families = ["even" if number % 2 else "odd" for number in range(len(measured))]
    assert held_out(runs, measured, families) == pytest.approx(measured, rel=0.1)
    assert percents(USUAL, runs) != pytest.approx(measured, rel=0.3)


def test_a_share_of_the_gpu_is_never_above_the_greatest() -> None:
    nothing = Host(*[0.0] * len(USUAL))
    assert percents(nothing, loads()).max() == pytest.approx(100.0 * GREATEST_SHARE)
    assert percents(SLOW, loads()).min() > 0


def test_without_data_a_larger_batch_never_lowers_it_and_with_data_it_may() -> None:
    sizes = np.array([1.0, 8.0, 64.0, 512.0, 4096.0])
    grows = Loads(1e-3 + 1e-6 * sizes, np.full(5, 100.0), sizes, 1e4 * sizes)
    without = SLOW._replace(sample_s=0.0, element_s=0.0)
    assert (np.diff(percents(without, grows)) > 0).all()
    assert percents(SLOW, grows)[-1] < percents(SLOW, grows)[0]


def test_the_loads_of_a_run_are_its_own() -> None:
    analysis = WorkloadAnalysis(convolution_graph(), Workload(batch_size=4))
    gpu = builtin_catalogue().find("a100")
    busy_s, launches, samples, elements = load_of(analysis, gpu)
    assert busy_s == analysis.timing([gpu]).busy_s[0]
    assert samples == 4.0
    assert elements % 4 == pytest.approx(0.0, abs=1e-6)
    assert launches > len(convolution_graph().nodes)
