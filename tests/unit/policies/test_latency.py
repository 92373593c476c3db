from __future__ import annotations

import math
import random

import pytest

from gpusage.policies.latency import REQUESTS_IN_TIME, latency_s, waited_services
from gpusage_hooks.types import Slo, Workload

REQUESTS = 200_000


def simulated(utilization: float) -> float:
    """Return what 95 of 100 requests wait at most, in services, by playing them (Lindley's recursion)."""
    chance, wait, waits = random.Random(12), 0.0, []  # not for cryptography
    for _ in range(REQUESTS):
        waits.append(wait)
        wait = max(0.0, wait + 1 - chance.expovariate(utilization))
    return sorted(waits)[int(REQUESTS_IN_TIME * REQUESTS)]


@pytest.mark.parametrize("utilization", [0.03, 0.1, 0.3, 0.5, 0.7, 0.8])
def test_the_wait_is_that_of_played_requests(utilization: float) -> None:
    assert waited_services(utilization) == pytest.approx(simulated(utilization), rel=0.08)


def test_a_busier_server_never_makes_the_wait_shorter() -> None:
    waits = [waited_services(number / 10_000) for number in range(10_001)]
    assert waits == sorted(waits)
    assert waits[-1] == math.inf


def test_without_a_rate_nothing_waits() -> None:
    assert latency_s(0.2, Workload(mode="infer", slo=Slo(latency_s=1.0))) == 0.2


def test_a_batch_is_one_service_for_all_of_its_requests() -> None:
    """At 0.2 s a step, 20 requests/s keep batches of 8 busy for 0.5 of the time, and single ones never end."""
    busy = Slo(latency_s=1.0, rate_per_s=20.0)
    assert latency_s(0.2, Workload(batch_size=8, slo=busy)) == 0.2 * (1 + waited_services(0.5))
    assert latency_s(0.2, Workload(slo=busy)) == math.inf
