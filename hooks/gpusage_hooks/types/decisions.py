"""What is decided of a job: from what, by which stages, and in whose words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, get_args

from gpusage_hooks.types.clusters import Cluster, GpuPool, GpuRequest
from gpusage_hooks.types.gpus import Gpu
from gpusage_hooks.types.jobs import JobIdentity
from gpusage_hooks.types.needs import GpuNeed, ObservedFigures, Price
from gpusage_hooks.types.rules import Rules
from gpusage_hooks.types.workloads import Workload

Stage = Literal["eligibility", "fit", "deadline", "generation", "sharing", "slo", "veto"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""What is decided of a job, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One pool that may run a job, with what the job needs there.

    Attributes:
        gpu: The catalogue's row of the pool's GPUs.
        need: On a whole GPU of the pool.
        shares: What each size of a share of such a GPU costs the job.
        known: What its user or earlier runs know of the job alone on a whole GPU of the pool.
    """

    pool: GpuPool
    gpu: Gpu
    need: GpuNeed
    shares: tuple[Price, ...] = ()
    known: ObservedFigures = field(default_factory=ObservedFigures)

    @property
    def name(self) -> str:
        """Return the site's own name of the GPU type, as its users know it."""
        return self.pool.site_type


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInput:
    """Everything that a policy may look at.

    Attributes:
        candidates: The pools within the job's reach whose GPU the catalogue knows.
    """

    request: GpuRequest
    workload: Workload
    candidates: tuple[Candidate, ...]
    cluster: Cluster
    rules: Rules


class Code(Enum):
    """What is to be done with a request."""

    REWRITE = "REWRITE"
    """Put the decision's request in place of the user's."""
    KEEP = "KEEP"
    """The user's request is right, or cannot safely be changed."""
    DECLINE = "DECLINE"
    """Not ours: the user said nothing to us, or opted out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to become of a request, with reasons that a user understands.

    Attributes:
        plugin: Who decided, for example ``gpusage.policies.sharing``.
        need: What was predicted on the GPU that the decision rests on.
        final: No later policy is asked.
        step_times_s: Of a job that may choose among GPU types, how long a step takes on each (`Cluster.recent_jobs`).
    """

    code: Code
    request: GpuRequest
    reasons: tuple[str, ...]
    plugin: str
    need: GpuNeed | None = None
    final: bool = False
    step_times_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedDecision:
    """A decision in a workload manager's own words.

    Attributes:
        before: The request as asked, one line.
        after: The request as decided, one line.
        fields: What to set in the job, by the manager's own field names.
        trouble: Why there are none, one clause, where they cannot express the decision and the adapter can say.
    """

    before: str
    after: str
    fields: Mapping[str, str]
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """A decision with its circumstances, as the store keeps it.

    Attributes:
        number: Twelve hexadecimal digits, no record's but this one's; the job carries them in its annotation.
        identity: By which a later submission is known to be the same job; ``None`` where neither a model was read
            nor a history is kept.
        predicted_utilization: The GPU utilization on the need's GPU as predicted from the model alone, 0 to 1, without
            anything that was said or learned.
        history_estimates: What history predicts for a job that names no model, alone on each GPU that it might have,
            by the GPU's name.
    """

    decided_at_s: float
    manager: str
    origin: str
    mode: str
    decision: Decision
    rendered: RenderedDecision
    model: str | None = None
    workload: Workload | None = None
    number: str = ""
    identity: JobIdentity | None = None
    predicted_utilization: float | None = None
    history_estimates: Mapping[str, ObservedFigures] = field(default_factory=dict)
