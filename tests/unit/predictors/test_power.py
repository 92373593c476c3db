"""Boards that have less power than their chip needs, told by the catalogue's figures."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from gpusage.devices.catalogue import Catalogue, builtin_catalogue
from gpusage.predictors.needs import predicted
from gpusage.predictors.times.kernel_times import sustained_share
from gpusage_hooks.types import Workload
from gpusage_hooks.units import TERA
from graphs import stack

CATALOGUE = builtin_catalogue()
NOTHING_KNOWN: dict[str, Any] = {"watts_per_teraflop": None, "pci_express": None, "is_measured": False}


def test_the_watts_that_a_chip_needs_are_the_median_of_its_boards_in_the_catalogue() -> None:
    boards: dict[tuple[int, int], list[float]] = {}
    for gpu in (gpu for gpu in CATALOGUE if gpu.vendor == "nvidia"):
        watts = gpu.power_limit_w * TERA / gpu.peak_flop_per_s["fp32"]
        boards.setdefault(gpu.compute_capability, []).append(watts)
    expected = {gpu.compute_capability: gpu.watts_per_teraflop for gpu in CATALOGUE if gpu.vendor == "nvidia"}
    # The step time was fitted with the median of the boards that there were then; newer boards move it by 9 % at most.
    assert {chip: median(watts) for chip, watts in boards.items()} == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("name", ["t4", "p4", "l4", "a10", "rtx-pro-6000-max-q"])
def test_a_board_of_low_power_holds_half_to_three_quarters_of_its_peak(name: str) -> None:
    assert 0.45 < sustained_share(CATALOGUE.find(name)) < 0.75


@pytest.mark.parametrize("name", ["p100-pcie-16gb", "v100-pcie-32gb", "a100-sxm4-40gb", "rtx-4090", "h100-sxm5-80gb"])
def test_a_board_of_full_power_holds_its_peak(name: str) -> None:
    assert sustained_share(CATALOGUE.find(name)) > 0.97


def test_a_site_that_lowers_the_power_limit_lowers_what_is_held() -> None:
    gpu = CATALOGUE.find("h100-sxm5-80gb")
    halved = replace(gpu, power_limit_w=gpu.power_limit_w / 2)
    assert sustained_share(halved) == pytest.approx(0.5**0.9 * 1.0, rel=0.02)


def test_a_chip_that_is_not_known_is_taken_to_hold_its_peak() -> None:
    t4 = CATALOGUE.find("t4")
    (unknown,) = Catalogue([replace(t4, name="t5", compute_capability=(7, 6), **NOTHING_KNOWN)])
    assert sustained_share(unknown) == 1.0
    (need,) = predicted(stack(64, 64, 2, 16), Workload(), [unknown])
    assert not need.familiar
    assert need.notes[-1] == (
        "The chip of t5 (compute capability 7.6) is not in the catalogue: its power limit is taken to be enough for "
        "its peak."
    )
