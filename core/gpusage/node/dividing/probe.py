"""A client's real view of its GPU under MPS, from the CUDA driver itself; runs alone, without gpusage.

The driver silently ignores a percentage without a daemon, and under static partitioning a client without a partition
cannot start: only a client can see both. This script makes no CUDA context, which would take the job's memory.

``python3 -I -S probe.py`` prints one JSON object: ``sm_count`` and ``memory_bytes`` of the first device, as this
process sees them; the environment's limits; ``trouble``, one clause, where the driver could not be asked.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping

_MULTIPROCESSOR_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT of cuda.h
_LIBRARY = "libcuda.so.1"
_NAMED = {
    "thread_percent": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "memory_limit": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "priority": "CUDA_MPS_CLIENT_PRIORITY",
    "partition": "CUDA_MPS_SM_PARTITION",
}


class DriverTroubleError(Exception):
    """A call to the CUDA driver did not succeed."""


def query_device(library: str = _LIBRARY) -> tuple[int, int]:
    """Return the SMs and the bytes of memory that this process has on its first device.

    Raises:
        DriverTroubleError: There is no such *library*, or a call of it failed.
    """
    try:
        driver = ctypes.CDLL(library)
    except OSError as error:
        message = "not read back: the node has no CUDA driver"
        raise DriverTroubleError(message) from error

    # Attributes and the memory's size need a device, but no context (cuda.h).
    device, sm_count, memory_bytes = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    _call(driver, "cuInit", ctypes.c_uint(0))
    _call(driver, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    _call(driver, "cuDeviceGetAttribute", ctypes.byref(sm_count), ctypes.c_int(_MULTIPROCESSOR_COUNT), device)
    _call(driver, "cuDeviceTotalMem_v2", ctypes.byref(memory_bytes), device)
    return sm_count.value, memory_bytes.value


def report(environment: Mapping[str, str], library: str = _LIBRARY) -> dict[str, str | int | None]:
    """Return this process's view of its device, and the limits in its *environment*."""
    seen: dict[str, str | int | None] = {name: environment.get(variable) for name, variable in _NAMED.items()}
    try:
        sm_count, memory_bytes = query_device(library)
    except DriverTroubleError as trouble:
        return {**seen, "trouble": str(trouble)}
    return {**seen, "sm_count": sm_count, "memory_bytes": memory_bytes, "trouble": ""}


def _call(driver: ctypes.CDLL, name: str, *arguments: object) -> None:
    status = getattr(driver, name)(*arguments)
    if status:
        message = f"a client cannot start: {name} ended with {status}"
        raise DriverTroubleError(message)


if __name__ == "__main__":
    json.dump(report(os.environ, *sys.argv[1:2]), sys.stdout)
