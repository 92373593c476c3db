from __future__ import annotations

from ctypes import CDLL
from types import SimpleNamespace

import pytest

from gpusage.devices.catalogue import builtin_catalogue, describe_gpus
from gpusage.devices.nvml import _devices, local_gpus, row_of
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Gpu
from gpusage_hooks.units import GB


def driver_is_here() -> bool:
    try:
        CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(driver_is_here(), reason="this machine has the driver")
def test_without_a_driver_one_sentence_says_so() -> None:
    with pytest.raises(DeviceError, match="Install or start the NVIDIA driver") as caught:
        local_gpus(builtin_catalogue())
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not driver_is_here(), reason="this machine has no driver")
def test_the_gpus_of_this_machine_are_listed_in_order() -> None:
    actual = local_gpus(builtin_catalogue())
    assert [gpu.index for gpu in actual] == list(range(len(actual)))
    assert all(gpu.memory_bytes > GB for gpu in actual)


@pytest.mark.parametrize("gpu", describe_gpus(), ids=lambda gpu: gpu.name)
def test_every_row_is_found_by_its_own_names_and_memory(gpu: Gpu) -> None:
    for name in (gpu.name, *gpu.aliases):
        assert row_of(name, gpu.memory_bytes, builtin_catalogue()) is gpu


def test_memory_decides_between_rows_that_nvml_calls_alike() -> None:
    row = row_of("NVIDIA GH200 480GB", 150 * GB, builtin_catalogue())
    assert row is not None
    assert row.name == "gh200-144gb"


def test_memory_never_makes_another_gpu_of_it() -> None:
    row = row_of("NVIDIA GeForce RTX 3090", 99 * GB, builtin_catalogue())
    assert row is not None
    assert row.name == "rtx-3090"


def test_a_gpu_without_a_row_has_none() -> None:
    assert row_of("NVIDIA Graphics Device", 8 * GB, builtin_catalogue()) is None


class RefusedError(Exception):
    """What NVML raises."""


def _mig_mode(handle: str) -> tuple[int, int]:
    if "V100" in handle:
        raise RefusedError
    return 1, 1


def _slice(handle: str, number: int) -> str:
    if number > 1:
        raise RefusedError
    return f"{handle} MIG {('3g.20gb', '1g.5gb')[number]}"


ONE_CUT_ONE_OLD = SimpleNamespace(
    NVMLError=RefusedError,
    nvmlDeviceGetHandleByIndex=("NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB").__getitem__,
    nvmlDeviceGetMigMode=_mig_mode,
    nvmlDeviceGetMaxMigDeviceCount=lambda _: 7,
    nvmlDeviceGetMigDeviceHandleByIndex=_slice,
)
"""An NVML with an A100 in two slices, and a GPU that is too old for any; a handle is a name."""


def test_slices_stand_in_place_of_a_gpu_that_is_cut() -> None:
    actual = [name for index in (0, 1) for name in _devices(ONE_CUT_ONE_OLD, index)]
    rows = [row_of(name, 5 * GB, builtin_catalogue()) for name in actual]
    assert [row.name for row in rows if row] == ["a100-sxm4-40gb:3g.20gb", "a100-sxm4-40gb:1g.5gb", "v100-sxm2-16gb"]
