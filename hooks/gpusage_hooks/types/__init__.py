"""The values that travel: request, need, decision, and what they are made from.

Invariants:

1. Every value is frozen; a change is a new value (`dataclasses.replace`).
2. Inside, memory is in bytes, time in seconds, work in FLOP (a multiply-add is 2), shares are 0 to 1.
3. Unknown is ``None``, never 0 or NaN.
"""

from gpusage_hooks.types.clusters import OF_USER as OF_USER
from gpusage_hooks.types.clusters import Cluster as Cluster
from gpusage_hooks.types.clusters import GpuPool as GpuPool
from gpusage_hooks.types.clusters import GpuRequest as GpuRequest
from gpusage_hooks.types.clusters import LimitedBy as LimitedBy
from gpusage_hooks.types.clusters import Neighbour as Neighbour
from gpusage_hooks.types.clusters import NodeKind as NodeKind
from gpusage_hooks.types.clusters import Room as Room
from gpusage_hooks.types.decisions import STAGES as STAGES
from gpusage_hooks.types.decisions import Binding as Binding
from gpusage_hooks.types.decisions import Candidate as Candidate
from gpusage_hooks.types.decisions import Cap as Cap
from gpusage_hooks.types.decisions import Code as Code
from gpusage_hooks.types.decisions import Decision as Decision
from gpusage_hooks.types.decisions import DecisionRecord as DecisionRecord
from gpusage_hooks.types.decisions import GenerationRules as GenerationRules
from gpusage_hooks.types.decisions import MoneyRules as MoneyRules
from gpusage_hooks.types.decisions import NetworkRules as NetworkRules
from gpusage_hooks.types.decisions import PolicyInput as PolicyInput
from gpusage_hooks.types.decisions import Range as Range
from gpusage_hooks.types.decisions import RenderedDecision as RenderedDecision
from gpusage_hooks.types.decisions import Rules as Rules
from gpusage_hooks.types.decisions import SharingRules as SharingRules
from gpusage_hooks.types.decisions import SloRules as SloRules
from gpusage_hooks.types.decisions import Stage as Stage
from gpusage_hooks.types.jobs import Allocation as Allocation
from gpusage_hooks.types.jobs import AnnotatedJob as AnnotatedJob
from gpusage_hooks.types.jobs import DecisionRequest as DecisionRequest
from gpusage_hooks.types.jobs import Division as Division
from gpusage_hooks.types.jobs import GpuReading as GpuReading
from gpusage_hooks.types.jobs import Job as Job
from gpusage_hooks.types.jobs import JobIdentity as JobIdentity
from gpusage_hooks.types.jobs import JobState as JobState
from gpusage_hooks.types.jobs import Outcome as Outcome
from gpusage_hooks.types.jobs import OutOfMemoryJob as OutOfMemoryJob
from gpusage_hooks.types.jobs import PastJob as PastJob
from gpusage_hooks.types.jobs import Submitter as Submitter
from gpusage_hooks.types.jobs import Usage as Usage
from gpusage_hooks.types.needs import Colocation as Colocation
from gpusage_hooks.types.needs import Figure as Figure
from gpusage_hooks.types.needs import Gpu as Gpu
from gpusage_hooks.types.needs import GpuNeed as GpuNeed
from gpusage_hooks.types.needs import Interval as Interval
from gpusage_hooks.types.needs import MemoryInterval as MemoryInterval
from gpusage_hooks.types.needs import ObservedFigures as ObservedFigures
from gpusage_hooks.types.needs import Price as Price
from gpusage_hooks.types.workloads import Attribute as Attribute
from gpusage_hooks.types.workloads import Decoding as Decoding
from gpusage_hooks.types.workloads import Dim as Dim
from gpusage_hooks.types.workloads import ElementType as ElementType
from gpusage_hooks.types.workloads import Engine as Engine
from gpusage_hooks.types.workloads import Layout as Layout
from gpusage_hooks.types.workloads import Mode as Mode
from gpusage_hooks.types.workloads import ModelGraph as ModelGraph
from gpusage_hooks.types.workloads import ModelRequest as ModelRequest
from gpusage_hooks.types.workloads import Node as Node
from gpusage_hooks.types.workloads import Optimizer as Optimizer
from gpusage_hooks.types.workloads import Precision as Precision
from gpusage_hooks.types.workloads import Shape as Shape
from gpusage_hooks.types.workloads import Slo as Slo
from gpusage_hooks.types.workloads import SoloRun as SoloRun
from gpusage_hooks.types.workloads import Strategy as Strategy
from gpusage_hooks.types.workloads import Workload as Workload
