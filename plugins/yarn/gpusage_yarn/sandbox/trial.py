"""gpusage itself inside a sandbox: all of it switched on; for trials, demo, tests and benches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpusage.configuration import SiteMode
from gpusage_yarn.install import CALCULATOR, CLASSES, LISTENERS, PROCESSORS, RULES
from gpusage_yarn.sandbox.layout import ClusterPlan

SITE_SETTINGS: Mapping[str, str] = {
    RULES: f"{CLASSES[RULES]},user-group",
    PROCESSORS: CLASSES[PROCESSORS],
    LISTENERS: CLASSES[LISTENERS],
    "gpusage.am.heartbeat-ms": "200",
}
SCHEDULER_SETTINGS: Mapping[str, str] = {CALCULATOR: CLASSES[CALCULATOR]}


def with_gpusage(plan: ClusterPlan, jar: Path, mode: SiteMode) -> ClusterPlan:
    """Return *plan* with all of gpusage switched on."""
    return replace(
        plan,
        jar=jar,
        mode=mode,
        site_settings={**SITE_SETTINGS, **plan.site_settings},
        scheduler_settings={**SCHEDULER_SETTINGS, **plan.scheduler_settings},
    )
