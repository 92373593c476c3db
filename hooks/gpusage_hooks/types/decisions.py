"""The decision on a job: by which rules of the site, from what, in which stages, and in whose words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Literal, get_args

from gpusage_hooks.types.clusters import Cluster, GpuPool, GpuRequest
from gpusage_hooks.types.jobs import JobIdentity, Submitter
from gpusage_hooks.types.needs import Gpu, GpuNeed, Interval, ObservedFigures, Price
from gpusage_hooks.types.workloads import Workload

Cap = Literal["share", "double", "none"]
Binding = Literal["room", "never", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The least and the most of a setting, or of each in a list: ``Annotated[float, Range(low=1, high=9)]``."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRules:
    """When a whole GPU may become a share.

    Attributes:
        enabled: Whether a whole GPU may become a share at all.
        sizes: The percentages that a share may have, each 1 to 99.
        maximum_slowdown: How many times as long a step may take as expected, beside average partners.
        worst_slowdown: The same at the pessimistic end.
        bind: When a share may confine the job to the GPU types on which its price holds: where one of them has room
            now, never, or always.
        cap: What a job may use of the threads: its share, twice that, or all; the share is booked.
        maximum_partners: How many jobs one GPU may have.
        across_users: Whether one MPS daemon serves several users' jobs, which can then end each other by a fatal fault.
        keep_apart: Whether a new share is kept off nodes where it or a job there would become slower than accepted.
        rescue: Whether a job whose share's memory was too small runs again, once, with a whole GPU.
        typed_slices: Whether a job that names a GPU type may get a slice (MIG) of such a GPU, unless its user forbids.
    """

    enabled: bool = True
    sizes: Annotated[tuple[int, ...], Range(low=1, high=99)] = (25, 33, 50, 75)
    maximum_slowdown: Annotated[float, Range(low=1, high=100)] = 1.25
    worst_slowdown: Annotated[float, Range(low=1, high=100)] = 1.5
    bind: Binding = "room"
    cap: Cap = "share"
    maximum_partners: int = 4
    across_users: bool = False
    keep_apart: bool = True
    rescue: bool = True
    typed_slices: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRules:
    """When a generation is preferred.

    Attributes:
        enabled: Whether a job is made to prefer GPUs of one generation.
        minimum_speedup: From this gain on, a faster GPU is preferred where nothing is known of other jobs.
        by_recent_jobs: Whether a job is compared with those that were decided recently, where some are known.
    """

    enabled: bool = True
    by_recent_jobs: bool = True
    minimum_speedup: float = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class SloRules:
    """How an inference job's latency promise is protected.

    Attributes:
        enabled: Whether a job with a latency limit keeps a whole GPU where partners could break the limit.
        latency_margin: The part of the limit that the job alone may fill; at 0.5 a step may take twice as long.
    """

    enabled: bool = True
    latency_margin: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneyRules:
    """What GPUs cost the site.

    Attributes:
        price_per_hour: Of one GPU, by the catalogue's name or an alias of it: ``{ v100 = 3.06 }``.
    """

    price_per_hour: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRules:
    """What the network between the site's hosts carries.

    Attributes:
        gbit_per_s: Gb/s for each GPU, one way, by the catalogue's name or an alias of it: ``{ a100 = 200 }``; 12.5 is
            one card of 100 Gb/s for 8 GPUs. By default what hosts with such GPUs commonly have.
    """

    gbit_per_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The site's settings that policies act on."""

    sharing: SharingRules = SharingRules()
    generation: GenerationRules = GenerationRules()
    slo: SloRules = SloRules()
    money: MoneyRules = MoneyRules()
    network: NetworkRules = NetworkRules()


Stage = Literal["eligibility", "fit", "deadline", "generation", "sharing", "slo", "veto"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""What is decided of a job, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One pool that may run a job, with what the job needs there.

    Attributes:
        gpu: The catalogue's row of the pool's GPUs.
        need: On a whole GPU of the pool; of several, on each.
        divided_need: The same if several divide all that the request lets them divide; ``None`` for no other need.
        shares: What each size of a share of such a GPU costs the job.
        known: What its user or earlier runs know of the job alone on a whole GPU of the pool.
    """

    pool: GpuPool
    gpu: Gpu
    need: GpuNeed
    shares: tuple[Price, ...] = ()
    known: ObservedFigures = field(default_factory=ObservedFigures)
    divided_need: GpuNeed | None = None

    @property
    def least_need(self) -> GpuNeed:
        """Return the need of which nothing that the request leaves open makes less."""
        return self.divided_need or self.need

    @property
    def name(self) -> str:
        """Return the site's own name of the GPU type, as its users know it."""
        return self.pool.site_type


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInput:
    """Everything that a policy may look at.

    Attributes:
        candidates: The pools within the job's reach whose GPU the catalogue knows.
        submitter: Whose job it is; an answer that reads it holds for nobody else.
    """

    request: GpuRequest
    workload: Workload
    candidates: tuple[Candidate, ...]
    cluster: Cluster
    rules: Rules
    submitter: Submitter = field(default_factory=Submitter)


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
        if_shared: The share that would have been enough, with its price beside average partners on each GPU type, where
            none of the job's GPUs can be shared today.
        slowdown_with_partners: How many times as long a step takes on the share, beside average partners, on the GPU
            type of the job where that is most; ``None`` without a share.
    """

    code: Code
    request: GpuRequest
    reasons: tuple[str, ...]
    plugin: str
    need: GpuNeed | None = None
    final: bool = False
    step_times_s: Mapping[str, float] = field(default_factory=dict)
    if_shared: tuple[Price, ...] = ()
    slowdown_with_partners: Interval | None = None


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
