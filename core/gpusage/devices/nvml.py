"""The GPUs of this machine by NVML, and their rows of the catalogue."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpusage.devices.catalogue import Catalogue
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Gpu

_MEMORY_SUFFIX = re.compile(r"-\d+gb$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGpu:
    """One GPU of this machine, or one of its MIG slices.

    Attributes:
        index: NVML's index; a slice has that of its GPU.
        nvml_name: NVML's name.
        gpu: Its row of the catalogue, ``None`` if there is none.
    """

    index: int
    nvml_name: str
    memory_bytes: int
    gpu: Gpu | None


def local_gpus(catalogue: Catalogue) -> tuple[LocalGpu, ...]:
    """Return this machine's GPUs; of a GPU with MIG slices, the slices.

    Raises:
        DeviceError: NVML is not installed, finds no driver, or does not answer.
    """
    try:
        import pynvml  # type: ignore[import-untyped,unused-ignore]  # optional, and slow to import
    except ImportError as error:
        message = (
            "Command 'gpus --local' must find the package nvidia-ml-py; got none. Install it: pip install nvidia-ml-py."
        )
        raise DeviceError(message) from error

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DeviceError(_nvml_error_message(error)) from error
    try:
        local = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            for device in _devices(pynvml, index):
                name = pynvml.nvmlDeviceGetName(device)  # bytes in older releases
                text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
                total = int(pynvml.nvmlDeviceGetMemoryInfo(device).total)
                row = row_of(text, total, catalogue)
                local.append(LocalGpu(index=index, nvml_name=text, memory_bytes=total, gpu=row))
        return tuple(local)
    except pynvml.NVMLError as error:
        raise DeviceError(_nvml_error_message(error)) from error
    finally:
        pynvml.nvmlShutdown()


def _devices(nvml: Any, index: int) -> list[Any]:  # a module without types
    """Return the handles of the MIG slices of a GPU, else the handle of the GPU, which may be too old for MIG."""
    whole = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        is_mig, _ = nvml.nvmlDeviceGetMigMode(whole)
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(whole) if is_mig else 0
    except nvml.NVMLError:
        return [whole]

    slices = []
    for number in range(count):
        with suppress(nvml.NVMLError):  # fewer slices than there could be
            slices.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, number))
    return slices or [whole]


def row_of(nvml_name: str, memory_bytes: int, catalogue: Catalogue) -> Gpu | None:
    """Return the row of the GPU that NVML calls *nvml_name*, ``None`` if there is none.

    NVML has one name for some GPUs of different memory (``NVIDIA GH200 480GB``): of the rows whose names differ in the
    memory alone, the one with the nearest memory counts.
    """
    try:
        row = catalogue.find(nvml_name)
    except DeviceError:
        return None
    variants = [gpu for gpu in catalogue if _name_without_memory(gpu) == _name_without_memory(row)]
    return min(variants, key=lambda gpu: abs(gpu.memory_bytes - memory_bytes))


def _name_without_memory(gpu: Gpu) -> str:
    return _MEMORY_SUFFIX.sub("", gpu.name)


def _nvml_error_message(error: Exception) -> str:
    return (
        f"NVML must answer for the GPUs of this machine; got '{error}'. "
        "Install or start the NVIDIA driver, or name a GPU: gpusage predict MODEL --gpu a100."
    )
