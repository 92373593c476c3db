"""The values that travel: request, need, decision, and what they are made from.

Invariants:

1. Every value is frozen; a change is a new value (`dataclasses.replace`).
2. Inside, memory is in bytes, time in seconds, work in FLOP (a multiply-add is 2), shares are 0 to 1.
3. Unknown is ``None``, never 0 or NaN.
"""

from gpusage_hooks.types.clusters import Cluster, GpuPool, GpuRequest, NodeKind, Room
from gpusage_hooks.types.decisions import STAGES, Case, Code, Decision, DecisionRecord, Place, Rendered, Stage
from gpusage_hooks.types.figures import Interval, MemoryInterval
from gpusage_hooks.types.gpus import Gpu
from gpusage_hooks.types.graphs import Attribute, Dim, ElementType, ModelGraph, Node, Shape
from gpusage_hooks.types.jobs import Job, JobIdentity, JobState, MarkedJob, PastJob, StarvedJob, Submission, Submitter
from gpusage_hooks.types.needs import Colocation, Figure, GpuNeed, Known, Price
from gpusage_hooks.types.neighbours import Neighbour
from gpusage_hooks.types.rules import (
    Binding,
    Cap,
    GenerationRules,
    MoneyRules,
    Range,
    Rules,
    SharingRule,
    SharingRules,
    SloRules,
)
from gpusage_hooks.types.usage import Division, GpuReading, Granted, Outcome, Usage
from gpusage_hooks.types.workloads import (
    Alone,
    Generation,
    Mode,
    ModelRequest,
    Optimizer,
    Precision,
    Slo,
    Strategy,
    Workload,
)

__all__ = [
    "STAGES",
    "Alone",
    "Attribute",
    "Binding",
    "Cap",
    "Case",
    "Cluster",
    "Code",
    "Colocation",
    "Decision",
    "DecisionRecord",
    "Dim",
    "Division",
    "ElementType",
    "Figure",
    "Generation",
    "GenerationRules",
    "Gpu",
    "GpuNeed",
    "GpuPool",
    "GpuReading",
    "GpuRequest",
    "Granted",
    "Interval",
    "Job",
    "JobIdentity",
    "JobState",
    "Known",
    "MarkedJob",
    "MemoryInterval",
    "Mode",
    "ModelGraph",
    "ModelRequest",
    "MoneyRules",
    "Neighbour",
    "Node",
    "NodeKind",
    "Optimizer",
    "Outcome",
    "PastJob",
    "Place",
    "Precision",
    "Price",
    "Range",
    "Rendered",
    "Room",
    "Rules",
    "Shape",
    "SharingRule",
    "SharingRules",
    "Slo",
    "SloRules",
    "Stage",
    "StarvedJob",
    "Strategy",
    "Submission",
    "Submitter",
    "Usage",
    "Workload",
]
