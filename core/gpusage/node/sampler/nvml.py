"""NVML's counters of a GPU: the built-in plugin of `read_gpu`.

A counter that a GPU or a driver lacks is unknown, and never zero. Of a slice (MIG) the driver's own utilization is
none; since Hopper the hardware's counters (GPM) have it for each instance, before there is memory alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, TypeVar

from gpusage_hooks import hookimpl
from gpusage_hooks.types import GpuReading

GPM_METRICS = {"gpu_utilization": 1, "sm_activity": 2, "dram_activity": 10}
"""Numbers of nvmlGpmMetricId_t; Hopper and later GPUs have these counters. The first is the time with any work."""
_TYPES: Mapping[int, str] = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
"""Members of nvmlValue_t by nvmlValueType_t."""
_PROCESS_KINDS = ("Compute", "MPSCompute")
Nvml = Any
"""The module pynvml; it has no types."""
T = TypeVar("T")


@hookimpl(trylast=True)
def read_gpu(device: str) -> GpuReading | None:
    """Read the counters of *device* from NVML; ``None`` where NVML does not know the GPU."""
    gauge = _gauge(device)
    return gauge.read() if gauge else None


class Gauge:
    """A GPU or slice that NVML knows.

    Args:
        nvml: The module, initialized.
        handle: NVML's handle of the device.
    """

    def __init__(self, nvml: Nvml, handle: Any) -> None:  # a pointer of NVML's
        self._nvml = nvml
        self._handle = handle
        name = nvml.nvmlDeviceGetName(handle)
        self._name = name.decode(errors="replace") if isinstance(name, bytes) else name
        self._newest_us = 0
        self._gpm: Any = None

        # The counters of an instance are asked of its GPU, by the instance's number.
        self._board, self._instance = handle, None
        if self._value_or_none(lambda: nvml.nvmlDeviceIsMigDeviceHandle(handle).value):
            self._board = self._value_or_none(lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
            self._instance = self._value_or_none(lambda: nvml.nvmlDeviceGetGpuInstanceId(handle))
        support = self._value_or_none(lambda: nvml.nvmlGpmQueryDeviceSupport(self._board).isSupportedDevice)
        is_known = self._board is handle or self._instance is not None
        self._has_gpm = bool(support) and is_known

    def read(self) -> GpuReading:
        """Return the counters' values now."""
        energy_mj = self._value_or_none(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        activities, utilization = self._activities(), self._utilization()
        return GpuReading(
            name=self._name,
            gpu_utilization=activities.get("gpu_utilization") if utilization is None else utilization,
            sm_activity=activities.get("sm_activity"),
            dram_activity=activities.get("dram_activity"),
            # NVML counts millijoules.
            energy_j=None if energy_mj is None else energy_mj / 1000,
            process_memory_bytes=self._processes(),
        )

    def _value_or_none(self, ask: Callable[[], T]) -> T | None:
        """Return the result of *ask*; ``None`` where this device or driver has no such counter."""
        try:
            return ask()
        except (self._nvml.NVMLError, AttributeError):  # AttributeError: a pynvml that is older than the call
            return None

    def _utilization(self) -> float | None:
        """Return the mean of the driver's own samples since the last reading, else its latest."""
        # The driver samples several times a second; the latest rate alone would miss most of a pause of seconds.
        samples = self._value_or_none(self._samples) or []
        if samples:
            return sum(samples) / len(samples) / 100
        rates = self._value_or_none(lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle))
        return None if rates is None else rates.gpu / 100

    def _samples(self) -> list[float]:
        nvml = self._nvml
        # A value is a union: its kind names the member that holds it.
        kind, samples = nvml.nvmlDeviceGetSamples(self._handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, self._newest_us)
        fresh = [sample for sample in samples if sample.timeStamp > self._newest_us]
        self._newest_us = max((sample.timeStamp for sample in fresh), default=self._newest_us)
        return [float(getattr(sample.sampleValue, _TYPES[kind])) for sample in fresh] if kind in _TYPES else []

    def _processes(self) -> dict[int, int | None]:
        """Return the memory of each process on the GPU, clients of MPS included."""
        memory_bytes: dict[int, int | None] = {}
        for kind in _PROCESS_KINDS:
            # The newest call that driver and package have in common; older ones fill other structures.
            for version in ("_v3", "_v2"):
                name = f"nvmlDeviceGet{kind}RunningProcesses{version}"
                running = self._value_or_none(partial(self._call, name))
                if running is not None:
                    memory_bytes |= {int(item.pid): item.usedGpuMemory for item in running}
                    break
        return memory_bytes

    def _call(self, name: str) -> Sequence[Any]:
        running: Sequence[Any] = getattr(self._nvml, name)(self._handle)
        return running

    def _activities(self) -> dict[str, float]:
        """Return the hardware's counters since the last reading; empty at the first."""
        if not self._has_gpm:
            return {}

        # A metric is a difference of two samples, so each sample is the end of one interval and the start of the next.
        first, self._gpm = self._gpm, self._value_or_none(self._gpm_sample)
        if first is None:
            return {}
        with suppress(self._nvml.NVMLError):
            if self._gpm is not None:
                return self._gpm_between(first, self._gpm)
        # NVML's samples are C memory, which Python does not free.
        self._value_or_none(lambda: self._nvml.nvmlGpmSampleFree(first))
        return {}

    def _gpm_sample(self) -> Any:  # a pointer of NVML's
        sample = self._nvml.nvmlGpmSampleAlloc()
        if self._instance is None:
            return self._nvml.nvmlGpmSampleGet(self._handle, sample)
        return self._nvml.nvmlGpmMigSampleGet(self._board, self._instance, sample)

    def _gpm_between(self, first: Any, last: Any) -> dict[str, float]:  # pointers of NVML's
        nvml = self._nvml
        metrics_request = nvml.c_nvmlGpmMetricsGet_t()
        metrics_request.version, metrics_request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM_METRICS)
        metrics_request.sample1, metrics_request.sample2 = first, last
        for place, number in enumerate(GPM_METRICS.values()):
            metrics_request.metrics[place].metricId = number

        answer = nvml.nvmlGpmMetricsGet(metrics_request)
        self._value_or_none(lambda: nvml.nvmlGpmSampleFree(first))

        # Percent; each metric has a status of its own, for a GPU may have only some of them.
        values = {name: answer.metrics[place] for place, name in enumerate(GPM_METRICS)}
        return {name: value.value / 100 for name, value in values.items() if value.nvmlReturn == 0}


@cache
def _gauge(device: str) -> Gauge | None:
    """Return the gauge of *device*; ``None``, too, is cached, so that the driver looks for a device once."""
    try:
        import pynvml  # type: ignore[import-untyped,unused-ignore]  # only where a job is sampled
    except ImportError:
        return None

    try:
        pynvml.nvmlInit()
        # A manager names a GPU by its index, or by a UUID, which a slice always has.
        if device.isascii() and device.isdigit():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(device))
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(device)
        return Gauge(pynvml, handle)
    except (pynvml.NVMLError, ctypes.ArgumentError):
        return None
