"""The part of a GPU's memory that a share may use."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.devices.shares import RESERVE_MIB, RESERVE_PER_THOUSAND, memory_cap_bytes
from gpusage.node.dividing import WALL
from gpusage_hooks.units import GIB, MIB

JAVA = Path(__file__).parents[3] / "plugins/yarn/java/src/main/java/org/gpusage/yarn/GpuMemory.java"


def test_a_share_may_use_its_part_of_what_the_reserve_leaves() -> None:
    """81,559 MiB, as NVML shows an H100, less 256 and less 1,223."""
    assert memory_cap_bytes(81_559 * MIB, 25) == 20_020 * MIB
    assert memory_cap_bytes(256 * MIB, 50) == 0


@pytest.mark.parametrize("nvml_mib", [81_559, 24_576, 23_028, 16_384, 15_360])
def test_the_reserve_covers_what_the_driver_keeps(nvml_mib: int) -> None:
    """NVML shows a tenth of a percent to two more than CUDA can give out: H100, A30, A10G, V100, T4."""
    names = {81_559: "h100", 24_576: "a30", 23_028: "a10g", 16_384: "v100-sxm2-16gb", 15_360: "t4"}
    usable = builtin_catalogue().find(names[nvml_mib]).memory_bytes
    assert memory_cap_bytes(nvml_mib * MIB, 100) <= usable - 100 * MIB


def test_nodes_keep_the_same_reserve() -> None:
    """Of Slurm, in the shell; of YARN, in Java."""
    counted = f"(total - {RESERVE_MIB} - total * {RESERVE_PER_THOUSAND} / 1000) * share / 100"
    assert counted in WALL.read_text(encoding="utf-8")
    java = JAVA.read_text(encoding="utf-8")
    assert f"long RESERVE_MIB = {RESERVE_MIB};" in java
    assert f"long RESERVE_PER_THOUSAND = {RESERVE_PER_THOUSAND};" in java


@given(st.lists(st.integers(1, 100), min_size=1, max_size=6), st.integers(0, 300 * GIB))
def test_shares_that_add_up_to_a_gpu_fit_together(percents: list[int], memory_bytes: int) -> None:
    percents = [percent for index, percent in enumerate(percents) if sum(percents[: index + 1]) <= 100]
    assert sum(memory_cap_bytes(memory_bytes, percent) for percent in percents) <= memory_bytes
