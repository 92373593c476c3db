"""The objects whose counts the metrics are; apart, because the rest of the package needs prometheus-client."""

from __future__ import annotations

from dataclasses import dataclass

from gpusage.service.counters import RunCounters
from gpusage.service.decisions.request_handler import RequestHandler
from gpusage.service.monitoring.job_monitor import JobMonitor
from gpusage.service.records.recorder import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSources:
    """Has the counters of gpusaged."""

    request_handler: RequestHandler
    recorder: Recorder
    job_monitor: JobMonitor
    runs: RunCounters
