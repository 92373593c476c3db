"""A job's request of a cluster, and the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from gpusage_hooks.types.needs import GpuNeed
from gpusage_hooks.types.workloads import Workload

LimitedBy = Literal["wall", "cap", "none"]
"""What limits a job's memory on a shared GPU. ``wall``: the driver, all processes of the job together, whatever they
do; ``cap``: MPS, each process alone, and only if it leaves its environment as it is; ``none``: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A job on a share of a GPU.

    Attributes:
        nodes: Where it runs, by the manager's own names.
        share_percent: The part of one GPU that it has.
        thread_percent: What it may use of that GPU's threads.
        need: As predicted when its share was decided.
        workload: How it runs its model; what it promises.
        user: As in `Submitter`; empty where that is not known.
    """

    nodes: tuple[str, ...]
    share_percent: int
    thread_percent: int
    need: GpuNeed
    workload: Workload
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """A job's GPU request, in no workload manager's words.

    Attributes:
        gpu_count: Whole GPUs of the whole job; 0 where it asks for none.
        gpu_type: The catalogue or site name that the user insists on.
        mps_thread_percent: A share of one GPU, 1 to 100, in place of whole GPUs.
        thread_cap_percent: What the processes on the share may use of the GPU's threads; ``None`` means its percentage.
        memory_cap_bytes: Device memory that the share may use wherever it runs: its part of the smallest GPU that it
            may have, less a reserve. A node that knows its own GPU lets it use its part of that one. A slice has this.
        preferred_gpus: Site types to try first, best first; any of the others will do. Beside a slice: the type to run
            on if the slice has too little memory.
        required_gpus: Site types of which any one must run it, best first; none means that any type may.
        slice_type: The site type of a slice (MIG) that takes the place of the whole GPU; ``None`` for no slice.
        obstacles: What the adapter found that a share would break, one clause each, in the user's words.
        partitions: Partitions or queues that may run it; none named means the cluster's default.
        scopes: What else it runs in or under, kind and name: ``reservation=course``, ``qos=short``.
        node_features: Groups of names, of one of which a node must have all to run it; none means that any node may.
        cpu_count: Cores that it asks of its node.
        host_memory_bytes: Memory that it asks of its node.
        node_count: How many nodes it asks for; 0 where it takes as many as its GPUs need.
        node_gpu_count: GPUs that a node must have to run its part of the job.
        gpu_cpu_count: Cores that each of several GPUs brings with it, where nodes may have any number of them; else 0.
        gpu_host_bytes: The same of memory.
        task_count: How many jobs like it may start at once: the tasks of an array.
        bindable: Whether its adapter can hold it to some GPU types, and knows all that it asks of its node.
        deadline_s: In how many seconds it must have ended; ``None`` where it need not.
        avoided_nodes: Those that must not run it, by name; what its user excludes comes first.
        keeps_apart: Whether it avoids some of them for the jobs of other users there.
        steerable: Whether its adapter can keep it off nodes, and knows all else that it asks of its node.
        process_count: Processes with the model that one of its containers may start, where its user has not said how
            many; a share holds the memory of all.
        repeatable: Whether a run that fails for want of memory can be repeated on a whole GPU before anybody sees it
            fail. If not, the job gets a share only where even `GpuNeed.certain_memory_bytes` fit, also behind a wall.
    """

    gpu_count: int
    gpu_type: str | None = None
    mps_thread_percent: int | None = None
    thread_cap_percent: int | None = None
    memory_cap_bytes: int | None = None
    preferred_gpus: tuple[str, ...] = ()
    required_gpus: tuple[str, ...] = ()
    slice_type: str | None = None
    obstacles: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    node_features: tuple[tuple[str, ...], ...] = ()
    cpu_count: int = 1
    host_memory_bytes: int = 0
    node_count: int = 1
    node_gpu_count: int = 1
    gpu_cpu_count: int = 0
    gpu_host_bytes: int = 0
    task_count: int = 1
    bindable: bool = True
    deadline_s: int | None = None
    avoided_nodes: tuple[str, ...] = ()
    keeps_apart: bool = False
    steerable: bool = True
    process_count: int = 1
    repeatable: bool = True

    @property
    def bound_types(self) -> tuple[str, ...]:
        """Return the site types of which one must run it, its slice's among them; none means that any may."""
        return self.required_gpus if self.slice_type is None else (self.slice_type,)

    def is_held_by(self, kinds: Iterable[NodeKind]) -> bool:
        """Return whether nodes of *kinds*, each of which could run a part of it, are enough for all of it."""
        node_count = gpu_count = 0
        for kind in kinds:
            if not kind.node_names or not kind.gpu_count:
                return True  # how many there are is not known
            most = min(kind.gpu_count, kind.cpu_count // self.gpu_cpu_count if self.gpu_cpu_count else kind.gpu_count)
            most = min(most, kind.host_memory_bytes // self.gpu_host_bytes if self.gpu_host_bytes else most)
            node_count += len(kind.node_names)
            gpu_count += len(kind.node_names) * most
        return node_count >= max(self.node_count, 1) and gpu_count >= self.gpu_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What one node has free now; nothing where something keeps jobs away.

    Attributes:
        share_percent: The largest part of one of its GPUs.
        node: Its name; empty where that is not known.
    """

    share_percent: int = 0
    cpu_count: int = 0
    host_memory_bytes: int = 0
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """What the nodes of one kind have beside GPUs, as far as a job may ask for it.

    Attributes:
        partitions: Those that reach them; none means that all do.
        features: Every name that a job may ask of them.
        room: Of the one of them that has most; ``None`` means not known.
        rooms: Of each of them that has some and a name; none where that is not known.
        free_gpu_count: GPUs of the type that nobody uses now, on all of them that take jobs.
        has_shares: Whether their GPUs can be shared: of one type, some nodes may be shared and others not.
        gpu_count: GPUs of the type on each of them; 0 means not known.
        node_names: Of them; none means not known.
    """

    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    cpu_count: int = 0
    host_memory_bytes: int = 0
    room: Room | None = None
    free_gpu_count: int = 0
    rooms: tuple[Room, ...] = ()
    has_shares: bool = True
    gpu_count: int = 0
    node_names: tuple[str, ...] = ()

    def could_run(self, request: GpuRequest, partition: str) -> bool:
        """Return whether such nodes are large enough for its part, and reached from *partition*; ``""`` is any."""
        reached = not self.partitions or not partition or partition in self.partitions
        featured = not request.node_features or any({*group} <= {*self.features} for group in request.node_features)
        large = self.cpu_count >= request.cpu_count and self.host_memory_bytes >= request.host_memory_bytes
        return reached and featured and large and not 0 < self.gpu_count < request.node_gpu_count


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPool:
    """The GPUs of one type in one cluster.

    Attributes:
        gpu: Catalogue name, ``None`` where the site's type name is not understood.
        site_type: The site's own name of the type, in the manager's words: a GRES type, a node label.
        request_type: What a job names to get a GPU of this type where *site_type* is no such name: two pools may have
            the same. Empty where no name leads here.
        mps_per_gpu: Units that one shared GPU counts, ``None`` where it cannot be shared.
        shards_per_gpu: The same of a resource that divides a GPU among jobs and limits none of them.
        feature: What a job must ask for to be sent here, ``None`` where there is none.
        exact_feature: One that is on exactly the nodes of these GPUs, which have no others: it holds a job here.
        share_feature: One that is on exactly those of these nodes that can be shared, and on no other nodes that can;
            ``None`` where *exact_feature* serves.
        partitions: Those that reach it; none means that all do.
        node_features: Every name that a job may ask of its nodes, each combination once; none means not known.
        node_kinds: Its nodes, each kind once; none means not known.
        free_share_percent: The largest part of one of its GPUs that is free now; ``None`` means not known.
        billing_weight: What the site bills for one whole GPU, against other types and resources, per time that it is
            held; ``None`` if the manager has none.
        node_gpu_counts: How many of these GPUs its nodes have, each number once, the smallest first; none means not
            known.
        node_names: Of its nodes; none means not known.
        limited_by: What limits the memory of a job on a share here: the weakest of what its nodes have.
        why_no_wall: Why that is no wall, one clause; empty where it is one, or the nodes have not said it.
    """

    gpu: str | None
    site_type: str
    gpu_count: int
    free_gpu_count: int
    mps_per_gpu: int | None = None
    shards_per_gpu: int | None = None
    feature: str | None = None
    exact_feature: str | None = None
    share_feature: str | None = None
    request_type: str | None = None
    partitions: tuple[str, ...] = ()
    node_features: tuple[tuple[str, ...], ...] = ()
    node_kinds: tuple[NodeKind, ...] = ()
    free_share_percent: int | None = None
    billing_weight: float | None = None
    node_gpu_counts: tuple[int, ...] = ()
    node_names: tuple[str, ...] = ()
    limited_by: LimitedBy = "cap"
    why_no_wall: str = ""

    @property
    def requestable_type(self) -> str:
        """Return what a job names to get one of these GPUs; empty where no name leads here."""
        return self.site_type if self.request_type is None else self.request_type

    @property
    def holding_feature(self) -> str | None:
        """Return the feature that holds a share to these GPUs, ``None`` where there is none."""
        return self.share_feature or self.exact_feature

    @property
    def may_hold_shares(self) -> bool:
        """Return whether a manager could start a share on one of its nodes."""
        return bool(self.mps_per_gpu) or any(kind.has_shares for kind in self.node_kinds)

    def has_room(self, share_percent: int, gpu_count: int = 1) -> bool:
        """Return whether a share of *share_percent* of one GPU could start here now, or *gpu_count* whole GPUs."""
        free = self.free_share_percent
        return self.free_gpu_count >= gpu_count or (gpu_count == 1 and free is not None and free >= share_percent)

    def meets(self, node_features: tuple[tuple[str, ...], ...]) -> bool:
        """Return whether one of its nodes may have what a job asks for by `GpuRequest.node_features`."""
        unknown = not (node_features and self.node_features)
        return unknown or any({*group} <= {*node} for group in node_features for node in self.node_features)


OF_USER = " user="
"""In a scope that holds for one user, before who that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a workload manager has, as last seen.

    Attributes:
        name: What tells it from others of the manager, the same at each start: gpusage warns where two share a store.
            Empty where the manager names none.
        default_partition: Where a job goes that names none.
        unshared: Where a GPU must stay whole, whatever the job needs, each with why: a clause for its user, the
            place's name within. The keys are ``partition=NAME``, and what `GpuRequest.scopes` has. One with `OF_USER`
            concerns one user, and the status names neither that user nor the reason.
        releases: Whether a waiting job that a share binds to GPU types, or keeps off nodes, is let go where the others
            have no room any more.
        repeats: Whether a job may run again by itself where a share's memory was too small.
        repeats_slices: Whether it may where the memory of a slice was.
        neighbours: The jobs that run on shares now, as far as they are known.
        recent_jobs: Of each user's newest job among the recent decisions, how long a step takes on GPU types where it
            fits, in seconds by the site's name of the type: they compete for the fast ones. None means not known.
        smallest_shares: The smallest percentage that a job of the last week had or would have had of a GPU, by the
            site's name of the type; that under ``""`` may be on any type. None means too few jobs to tell.
    """

    manager: str
    version: str
    pools: tuple[GpuPool, ...]
    name: str = ""
    default_partition: str | None = None
    notes: tuple[str, ...] = ()
    unshared: Mapping[str, str] = field(default_factory=dict)
    releases: bool = True
    repeats: bool = True
    repeats_slices: bool = True
    neighbours: tuple[Neighbour, ...] = ()
    recent_jobs: tuple[Mapping[str, float], ...] = ()
    smallest_shares: Mapping[str, int] = field(default_factory=dict)

    def within(
        self, partitions: tuple[str, ...], scopes: tuple[str, ...] = (), node_features: tuple[tuple[str, ...], ...] = ()
    ) -> Cluster:
        """Return the cluster as a job sees it that may run in *partitions*, and in *scopes* of other kinds.

        Pools out of its reach are left out, those too that have no node with its *node_features*. No pool can be shared
        where it may run in one of ``unshared``, of which those that concern it are left.
        """
        chosen = set(partitions or (self.default_partition,))
        everywhere = None in chosen  # no default is known, so the job may run in any partition
        here = [*scopes, *(f"partition={name}" for name in chosen)]
        if everywhere:
            here += [scope for scope in self.unshared if scope.startswith("partition=")]
        unshared = {scope: self.unshared[scope] for scope in here if scope in self.unshared}

        pools = tuple(
            replace(pool, mps_per_gpu=None) if unshared else pool
            for pool in self.pools
            if (everywhere or not pool.partitions or chosen & {*pool.partitions}) and pool.meets(node_features)
        )

        # Most jobs see the whole cluster: the same object then, and no copy.
        visible = replace(self, pools=pools, unshared=unshared)
        return self if visible == self else visible
