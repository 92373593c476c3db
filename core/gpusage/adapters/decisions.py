"""One way from a submission to a decision, for managers that make one outside gpusaged."""

from __future__ import annotations

from gpusage.decisions.advisor import Advisor, advisor
from gpusage.decisions.model_defaults import settled_request
from gpusage.decisions.outcome import DecisionContext, Outcome, decide_outcome, require_job
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.plugins.loading import node_hooks
from gpusage.policies.candidates import without_forbidden
from gpusage.policies.capacity.plan import SCHEMA
from gpusage.predictors.intervals import speedup

__all__ = [
    "SCHEMA",
    "Advisor",
    "DecisionContext",
    "Outcome",
    "advisor",
    "builtin_catalogue",
    "decide_outcome",
    "node_hooks",
    "require_job",
    "settled_request",
    "speedup",
    "without_forbidden",
]
