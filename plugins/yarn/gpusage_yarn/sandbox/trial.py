"""gpusage itself inside a sandbox, as settings of a `ClusterPlan` that has the jar; for demo, tests and benches."""

from __future__ import annotations

from collections.abc import Mapping

from gpusage_yarn.install import CALCULATOR, CLASSES, LISTENERS, PROCESSORS, RULES

SITE_SETTINGS: Mapping[str, str] = {
    RULES: f"{CLASSES[RULES]},user-group",
    PROCESSORS: CLASSES[PROCESSORS],
    LISTENERS: CLASSES[LISTENERS],
    "gpusage.am.heartbeat-ms": "200",
}
SCHEDULER_SETTINGS: Mapping[str, str] = {CALCULATOR: CLASSES[CALCULATOR]}
