"""Sampling of what jobs use on a node, and the reports that carry it to gpusaged."""

from __future__ import annotations

from gpusage.node.sampler.processes import ProcessSelector
from gpusage.node.sampler.sampling import SampledJob, Sampling, Surroundings
from gpusage.node.sampler.usage_reports import append_usage_reports, parse_usage_reports
from gpusage.node.sampler.usage_spool import UsageSpool

__all__ = [
    "ProcessSelector",
    "SampledJob",
    "Sampling",
    "Surroundings",
    "UsageSpool",
    "append_usage_reports",
    "parse_usage_reports",
]
