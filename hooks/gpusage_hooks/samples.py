"""Made-up values for the checks: a small model, three GPUs, a cluster, and the inputs that a policy meets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from gpusage_hooks.errors import DeviceError
from gpusage_hooks.managers import Context, GpuCatalogue, ManagerSettings
from gpusage_hooks.types import (
    Allocation,
    AnnotatedJob,
    Candidate,
    Cluster,
    Code,
    Decision,
    DecisionRecord,
    DecisionRequest,
    Figure,
    Gpu,
    GpuNeed,
    GpuPool,
    GpuRequest,
    Interval,
    Job,
    ModelGraph,
    ModelRequest,
    Node,
    ObservedFigures,
    PolicyInput,
    Price,
    RenderedDecision,
    Rules,
    SharingRules,
    Slo,
    Submitter,
    Usage,
    Workload,
)
from gpusage_hooks.units import GB, GIB, MHZ, MIB, TERA

MANAGER = "no-such-manager"
"""No adapter is for it: every adapter must leave it to others."""
DEVICE = "GPU-00000000-no-such-gpu"
"""No machine has it."""
NO_FILE = "no/such/file"
"""Nobody wrote it."""


def graph() -> ModelGraph:
    """Return a small classifier: two convolutions with a residual sum, a pooling and a matrix product.

    gpusaged predicts it when it starts, to have the predictors ready for the first job.
    """
    image, planes = (-1, 3, 64, 64), (-1, 32, 64, 64)
    convolution = Node(
        op_type="Conv",
        inputs=(image,),
        outputs=(planes,),
        parameters=((32, 3, 3, 3), (32,)),
        attributes=(("kernel_shape", (3, 3)), ("pads", (1, 1, 1, 1)), ("strides", (1, 1))),
    )
    # -1 is the batch: every shape follows it, as in a model that was exported with a free batch axis.
    return ModelGraph(
        name="sample",
        source="sample",
        nodes=(
            convolution,
            Node(op_type="Relu", inputs=(planes,), outputs=(planes,)),
            replace(convolution, inputs=(planes,), parameters=((32, 32, 3, 3), (32,))),
            Node(op_type="Add", inputs=(planes, planes), outputs=(planes,)),
            Node(op_type="GlobalAveragePool", inputs=(planes,), outputs=((-1, 32, 1, 1),)),
            Node(op_type="Flatten", inputs=((-1, 32, 1, 1),), outputs=((-1, 32),)),
            Node(op_type="Gemm", inputs=((-1, 32),), outputs=((-1, 10),), parameters=((32, 10), (10,))),
        ),
        producers=((-1,), (0,), (1,), (2, 1), (3,), (4,), (5,)),
        inputs=(("image", image),),
        parameter_count=32 * 27 + 32 + 32 * 288 + 32 + 320 + 10,
    )


def workloads() -> tuple[Workload, ...]:
    """Return the ways of running a model that differ most."""
    return (
        Workload(),
        Workload(batch_size=32, precision="fp16", optimizer="adam"),
        Workload(batch_size=8, mode="infer", precision="bf16", optimizer="none"),
    )


def gpu(name: str, *, tera_flop_per_s: float, memory_gib: int, launch_year: int) -> Gpu:
    """Return a made-up GPU whose other figures follow from these."""
    return Gpu(
        name=name,
        aliases=(),
        generation=f"generation-{launch_year}",
        compute_capability=(7 if launch_year < 2020 else 9, 0),  # Volta, Hopper
        sm_count=80,
        clock_hz=1500 * MHZ,
        peak_flop_per_s=MappingProxyType({"fp32": tera_flop_per_s * TERA, "fp16": 8 * tera_flop_per_s * TERA}),
        memory_bytes=memory_gib * GIB,
        bandwidth_bytes_per_s=60 * tera_flop_per_s * GB,
        l2_bytes=6 * MIB,
        power_limit_w=300.0,
        launch_year=launch_year,
        source="made up for the checks",
    )


def gpus() -> tuple[Gpu, ...]:
    """Return three made-up GPUs: an old one, a small one, a fast one."""
    return (
        gpu("sample-old", tera_flop_per_s=15, memory_gib=16, launch_year=2017),
        gpu("sample-small", tera_flop_per_s=30, memory_gib=8, launch_year=2022),
        gpu("sample-fast", tera_flop_per_s=60, memory_gib=80, launch_year=2022),
    )


def half(of: Gpu) -> Gpu:
    """Return half of the GPU *of*, as a GPU of its own."""
    return replace(
        of,
        sm_count=of.sm_count // 2,
        peak_flop_per_s=MappingProxyType({name: rate / 2 for name, rate in of.peak_flop_per_s.items()}),
        bandwidth_bytes_per_s=of.bandwidth_bytes_per_s / 2,
        power_limit_w=of.power_limit_w / 2,
    )


def knowledge() -> tuple[ObservedFigures, ...]:
    """Return observed figures of a job alone on a GPU: none, a utilization, a step time and its memory."""
    return (
        ObservedFigures(),
        ObservedFigures(gpu_utilization=figure(0.6)),
        ObservedFigures(step_time_s=figure(0.1), memory_bytes=figure(3.0 * GIB)),
    )


def figure(value: float) -> Figure:
    """Return a figure that was measured."""
    return Figure(interval=Interval(value=value, low=value, high=value), source="the samples")


def need(of: Gpu, *, memory_gib: float = 4.0, sm_activity: float = 0.3, step_time_s: float = 0.1) -> GpuNeed:
    """Return the need of a job on the GPU *of*, each figure with 10 % on either side."""
    # The step is given for 15 TFLOP/s, the old GPU's.
    activity = around(sm_activity)
    step = around(step_time_s * 15 * TERA / of.peak_flop_per_s["fp32"])
    memory = around(memory_gib * GIB)

    return GpuNeed(
        gpu=of.name,
        step_time_s=step,
        memory_bytes=memory,
        gpu_utilization=around(0.8),
        sm_activity=activity,
        dram_activity=activity,
        throughput_samples_per_s=Interval(value=1 / step.value, low=1 / step.high, high=1 / step.low),
        fits=memory.high <= of.memory_bytes,
    )


def prices(of: Gpu) -> tuple[Price, ...]:
    """Return the prices of shares of the GPU *of*: half of it and more is cheap."""
    costs = {25: 1.6, 33: 1.3, 50: 1.1, 75: 1.05}
    return tuple(
        Price(gpu=of.name, share_percent=percent, slowdown=Interval(value=cost, low=1.0, high=1.05 * cost))
        for percent, cost in costs.items()
    )


def around(value: float) -> Interval:
    """Return *value* with 10 % on either side."""
    return Interval(value=value, low=0.9 * value, high=1.1 * value)


def policy_input(
    request: GpuRequest | None = None, *, workload: Workload | None = None, **needed: float
) -> PolicyInput:
    """Return a job that asks for *request*, one GPU by default, in a cluster with a pool of each GPU."""
    rows = gpus()
    pools = tuple(
        GpuPool(
            gpu=row.name,
            site_type=row.name,
            gpu_count=4,
            free_gpu_count=2,
            mps_per_gpu=100,
            feature=row.name,
            exact_feature=row.name,
        )
        for row in rows
    )

    return PolicyInput(
        request=request or GpuRequest(gpu_count=1),
        workload=workload or Workload(),
        candidates=tuple(
            Candidate(pool=pool, gpu=row, need=need(row, **needed), shares=prices(row))
            for pool, row in zip(pools, rows, strict=True)
        ),
        cluster=Cluster(manager=MANAGER, version="1", pools=pools),
        rules=Rules(),
    )


def policy_inputs() -> Iterator[PolicyInput]:
    """Yield the inputs that a policy meets, the awkward ones included."""
    plain = policy_input(memory_gib=2.0)
    yield plain
    yield policy_input(memory_gib=20.0)
    yield policy_input(memory_gib=200.0)
    yield policy_input(sm_activity=0.9)
    yield policy_input(GpuRequest(gpu_count=1, gpu_type="sample-old"))
    yield policy_input(GpuRequest(gpu_count=1, gpu_type="unheard-of"))
    yield policy_input(GpuRequest(gpu_count=1, obstacles=("the job is made of several parts",)))
    yield policy_input(GpuRequest(gpu_count=0))
    yield policy_input(GpuRequest(gpu_count=4))
    yield policy_input(GpuRequest(gpu_count=0, mps_thread_percent=50))

    # Promises that any GPU keeps, that some keep, that none keeps, and whose rate none can serve.
    for slo in (Slo(latency_s=10.0), Slo(latency_s=0.15), Slo(latency_s=0.001), Slo(latency_s=1.0, rate_per_s=1e4)):
        yield policy_input(workload=Workload(mode="infer", slo=slo), memory_gib=2.0)
    strange = (replace(candidate, need=replace(candidate.need, familiar=False)) for candidate in plain.candidates)
    yield replace(plain, candidates=tuple(strange))
    yield replace(plain, candidates=(), cluster=replace(plain.cluster, pools=()))
    unknown = GpuPool(gpu=None, site_type="new", gpu_count=8, free_gpu_count=8, mps_per_gpu=100)
    yield replace(plain, cluster=replace(plain.cluster, pools=(*plain.cluster.pools, unknown)))
    yield replace(plain, rules=Rules(sharing=SharingRules(enabled=False)))


def draft(of: PolicyInput) -> Decision:
    """Return the decision that the first policy after eligibility starts from."""
    return Decision(code=Code.KEEP, request=of.request, reasons=(), plugin="sample")


def drafts(of: PolicyInput) -> Iterator[Decision]:
    """Yield the drafts that a policy may meet: nothing changed yet, and a share with a preference."""
    yield draft(of)

    if of.request.gpu_count == 1 and of.request.gpu_type is None:
        share = replace(
            of.request,
            gpu_count=0,
            mps_thread_percent=50,
            memory_cap_bytes=GIB,
            preferred_gpus=tuple(pool.site_type for pool in of.cluster.pools[:1]),
        )
        yield replace(draft(of), request=share, reasons=("an earlier policy thought so",))


def job(manager: str = MANAGER) -> Job:
    """Return a job of *manager*, by default of one that no adapter is for."""
    return Job(
        submission=DecisionRequest(
            manager=manager, fields=MappingProxyType({"comment": "model=sample"}), origin="uid 1000"
        ),
        request=GpuRequest(gpu_count=1),
        request_text="one GPU",
        model_request=ModelRequest(model="sample"),
    )


def submitter() -> Submitter:
    """Return somebody who submits a job."""
    return Submitter(fields=MappingProxyType({"user": "1000", "account": "physics", "job_name": "train"}))


def catalogue() -> GpuCatalogue:
    """Return a catalogue of the three made-up GPUs."""
    return _Catalogue()


class _Catalogue:
    """The made-up GPUs by name."""

    def find(self, name: str) -> Gpu:
        """Return the GPU called *name*."""
        for row in gpus():
            if row.name == name:
                return row
        message = f"GPU {name!r} must be one of the samples; it is not."
        raise DeviceError(message)


def context() -> Context:
    """Return the context of that manager's hooks."""
    return Context(settings=ManagerSettings(), catalogue=catalogue())


def marked_job() -> AnnotatedJob:
    """Return a job of that manager that waits, with a mark."""
    return AnnotatedJob(
        job_id="sample:1",
        manager=MANAGER,
        user="ada",
        state="waiting",
        mark="gpusage 69215f4a0c3e REWRITE one GPU -> half a GPU | it needs no more",
    )


def record() -> DecisionRecord:
    """Return a decision as the store keeps it."""
    return DecisionRecord(
        decided_at_s=0.0,
        manager=MANAGER,
        origin="uid 1000",
        mode="observe",
        decision=draft(policy_input()),
        rendered=RenderedDecision(before="one GPU", after="one GPU", fields=MappingProxyType({})),
    )


def usages() -> tuple[Usage, Usage]:
    """Return the usage of an observed job, and of a job that nobody observed."""
    unseen = Usage(number="", manager=MANAGER, job_id="2", user="ada", started_at_s=0.0, ended_at_s=60.0)
    seen = replace(
        unseen,
        number="69215f4a0c3e",
        job_id="1",
        gpu="v100-sxm2-16gb",
        granted=Allocation(division="percentage", share_percent=40, thread_percent=40, memory_limit_bytes=int(6 * GIB)),
        outcome="completed",
        sampled_s=58.0,
        alone_s=20.0,
        gpu_utilization=0.4,
        memory_bytes=int(3 * GIB),
        energy_j=6000.0,
        cpu_s=55.0,
        cpus=4,
        read_bytes=10**9,
    )
    return seen, unseen
