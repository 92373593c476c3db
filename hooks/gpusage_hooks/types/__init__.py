"""The values that travel: request, need, decision, and what they are made from.

Invariants:

1. Every value is frozen; a change is a new value (`dataclasses.replace`).
2. Inside, memory is in bytes, time in seconds, work in FLOP (a multiply-add is 2), shares are 0 to 1.
3. Unknown is ``None``, never 0 or NaN.
"""

from gpusage_hooks.types.clusters import Cluster, GpuPool, GpuRequest, NodeKind, Room
from gpusage_hooks.types.decisions import (
    STAGES,
    Candidate,
    Code,
    Decision,
    DecisionRecord,
    PolicyInput,
    RenderedDecision,
    Stage,
)
from gpusage_hooks.types.figures import Interval, MemoryInterval
from gpusage_hooks.types.gpus import Gpu
from gpusage_hooks.types.graphs import Attribute, Dim, ElementType, ModelGraph, Node, Shape
from gpusage_hooks.types.jobs import (
    AnnotatedJob,
    DecisionRequest,
    Job,
    JobIdentity,
    JobState,
    OutOfMemoryJob,
    PastJob,
    Submitter,
)
from gpusage_hooks.types.needs import Colocation, Figure, GpuNeed, ObservedFigures, Price
from gpusage_hooks.types.neighbours import Neighbour
from gpusage_hooks.types.rules import (
    Binding,
    Cap,
    GenerationRules,
    MoneyRules,
    NetworkRules,
    Range,
    Rules,
    SharingRules,
    SloRules,
)
from gpusage_hooks.types.usage import Allocation, Division, GpuReading, Outcome, Usage
from gpusage_hooks.types.workloads import (
    Decoding,
    Engine,
    Layout,
    Mode,
    ModelRequest,
    Optimizer,
    Precision,
    Slo,
    SoloRun,
    Strategy,
    Workload,
)

__all__ = [
    "STAGES",
    "Allocation",
    "AnnotatedJob",
    "Attribute",
    "Binding",
    "Candidate",
    "Cap",
    "Cluster",
    "Code",
    "Colocation",
    "Decision",
    "DecisionRecord",
    "DecisionRequest",
    "Decoding",
    "Dim",
    "Division",
    "ElementType",
    "Engine",
    "Figure",
    "GenerationRules",
    "Gpu",
    "GpuNeed",
    "GpuPool",
    "GpuReading",
    "GpuRequest",
    "Interval",
    "Job",
    "JobIdentity",
    "JobState",
    "Layout",
    "MemoryInterval",
    "Mode",
    "ModelGraph",
    "ModelRequest",
    "MoneyRules",
    "Neighbour",
    "NetworkRules",
    "Node",
    "NodeKind",
    "ObservedFigures",
    "Optimizer",
    "OutOfMemoryJob",
    "Outcome",
    "PastJob",
    "PolicyInput",
    "Precision",
    "Price",
    "Range",
    "RenderedDecision",
    "Room",
    "Rules",
    "Shape",
    "SharingRules",
    "Slo",
    "SloRules",
    "SoloRun",
    "Stage",
    "Strategy",
    "Submitter",
    "Usage",
    "Workload",
]
