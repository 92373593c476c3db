"""A decision as a plan."""

from __future__ import annotations

import dataclasses

from gpusage.devices.catalogue import builtin_catalogue
from gpusage_hooks.managers import Context
from gpusage_hooks.types import (
    Cluster,
    Code,
    Decision,
    DecisionRequest,
    GpuNeed,
    GpuPool,
    Interval,
    Job,
    RenderedDecision,
)
from gpusage_hooks.units import GIB
from gpusage_yarn.settings import YarnSettings
from gpusage_yarn.submission.request import parse_submission, render_decision

CONTEXT = Context(settings=YarnSettings(), catalogue=builtin_catalogue())
POOLS = tuple(
    GpuPool(gpu=gpu, site_type=label, gpu_count=2, free_gpu_count=2, mps_per_gpu=100, feature=label)
    for label, gpu in (("a100", "a100-sxm4-80gb"), ("h100", "h100-sxm5-80gb"), ("v100", "v100-sxm2-16gb"))
)


def job_of(**fields: str) -> Job:
    job = parse_submission(DecisionRequest(manager="yarn", fields=fields))
    assert job is not None
    return job


def need(gib: float) -> GpuNeed:
    one = Interval(value=1, low=1, high=1)
    memory = Interval(value=gib * GIB, low=gib * GIB, high=gib * GIB)
    figures = dict.fromkeys(
        ("step_time_s", "gpu_utilization", "sm_activity", "dram_activity", "throughput_samples_per_s"), one
    )
    return GpuNeed(gpu="v100-sxm2-16gb", memory_bytes=memory, fits=True, **figures)


def rendered(
    job: Job,
    *,
    pools: tuple[GpuPool, ...] = POOLS,
    code: Code = Code.REWRITE,
    need: GpuNeed | None = None,
    **changes: object,
) -> RenderedDecision:
    request = dataclasses.replace(job.request, **changes)  # type: ignore[arg-type]
    decision = Decision(code=code, request=request, reasons=(), plugin="test", need=need)
    rendered_job = render_decision(job, decision, Cluster(manager="yarn", version="3.4.2", pools=pools), CONTEXT)
    assert rendered_job is not None
    return rendered_job


def share(job: Job, percent: int = 40, **changes: object) -> RenderedDecision:
    return rendered(job, gpu_count=0, mps_thread_percent=percent, memory_cap_bytes=6 * GIB, **changes)  # type: ignore[arg-type]


def test_a_share_carries_its_memory_and_its_generations_in_turn() -> None:
    assert share(job_of(), preferred_gpus=("v100",)) == RenderedDecision(
        before="yarn.io/gpu: 1",
        after="gpusage.io/share: 40 on v100, then a100, then h100",
        fields={
            "set.share": "40",
            "set.labels": "v100,a100,h100",
            "set.fallback_after_s": "30",
            "set.priority": "1",
            "env.GPUSAGE_DECISION": "share=40",
        },
    )


def test_a_slice_is_a_whole_gpu_of_its_label() -> None:
    fields = rendered(job_of(), required_gpus=("h100",)).fields
    assert (fields["set.share"], fields["set.labels"]) == ("100", "h100")


def test_a_share_without_a_latency_limit_lets_others_go_first() -> None:
    assert share(job_of()).fields["set.priority"] == "1"
    urgent = job_of(comment="model=r.onnx,mode=infer,slo=50ms")
    assert "set.priority" not in share(urgent).fields


def test_a_plan_may_let_a_container_use_more_threads_than_its_share() -> None:
    assert share(job_of(), thread_cap_percent=80).fields["set.threads"] == "80"


def test_a_label_that_the_user_named_stays_the_only_one() -> None:
    actual = share(job_of(label="a100"))
    assert actual.fields["set.labels"] == "a100"
    assert "set.fallback_after_s" not in actual.fields


def test_a_share_never_goes_where_gpus_are_not_shared() -> None:
    pools = (POOLS[0], dataclasses.replace(POOLS[1], mps_per_gpu=None))
    assert share(job_of(), pools=pools).fields["set.labels"] == "a100"


def test_a_share_that_holds_on_some_labels_only_names_no_other() -> None:
    actual = share(job_of(), required_gpus=("h100", "a100"))
    assert actual.fields["set.labels"] == "a100,h100"
    assert actual.after == "gpusage.io/share: 40 on a100, then h100"


def test_a_whole_gpu_goes_only_where_its_memory_is_enough() -> None:
    rendered_job = rendered(job_of(), preferred_gpus=("h100",), need=need(20))  # a V100 has 16 GiB
    assert rendered_job.fields["set.labels"] == "h100,a100"
    assert (rendered_job.fields["set.share"], rendered_job.after) == ("100", "gpusage.io/share: 100 on h100, then a100")


def test_labels_out_of_the_queue_s_reach_are_left_out() -> None:
    pools = (dataclasses.replace(POOLS[0], partitions=("other",)), POOLS[1])
    assert share(job_of(queue="mine"), pools=pools).fields["set.labels"] == "h100"


def test_what_is_kept_changes_nothing() -> None:
    rendered_job = rendered(job_of(), code=Code.KEEP)
    assert (rendered_job.before, rendered_job.after, dict(rendered_job.fields)) == (
        "yarn.io/gpu: 1",
        "yarn.io/gpu: 1",
        {},
    )


def test_a_cluster_without_labels_has_no_words_for_it() -> None:
    assert dict(share(job_of(), pools=()).fields) == {}
