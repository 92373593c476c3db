"""A site's plugin for these tests: a cluster out of a file, plain predictions, a policy that always gives 40 %.

It is installed like anyone's (a folder with an entry point on the path), so it is heard before the built-in plugins.
The file that GPUSAGE_TEST_CLUSTER names says how it behaves: an object with ``fail``, ``hang``, ``heard`` or ``deaf``.
With ``usage``, a list of decisions' numbers, each of their jobs ran for an hour on 40 % of a V100.
With ``silent`` it leaves predictions and decisions to the built-in plugins.
With ``name`` the cluster has that name.
With ``free`` there are H100, too, of which so many are free; shares of them are cheap, those of the V100 dear, and the
built-in policies decide.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpusage_hooks import hookimpl
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import (
    Allocation,
    Cluster,
    Code,
    Decision,
    DecisionRecord,
    DecisionRequest,
    Gpu,
    GpuNeed,
    GpuPool,
    Interval,
    ModelGraph,
    PolicyInput,
    Stage,
    Usage,
    Workload,
)

_SLEPT: set[str] = set()


def _behaviour() -> dict[str, object]:
    document: dict[str, object] = json.loads(Path(os.environ["GPUSAGE_TEST_CLUSTER"]).read_text(encoding="utf-8"))
    return document


@hookimpl
def observe_cluster(manager: str) -> Cluster | None:
    """Do as the file says."""
    if manager != "slurm":
        return None
    behaviour = _behaviour()
    if "fail" in behaviour:
        raise RequestError(str(behaviour["fail"]))
    while "hang" in _behaviour():
        time.sleep(0.05)
    pool = GpuPool(gpu="v100-sxm2-16gb", site_type="v100", gpu_count=4, free_gpu_count=2, mps_per_gpu=100)
    pools = (pool, *_bindable(behaviour.get("free")))
    return Cluster(manager="slurm", version="24.11", pools=pools, name=str(behaviour.get("name", "")))


def _bindable(free: object) -> Iterator[GpuPool]:
    if isinstance(free, int):
        yield GpuPool(
            gpu="h100-sxm5-80gb",
            site_type="h100",
            gpu_count=4,
            free_gpu_count=free,
            mps_per_gpu=100,
            feature="h100",
            exact_feature="h100",
        )


@hookimpl
def predict_slowdown(gpus: Sequence[Gpu], parts: Sequence[Sequence[Gpu]]) -> Sequence[Sequence[Interval]] | None:
    """Say that a share of an H100 costs next to nothing, and one of anything else three times as long a step."""
    if "silent" in _behaviour():
        return None
    cheap, dear = Interval(value=1.02, low=1.0, high=1.05), Interval(value=3.0, low=2.9, high=3.1)
    return [
        [cheap if gpu.name.startswith("h100") else dear for _ in of_gpu]
        for gpu, of_gpu in zip(gpus, parts, strict=True)
    ]


@hookimpl
def parse_submission(submission: DecisionRequest) -> None:
    """Leave it to the others; for one model after 50 ms of work."""
    until_s = time.thread_time() + 0.05 * submission.fields.get("comment", "").startswith("model=toil")
    while time.thread_time() < until_s:
        pass


@hookimpl
def predict_needs(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> Sequence[GpuNeed] | None:
    """Take as long as the name of the model says, once, as a predictor does that remembers what it worked out."""
    if "silent" in _behaviour():
        return None
    word, _, seconds = graph.name.partition("=")
    if word == "sleep" and graph.name not in _SLEPT:
        time.sleep(float(seconds))
        _SLEPT.add(graph.name)
    if word == "fault":
        raise ZeroDivisionError(graph.name)
    if word == "few":
        return []
    return [_need(workload, gpu) for gpu in gpus]


def _need(workload: Workload, gpu: Gpu) -> GpuNeed:
    """Return 0.1 s, 4 GB, and 30 % of everything."""
    activity, samples = Interval(value=0.3, low=0.25, high=0.35), float(workload.batch_size)
    return GpuNeed(
        gpu=gpu.name,
        step_time_s=Interval(value=0.1, low=0.08, high=0.125),
        memory_bytes=Interval(value=4e9, low=3.9e9, high=4.1e9),
        gpu_utilization=activity,
        sm_activity=activity,
        dram_activity=activity,
        throughput_samples_per_s=Interval(value=samples / 0.1, low=samples / 0.125, high=samples / 0.08),
        fits=gpu.memory_bytes >= 4.1e9,
    )


@hookimpl
def decide(stage: Stage, policy_input: PolicyInput, draft: Decision) -> Decision | None:
    """Give 40 %; who may have it, the built-in policy says."""
    if stage == "eligibility" or _behaviour().keys() & {"free", "silent"}:
        return None
    if "dict" in _behaviour():
        return {"code": "KEEP"}  # type: ignore[return-value]
    if stage == "fit":
        return replace(draft, need=policy_input.candidates[0].need)
    return _shared(draft) if stage == "sharing" else draft


def _shared(draft: Decision) -> Decision:
    request = replace(draft.request, gpu_count=0, mps_thread_percent=40, memory_cap_bytes=4_100_000_000)
    return replace(draft, code=Code.REWRITE, request=request, reasons=("the test says so",))


@hookimpl
def decision_made(record: DecisionRecord) -> None:
    """Fail, or leave a line, as the file says."""
    behaviour = _behaviour()
    if "deaf" in behaviour:
        raise ValueError(str(behaviour["deaf"]))
    if "heard" in behaviour:
        with Path(str(behaviour["heard"])).open("a", encoding="utf-8") as heard:
            heard.write(f"{record.decision.code.value} {record.model}\n")


@hookimpl
def collect_usage(manager: str) -> tuple[Usage, ...] | None:
    """Tell of the jobs that the file names, as having ended long ago."""
    numbers = _behaviour().get("usage")
    if manager != "slurm" or not isinstance(numbers, list):
        return None
    return tuple(
        Usage(
            number=number,
            manager=manager,
            job_id="7",
            user="ada",
            gpu="v100-sxm2-16gb",
            granted=Allocation(division="percentage", share_percent=40, thread_percent=40),
            outcome="completed",
            started_at_s=1_800_000_000.0,
            ended_at_s=1_800_003_600.0,
            sampled_s=3590.0,
            alone_s=3590.0,
            gpu_utilization=0.5,
        )
        for number in numbers
    )
