"""The values that travel: request, need, decision, and what they are made from.

Invariants:

1. Every value is frozen; a change is a new value (`dataclasses.replace`).
2. Inside, memory is in bytes, time in seconds, work in FLOP (a multiply-add is 2), shares are 0 to 1.
3. Unknown is ``None``, never 0 or NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Literal, get_args

Dim = int
"""One size of a tensor: ``n >= 0`` is fixed, ``-k`` stands for k times the batch size."""

Shape = tuple[Dim, ...]
Attribute = int | float | str | tuple[int, ...]
Mode = Literal["train", "infer"]
Precision = Literal["fp32", "tf32", "fp16", "bf16"]
Optimizer = Literal["none", "sgd", "momentum", "adam", "adamw", "adafactor"]
JobState = Literal["waiting", "running", "ended"]
ElementType = Literal["float", "int64", "int32", "int8", "bool"]
Stage = Literal["eligibility", "fit", "generation", "sharing", "slo"]
SharingRule = Literal["price", "activity"]
Binding = Literal["room", "never", "always"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""What is decided of a job, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A predicted figure: the point, and the ends between which 90 % of the truths should lie."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInterval(Interval):
    """Peak bytes of device memory, with a second upper end.

    Attributes:
        share_high: What a share books, and lets the job take: 95 % of jobs stay below, and the others have what they
            would like to use, not what they need. Between the point and the upper end, which says whether a job fits.
    """

    share_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation of a model, named as in the ONNX operator set.

    Nodes carry no edges, so that equal operations are equal values and can be shared.

    Attributes:
        op_type: ONNX operator, for example ``Conv``, ``MatMul``, ``Gemm``, ``Softmax``.
        inputs: Shapes of the activations that it reads, in order, weights left out.
        outputs: Shapes of what it writes.
        parameters: Shapes of the weights that it reads; never depends on the batch.
        attributes: What changes its cost, sorted by name (``group``, ``strides``, ``transB``, ``hidden_size`` ...).
        element_type: Of its first output; ``float`` means that the workload's precision decides.
    """

    op_type: str
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    parameters: tuple[Shape, ...] = ()
    attributes: tuple[tuple[str, Attribute], ...] = ()
    element_type: ElementType = "float"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGraph:
    """A model's forward computation for any batch size, without its weights.

    Attributes:
        name: For people, for example ``resnet50``.
        source: Where it was read from: a path or a name such as ``timm:resnet50``.
        nodes: In an order in which they can run.
        producers: For each node, for each of its ``inputs``, the index of the node that made it;
            ``-1 - i`` stands for the model's input i.
        inputs: Name and shape of each model input.
        parameter_count: Elements of all weights, those used twice counted once.
        fixed_batch_size: The only batch size that the file was exported for; ``None`` where sizes follow the batch.
        unknown_op_types: Operators that no rule describes, with how often each occurs.
        notes: What a reader should know, one sentence each.
        derived: What plugins worked out from this graph, each under its own name: no part of the graph's value, and
            kept as long as the graph. Nothing in it should refer to the graph.
    """

    name: str
    source: str
    nodes: tuple[Node, ...]
    producers: tuple[tuple[int, ...], ...]
    inputs: tuple[tuple[str, Shape], ...]
    parameter_count: int
    fixed_batch_size: int | None = None
    unknown_op_types: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    derived: MutableMapping[str, object] = field(default_factory=dict, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What an inference job promises: a latency, and the rate at which requests come."""

    latency_s: float
    rate_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """What a user says that an earlier run alone on a whole GPU showed.

    Attributes:
        utilization: NVML's GPU utilization, above 0 and at most 1: the share of time with any kernel running.
        step_time_s: Seconds of one step.
        gpu: The GPU, by its name of the catalogue, that the step time is of; ``None`` is each that is asked for.
    """

    utilization: float | None = None
    step_time_s: float | None = None
    gpu: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How a model is run, and what its user accepts and knows.

    Attributes:
        slowdown: The step time on a share against that on the whole GPU that the user accepts, at least 1; ``None``
            means the site's.
        alone: What an earlier run alone on a whole GPU showed; its GPU may still be by any of its names.
    """

    batch_size: int = 1
    mode: Mode = "train"
    precision: Precision = "fp32"
    optimizer: Optimizer = "momentum"
    shape: tuple[tuple[str, tuple[int, ...]], ...] = ()
    steps: int | None = None
    slo: Slo | None = None
    slowdown: float | None = None
    alone: Alone = Alone()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """What a user wrote about the model: the comment, or the command's options.

    Attributes:
        assumed: What the user left out and a prediction depends on most, as ``batch=1``, for people.
    """

    model: str
    workload: Workload = Workload()
    assumed: tuple[str, ...] = ()
    enabled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU model of the catalogue; rates are the vendor's dense peaks.

    Attributes:
        name: Lower-case, model-form-memory where it matters, for example ``v100-sxm2-16gb``.
        aliases: Other names: short form, workload managers' type names, NVML names (lower-case).
        generation: Nvidia's name of the architecture, for example ``volta``.
        compute_capability: Major and minor, for example ``(7, 0)``.
        peak_flop_per_s: By precision; a precision that the chip does not speed up has no entry.
        launch_year: When it came out: orders generations.
        source: Where the row is from.
        cut_from: The GPU that it is a slice of (MIG); ``None`` for a whole one.
    """

    name: str
    aliases: tuple[str, ...]
    generation: str
    compute_capability: tuple[int, int]
    sm_count: int
    clock_hz: float
    peak_flop_per_s: Mapping[str, float]
    memory_bytes: int
    bandwidth_bytes_per_s: float
    l2_bytes: int
    power_limit_w: float
    launch_year: int
    source: str
    cut_from: str | None = None

    @property
    def board(self) -> str:
        """Return the name of the whole GPU: its own, or that of the GPU that it is cut from."""
        return self.cut_from or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNeed:
    """What one replica of a workload needs on one GPU.

    Attributes:
        fits: Whether the upper end of the memory is no more than the GPU has; for a share, whether `share_memory_bytes`
            is no more than its part.
        parameter_count: Of the model, by which two jobs are known to train or serve the same one; ``None`` if unknown.
        share_percent: The part of the GPU that the figures are for; activities are of the share's own SMs.
        slowdown: The step time against that on the whole GPU, at least 1: an interval of the ratio itself. For a slice
            (MIG), against the GPU that it is cut from.
        share_high_bytes: The memory's second upper end, as `MemoryInterval` has it.
    """

    gpu: str
    step_time_s: Interval
    memory_bytes: Interval
    gpu_utilization: Interval
    sm_activity: Interval
    dram_activity: Interval
    throughput_samples_per_s: Interval
    fits: bool
    familiar: bool = True
    notes: tuple[str, ...] = ()
    parameter_count: int | None = None
    share_percent: int = 100
    slowdown: Interval = Interval(value=1.0, low=1.0, high=1.0)
    share_high_bytes: float | None = None

    @property
    def share_memory_bytes(self) -> float:
        """Return the memory that a share books: the second upper end, or the first where no second one is known."""
        memory = self.memory_bytes
        return (
            memory.high if self.share_high_bytes is None else min(max(self.share_high_bytes, memory.value), memory.high)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure that is known better than it can be predicted.

    Attributes:
        interval: The figure, and the ends between which 90 % of the truths should lie; both ends are the figure itself
            where it was measured.
        source: Who says so, for people: ``what you said``, ``12 earlier runs``.
    """

    interval: Interval
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a workload alone on one whole GPU; ``None`` is left to prediction.

    Attributes:
        step_time_s: Seconds of one step, above 0.
        gpu_utilization: NVML's: the share of time with any kernel running, above 0 and at most 1.
        memory_bytes: Peak bytes of device memory, context included.
    """

    step_time_s: Figure | None = None
    gpu_utilization: Figure | None = None
    memory_bytes: Figure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a part of a GPU costs a job that is alone on it.

    Attributes:
        gpu: The GPU, or the slice of one.
        share_percent: The MPS share of it.
        slowdown: As in `GpuNeed`.
    """

    gpu: str
    share_percent: int
    slowdown: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Colocation:
    """What jobs on one GPU do to each other under MPS; throughputs are relative to running alone."""

    gpu: str
    normalised_throughput: tuple[Interval, ...]
    mps_thread_percent: tuple[int, ...]
    memory_cap_bytes: tuple[int, ...]
    throughput_sum: Interval
    fits: bool
    recommended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """A job's GPU request, in no workload manager's words.

    Attributes:
        gpu_count: Whole GPUs of the whole job; 0 where it asks for none.
        gpu_type: The catalogue or site name that the user insists on.
        mps_thread_percent: A share of one GPU, 1 to 100, in place of whole GPUs.
        memory_cap_bytes: Device memory that the share may use.
        preferred_gpus: Site types to try first, best first; any of the others will do.
        required_gpus: Site types of which one must run it, best first; none means that any may.
        obstacles: What the adapter found that a share would break, one clause each, in the user's words.
        partitions: Partitions or queues that may run it; none named means the cluster's default.
        scopes: What else it runs in or under, kind and name: ``reservation=course``, ``qos=short``.
        node_features: Groups of names, of one of which a node must have all to run it; none means that any node may.
        cpu_count: Cores that it asks of its node.
        host_memory_bytes: Memory that it asks of its node.
        bindable: Whether its adapter can hold it to some GPU types, and knows all that it asks of its node.
    """

    gpu_count: int
    gpu_type: str | None = None
    mps_thread_percent: int | None = None
    memory_cap_bytes: int | None = None
    preferred_gpus: tuple[str, ...] = ()
    required_gpus: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    node_features: tuple[tuple[str, ...], ...] = ()
    cpu_count: int = 1
    host_memory_bytes: int = 0
    bindable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """What the nodes of one kind have beside GPUs, as far as a job may ask for it.

    Attributes:
        partitions: Those that reach them; none means that all do.
        features: Every name that a job may ask of them.
    """

    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    cpu_count: int = 0
    host_memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPool:
    """The GPUs of one type in one cluster.

    Attributes:
        gpu: Catalogue name, ``None`` where the site's type name is not understood.
        site_type: The site's own name of the type, in the manager's words: a GRES type, a node label.
        mps_per_gpu: Units that one shared GPU counts, ``None`` where it cannot be shared.
        feature: What a job must ask for to be sent here, ``None`` where there is none.
        exact_feature: One that is on exactly the nodes of these GPUs, which have no others: it holds a job here.
        partitions: Those that reach it; none means that all do.
        node_features: Every name that a job may ask of its nodes, each combination once; none means not known.
        node_kinds: Its nodes, each kind once; none means not known.
        free_share_percent: The largest part of one of its GPUs that is free now; ``None`` means not known.
    """

    gpu: str | None
    site_type: str
    gpu_count: int
    free_gpu_count: int
    mps_per_gpu: int | None = None
    feature: str | None = None
    exact_feature: str | None = None
    partitions: tuple[str, ...] = ()
    node_features: tuple[tuple[str, ...], ...] = ()
    node_kinds: tuple[NodeKind, ...] = ()
    free_share_percent: int | None = None

    def has_room(self, share_percent: int) -> bool:
        """Tell whether a share of *share_percent* of one GPU could start here now."""
        free = self.free_share_percent
        return self.free_gpu_count > 0 or (free is not None and free >= share_percent)

    def meets(self, node_features: tuple[tuple[str, ...], ...]) -> bool:
        """Tell whether one of its nodes may have what a job asks for by `GpuRequest.node_features`."""
        unknown = not (node_features and self.node_features)
        return unknown or any({*group} <= {*node} for group in node_features for node in self.node_features)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a workload manager has, as last seen.

    Attributes:
        default_partition: Where a job goes that names none.
        unshared: Where a GPU must stay whole, whatever the job needs, each with why: a clause for its user, the
            place's name within. The keys are ``partition=NAME``, and what `GpuRequest.scopes` has.
    """

    manager: str
    version: str
    pools: tuple[GpuPool, ...]
    default_partition: str | None = None
    observed_at_s: float | None = None
    notes: tuple[str, ...] = ()
    unshared: Mapping[str, str] = field(default_factory=dict)

    def within(
        self,
        partitions: tuple[str, ...],
        scopes: tuple[str, ...] = (),
        node_features: tuple[tuple[str, ...], ...] = (),
    ) -> Cluster:
        """Return the cluster as a job sees it that may run in *partitions*, and in *scopes* of other kinds.

        Pools out of its reach are left out, those too that have no node with its *node_features*. No pool can be shared
        where it may run in one of ``unshared``, of which those that concern it are left.
        """
        chosen = set(partitions or (self.default_partition,))
        everywhere = None in chosen
        here = {*scopes, *(f"partition={name}" for name in chosen)}
        unshared = {
            scope: why
            for scope, why in self.unshared.items()
            if scope in here or (everywhere and scope.startswith("partition="))
        }
        pools = tuple(
            replace(pool, mps_per_gpu=None) if unshared else pool
            for pool in self.pools
            if (everywhere or not pool.partitions or chosen & {*pool.partitions}) and pool.meets(node_features)
        )
        visible = replace(self, pools=pools, unshared=unshared)
        return self if visible == self else visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The least and the most of a setting, or of each in a list: ``Annotated[float, Range(low=1, high=9)]``."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRules:
    """When a whole GPU may become a share.

    Attributes:
        rule: What decides: the predicted price of a share, or the predicted SM activity.
        sizes: By price: the percentages that a share may have, each 1 to 99.
        maximum_slowdown: By price: how many times as long a step may take as expected, beside average partners.
        worst_slowdown: By price: the same at the pessimistic end.
        bind: By price: when a share may confine the job to the GPU types on which its price holds: where one of them
            has room now, never, or always.
        across_users: Whether one MPS daemon serves several users' jobs, which can then end each other by a fatal fault.
    """

    enabled: bool = True
    rule: SharingRule = "price"
    sizes: Annotated[tuple[int, ...], Range(low=1, high=99)] = (25, 33, 50, 75)
    maximum_slowdown: Annotated[float, Range(low=1, high=100)] = 1.25
    worst_slowdown: Annotated[float, Range(low=1, high=100)] = 1.5
    bind: Binding = "room"
    maximum_percent: int = 80
    minimum_percent: int = 10
    step_percent: int = 5
    headroom: float = 0.10
    maximum_partners: int = 4
    across_users: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRules:
    """When a generation is preferred."""

    enabled: bool = True
    minimum_speedup: float = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class SloRules:
    """How an inference job's latency promise is protected."""

    enabled: bool = True
    latency_margin: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The site's settings that policies act on."""

    sharing: SharingRules = SharingRules()
    generation: GenerationRules = GenerationRules()
    slo: SloRules = SloRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What one workload manager handed over, untouched.

    Attributes:
        manager: The workload manager's name, as in `Manager`.
        fields: The job's fields in the manager's own words.
        script: The job script's text, where that is all there is (offline validation).
        origin: For people: a script's path, or ``uid 1000``.
    """

    manager: str
    fields: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    script: str | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A submission that was understood.

    Attributes:
        request: What it asks for.
        request_text: The same in the manager's own words, for people, for example ``gres/gpu:1``.
        model_request: ``None`` where the user said nothing to us.
        card: The model's card, where one travelled with the job.
        card_trouble: Why none did, as one sentence, where that is known.
        caveat: What may turn out otherwise when the job is submitted, as one sentence; for offline validation.
    """

    submission: Submission
    request: GpuRequest
    request_text: str
    model_request: ModelRequest | None = None
    card: str | None = None
    card_trouble: str | None = None
    caveat: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One pool that may run a job, with what the job needs there.

    Attributes:
        gpu: The catalogue's row of the pool's GPUs.
        need: On a whole GPU of the pool.
        shares: What each size of a share of such a GPU costs the job.
    """

    pool: GpuPool
    gpu: Gpu
    need: GpuNeed
    shares: tuple[Price, ...] = ()

    @property
    def name(self) -> str:
        """Return the site's own name of the GPU type, as its users know it."""
        return self.pool.site_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that a policy may look at.

    Attributes:
        places: The pools within the job's reach whose GPU the catalogue knows.
    """

    request: GpuRequest
    workload: Workload
    places: tuple[Place, ...]
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
    """

    code: Code
    request: GpuRequest
    reasons: tuple[str, ...]
    plugin: str
    need: GpuNeed | None = None
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
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
        number: Twelve hexadecimal digits, no record's but this one's; the job carries them in its mark.
    """

    decided_at_s: float
    manager: str
    origin: str
    mode: str
    decision: Decision
    rendered: Rendered
    model: str | None = None
    workload: Workload | None = None
    number: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedJob:
    """A job as its workload manager has it, with the mark that it carries.

    Attributes:
        job_id: In the manager's own form; tasks of an array that are alike may be one.
        mark: The text that the manager keeps for us; others may have written there as well. Empty where there is none.
        waits_for: Why it waits, in the manager's own word; empty where it does not.
        stuck: Why it seems that it can never start as it is, one clause; empty where it can.
    """

    job_id: str
    manager: str
    user: str
    state: JobState
    mark: str = ""
    waits_for: str = ""
    stuck: str = ""
