"""How long gradients take from GPU to GPU, by hand: links between boards, the host's bus, the network between hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.parallel.links import allreduce_s_per_byte, bottleneck_link
from gpusage_hooks.types import Gpu

FIND = builtin_catalogue().find
GPUS = tuple(builtin_catalogue())
COUNTS = st.integers(1, 64)


@pytest.mark.parametrize(
    ("gpu", "count", "seconds"),
    [
        # a ring of n sends 2 (n - 1) / n; each byte goes up and down, on lanes that up to 4 GPUs share
        ("t4", 2, 1.0 * 2 * 2 / 13e9),
        ("t4", 4, 1.5 * 2 * 4 / 13e9),
        ("t4", 8, 1.75 * 2 * 4 / 13e9),
        # twice the lanes' rate with PCI Express 4.0, which 2 GPUs share; once more with 5.0
        ("rtx-4090", 8, 1.75 * 2 * 2 / 26e9),
        ("h100-pcie-80gb", 8, 1.75 * 2 * 2 / 52e9),
        # NVLink: 300 GB/s one way, of which four fifths are left
        ("a100-sxm4-40gb", 8, 1.75 / (0.8 * 300e9)),
        # a bridge joins two
        ("h100-nvl-94gb", 2, 1.0 / (0.8 * 300e9)),
        ("h100-nvl-94gb", 4, 1.5 * 2 * 2 / 52e9),
        # 16 on two hosts: the network, where the bus is not slower yet; a card of 200 Gb/s for each of 8, or 400
        ("a100-sxm4-40gb", 16, 1.875 / (0.8 * 8 * 25e9)),
        ("h100-sxm5-80gb", 16, 1.875 / (0.8 * 8 * 50e9)),
        # one card of 100 Gb/s for a host
        ("v100-sxm2-32gb", 16, 1.875 / (0.8 * 12.5e9)),
        ("t4", 16, 1.875 * 2 * 4 / 13e9),
    ],
)
def test_the_slowest_link_of_a_ring_decides(gpu: str, count: int, seconds: float) -> None:
    assert allreduce_s_per_byte(FIND(gpu), count) == pytest.approx(seconds)


def test_one_gpu_sends_nothing() -> None:
    assert {allreduce_s_per_byte(gpu, 1) for gpu in GPUS} == {0.0}


def test_parts_of_a_board_have_no_links_of_their_own() -> None:
    assert allreduce_s_per_byte(FIND("a100:3g.20gb"), 2) == allreduce_s_per_byte(FIND("a100-pcie-40gb"), 2)


def test_what_decides_is_said() -> None:
    assert bottleneck_link(FIND("a100"), 8) == "the links between boards"
    assert bottleneck_link(FIND("t4"), 8) == bottleneck_link(FIND("t4"), 9) == "the host's bus"
    assert bottleneck_link(FIND("a100"), 9) == ("the network between hosts, 200 Gb/s per GPU, usual for such hosts")
    assert bottleneck_link(FIND("a100"), 9, network=6.25e9) == "the network between hosts, 50 Gb/s per GPU"


def test_a_job_or_a_site_says_what_the_network_carries_and_the_job_is_heard_first() -> None:
    a100, slow_site = FIND("a100"), replace(FIND("a100"), network_bytes_per_s=1.25e9)
    assert allreduce_s_per_byte(slow_site, 16) == pytest.approx(1.875 / (0.8 * 8 * 1.25e9))
    assert allreduce_s_per_byte(slow_site, 16, network=2.5e9) == allreduce_s_per_byte(a100, 16, network=2.5e9)
    assert allreduce_s_per_byte(slow_site, 8) == allreduce_s_per_byte(a100, 8)
    assert allreduce_s_per_byte(a100, 16, network=1e12) == pytest.approx(1.875 / (0.8 * 300e9))


@given(st.sampled_from(GPUS), COUNTS, COUNTS)
def test_more_gpus_never_take_less_time(gpu: Gpu, one: int, other: int) -> None:
    fewer, more = sorted((one, other))
    assert allreduce_s_per_byte(gpu, fewer) <= allreduce_s_per_byte(gpu, more)


@given(st.sampled_from([gpu for gpu in GPUS if gpu.link_bytes_per_s]), COUNTS)
def test_a_board_without_links_never_takes_less_time_than_the_same_with_them(linked: Gpu, count: int) -> None:
    without = replace(linked, link_bytes_per_s=None, usual_network_bytes_per_s=None)
    assert allreduce_s_per_byte(linked, count) <= allreduce_s_per_byte(without, count)


@given(COUNTS)
def test_an_older_bus_never_takes_less_time(count: int) -> None:
    each = [allreduce_s_per_byte(FIND(name), count) for name in ("h100-pcie-80gb", "rtx-4090", "t4")]
    assert each == sorted(each)
