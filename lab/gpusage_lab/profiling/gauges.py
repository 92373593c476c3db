"""What NVML reads of one GPU while workloads run on it: utilization, activity, memory, power, clocks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

PERIOD_S = 0.05
SETTLED_S = 0.7
"""NVML's utilization is a mean over up to this long: earlier readings of a window still see what was before it."""
GPM_METRICS = {"sm_activity": 2, "dram_activity": 10}
"""Numbers of nvmlGpmMetricId_t; hardware counters that Hopper and later GPUs give to everybody."""

Readings = dict[str, Any]
Nvml = Any
"""The module pynvml; it has no types."""


class Gauges(Protocol):
    """Watches a GPU for a while."""

    @property
    def facts(self) -> Readings:
        """The GPU and its driver, for every row."""
        ...

    def watch(self, until: float, pids: Sequence[int]) -> Readings:
        """Return at *until*, by `time.monotonic`, with what was read."""
        ...


class NoGauges:
    """A machine without a GPU."""

    facts: Readings = {"device": "cpu"}  # noqa: RUF012 - nobody writes it

    def watch(self, until: float, pids: Sequence[int]) -> Readings:
        """Wait."""
        del pids
        time.sleep(max(0.0, until - time.monotonic()))
        return {}


class NvmlGauges:
    """One GPU that NVML knows."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self._idle_bytes = int(nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        self._has_counters = self._counters_work()
        self.uuid = _text(nvml.nvmlDeviceGetUUID(self._handle))
        self._facts = {
            "device": "cuda",
            "gpu": _text(nvml.nvmlDeviceGetName(self._handle)),
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
        }

    @property
    def facts(self) -> Readings:
        """The GPU and its driver."""
        return self._facts

    def watch(self, until: float, pids: Sequence[int]) -> Readings:
        """Read every 50 ms until *until*, and the counters at both ends."""
        began = time.monotonic()
        first = self._counter_sample()
        readings: list[Readings] = []
        while (now := time.monotonic()) < until:
            reading = self._reading(pids)
            reading["is_settled"] = now - began > min(SETTLED_S, (until - began) / 2)
            readings.append(reading)
            time.sleep(max(0.0, min(PERIOD_S, until - time.monotonic())))
        return _summary(readings) | self._counters(first, self._counter_sample())

    def _reading(self, pids: Sequence[int]) -> Readings:
        nvml, handle = self._nvml, self._handle
        reading: Readings = {}
        with suppress(nvml.NVMLError):
            reading["gpu_utilization"] = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        with suppress(nvml.NVMLError):
            reading["used_bytes"] = int(nvml.nvmlDeviceGetMemoryInfo(handle).used) - self._idle_bytes
        with suppress(nvml.NVMLError):
            reading["power_w"] = nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
        with suppress(nvml.NVMLError):
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            reading["process_bytes"] = {
                item.pid: item.usedGpuMemory for item in running if item.pid in pids and item.usedGpuMemory
            }
        return reading

    def _counters_work(self) -> bool:
        try:
            return bool(self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)
        except (self._nvml.NVMLError, AttributeError):
            return False

    def _counter_sample(self) -> Any:  # a pointer of NVML's
        if not self._has_counters:
            return None
        try:
            return self._nvml.nvmlGpmSampleGet(self._handle, self._nvml.nvmlGpmSampleAlloc())
        except self._nvml.NVMLError:
            self._has_counters = False
            return None

    def _counters(self, first: Any, last: Any) -> Readings:  # pointers of NVML's
        """Return the counters between two samples, as shares; both samples are given back."""
        if first is None or last is None:
            return {}
        nvml = self._nvml
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM_METRICS)
        request.sample1, request.sample2 = first, last
        for place, number in enumerate(GPM_METRICS.values()):
            request.metrics[place].metricId = number
        try:
            answer = nvml.nvmlGpmMetricsGet(request)
            values = {name: answer.metrics[place] for place, name in enumerate(GPM_METRICS)}
            return {name: value.value / 100 for name, value in values.items() if value.nvmlReturn == 0}
        except nvml.NVMLError:
            return {}
        finally:
            for sample in (first, last):
                with suppress(nvml.NVMLError):
                    nvml.nvmlGpmSampleFree(sample)


def open_gauges(index: int) -> NvmlGauges | None:
    """Return the gauges of this machine's GPU *index*, ``None`` where there is no such GPU."""
    try:
        import pynvml  # type: ignore[import-untyped,unused-ignore]  # slow to import

        pynvml.nvmlInit()
        return NvmlGauges(pynvml, index) if index < pynvml.nvmlDeviceGetCount() else None
    except ImportError:
        return None
    except pynvml.NVMLError:
        return None


def _summary(readings: Sequence[Readings]) -> Readings:
    """Return the mean of what varies, the highest of memory."""
    summary: Readings = {"samples": len(readings)}
    settled = [reading for reading in readings if reading["is_settled"]]
    for name in ("gpu_utilization", "power_w"):
        values = [reading[name] for reading in settled if name in reading]
        summary[name] = statistics.fmean(values) if values else None
    summary["used_bytes"] = max(
        (reading["used_bytes"] for reading in readings if "used_bytes" in reading), default=None
    )
    held: dict[int, int] = {}
    for reading in readings:
        for pid, size in reading.get("process_bytes", {}).items():
            held[pid] = max(size, held.get(pid, 0))
    return summary | {"process_bytes": held}


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
