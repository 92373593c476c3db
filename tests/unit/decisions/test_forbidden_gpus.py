"""`forbid=t4+v100`: the job is held to the other GPU types, or its user reads why not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.decisions.outcome import Outcome
from gpusage.experience.learned import Learned, with_failures
from gpusage.policies.candidates import without_forbidden
from gpusage_hooks.comment import parse_model
from gpusage_hooks.errors import DeviceError, RequestError
from gpusage_hooks.types import Cluster, Code, DecisionRequest, GpuPool, ModelGraph
from gpusage_yarn.cluster.snapshot import ContainerSize, build_cluster, read_snapshot
from gpusage_yarn.submission.planning import PlannedSubmission, plan_submission

ROOT = Path(__file__).parents[3]
MODEL = str(ROOT / "examples/models/dlrm.onnx")
POOLS = tuple(
    GpuPool(gpu=gpu, site_type=name, gpu_count=4, free_gpu_count=4, mps_per_gpu=100, feature=name, exact_feature=name)
    for name, gpu in (("t4", "t4"), ("v100", "v100-sxm2-16gb"), ("a100", "a100-sxm4-40gb"))
)
SLURM = Cluster(manager="slurm", version="24.11.5", pools=POOLS)
SNAPSHOT = read_snapshot(json.loads((ROOT / "tests/golden/yarn/3.4.2.json").read_text()).get)
SIZE = ContainerSize(memory_mib=4096, vcores=1)


@pytest.fixture(scope="module")
def advisor() -> Advisor:
    return make_advisor()


@pytest.fixture(scope="module")
def graph(advisor: Advisor) -> ModelGraph:
    return advisor.read(MODEL)


def on_slurm(
    advisor: Advisor, graph: ModelGraph, keys: str, *lines: str, gres: str = "gpu:1", cluster: Cluster = SLURM
) -> Outcome:
    directives = (f"--gres={gres}", f"--comment=model={MODEL},batch=8,mode=infer{keys}", *lines)
    script = "\n".join(["#!/bin/bash", *(f"#SBATCH {each}" for each in directives), "python serve.py", ""])
    job = advisor.parse(DecisionRequest(manager="slurm", script=script))
    return advisor.advise(job, cluster, lambda *_: graph)


def on_yarn(advisor: Advisor, graph: ModelGraph, keys: str) -> PlannedSubmission:
    fields = {"user": "ada", "memory_mib": "4096", "vcores": "1"}
    job = advisor.parse(DecisionRequest(manager="yarn", fields=fields))
    job = replace(job, model_request=parse_model(f"{MODEL},batch=8,mode=infer{keys}"))
    return plan_submission(advisor, job, graph, SNAPSHOT, SIZE)


def test_a_share_is_bound_to_the_types_that_are_not_forbidden(advisor: Advisor, graph: ModelGraph) -> None:
    outcome = on_slurm(advisor, graph, ",forbid=t4")
    assert outcome.decision.code is Code.REWRITE
    assert outcome.decision.request.mps_thread_percent is not None
    assert {*outcome.decision.request.required_gpus} <= {"v100", "a100"}
    assert "t4" not in outcome.rendered.fields["set.features"]
    assert outcome.decision.reasons[-1] == "kept off t4"


@pytest.mark.parametrize("count", [1, 2])
def test_whole_gpus_are_bound_too(advisor: Advisor, graph: ModelGraph, count: int) -> None:
    outcome = on_slurm(advisor, graph, ",slowdown=1,forbid=t4+V100", gres=f"gpu:{count}")
    assert outcome.decision.request.gpu_count == count
    assert outcome.rendered.fields == {"set.features": "a100"}
    assert outcome.rendered.after == f"gres/gpu:{count}, constraint a100"


@pytest.mark.parametrize(
    ("keys", "gres"), [("", "gpu:1"), (",forbid=h100", "gpu:1"), (",forbid=t4", "gpu:a100:1"), (",forbid=t4", "gpu:0")]
)
def test_a_job_that_could_not_get_a_forbidden_type_is_bound_to_none(
    advisor: Advisor, graph: ModelGraph, keys: str, gres: str
) -> None:
    decision = on_slurm(advisor, graph, f",slowdown=1{keys}", gres=gres).decision
    assert not decision.request.required_gpus
    assert not any("t4" in reason for reason in decision.reasons)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--nodelist=n1", "the job cannot be bound to v100, a100, the only types that it allows"),
        ("--ntasks=2", "--ntasks=2 tasks would divide one share"),
    ],
)
def test_where_it_cannot_be_kept_off_its_user_reads_so(
    advisor: Advisor, graph: ModelGraph, line: str, why: str
) -> None:
    decision = on_slurm(advisor, graph, ",forbid=t4", line).decision
    assert decision.code is Code.KEEP
    assert why in decision.reasons[0]
    assert decision.reasons[-1] == "it may get t4, which it forbids"


def test_a_cluster_without_features_says_that_it_cannot_express_it(advisor: Advisor, graph: ModelGraph) -> None:
    plain = replace(SLURM, pools=tuple(replace(pool, exact_feature=None) for pool in POOLS))
    decision = on_slurm(advisor, graph, ",forbid=t4", cluster=plain).decision
    assert decision.code is Code.KEEP
    assert "cannot be bound to v100, a100" in decision.reasons[0]


def test_a_name_that_no_gpu_has_is_refused_with_the_nearest(advisor: Advisor, graph: ModelGraph) -> None:
    decision = on_slurm(advisor, graph, ",forbid=v10").decision
    assert decision.code is Code.KEEP
    assert "'v10'" in decision.reasons[0]


def test_all_types_are_too_many(advisor: Advisor, graph: ModelGraph) -> None:
    decision = on_slurm(advisor, graph, ",forbid=t4+v100+a100").decision
    assert decision.code is Code.KEEP
    assert "must leave a GPU type that the job can get; got 't4+v100+a100'" in decision.reasons[-1]


@pytest.mark.parametrize("keys", ["", ",slowdown=1"])
def test_yarn_s_plan_has_no_label_of_a_forbidden_type(advisor: Advisor, graph: ModelGraph, keys: str) -> None:
    assert {*on_yarn(advisor, graph, keys).plan.labels} == {"v100", "a100", "h100"}
    assert {*on_yarn(advisor, graph, f"{keys},forbid=v100+a100").plan.labels} == {"h100"}
    with pytest.raises(RequestError, match="must leave a GPU type that the job can get; got 'v100"):
        on_yarn(advisor, graph, f"{keys},forbid=v100+a100+h100")


def test_other_clients_of_yarn_are_told_that_they_cannot_be_bound(advisor: Advisor, graph: ModelGraph) -> None:
    fields = {"user": "ada", "comment": f"{MODEL},batch=8,mode=infer,forbid=v100"}
    job = advisor.parse(DecisionRequest(manager="yarn", fields=fields))
    cluster = build_cluster(SNAPSHOT, advisor.catalogue)
    decision = advisor.advise(job, cluster, lambda *_: graph).decision
    assert decision.code is Code.KEEP
    assert decision.reasons[-1] == "it may get v100, which it forbids"


def test_a_short_name_is_each_kind_of_the_gpu_and_a_site_s_own_name_counts(advisor: Advisor) -> None:
    kinds = ("a100-sxm4-40gb", "a100-pcie-80gb", "h100-sxm5-80gb")
    pools = tuple(replace(POOLS[0], gpu=gpu, site_type=f"type{index}") for index, gpu in enumerate(kinds))
    cluster = replace(SLURM, pools=(*pools, replace(POOLS[0], gpu=None, site_type="odd")))

    def left(*names: str) -> list[str]:
        return [pool.site_type for pool in without_forbidden(cluster, names, advisor.catalogue).pools]

    assert left("A100") == ["type2", "odd"]
    assert left("a100-pcie-80gb", "odd") == ["type0", "type2"]
    assert without_forbidden(cluster, (), advisor.catalogue) is cluster
    with pytest.raises(DeviceError):
        left("nonsense")


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("nvidia-a100", {"a100-sxm4-40gb", "a100-pcie-80gb", "a100-sxm4-40gb:3g.20gb"}),
        ("a100-40gb", {"a100-sxm4-40gb", "a100-sxm4-40gb:3g.20gb"}),
        ("A100_SXM4_40GB", {"a100-sxm4-40gb", "a100-sxm4-40gb:3g.20gb"}),
        ("a100-80gb", {"a100-pcie-80gb"}),
        ("3g.20gb", {"a100-sxm4-40gb:3g.20gb"}),
        ("v100", {"v100-pcie-32gb"}),
        ("a10", set()),
    ],
)
def test_a_forbidden_gpu_is_forbidden_however_it_is_spelled_and_with_it_its_slices(
    advisor: Advisor, name: str, kinds: set[str]
) -> None:
    gpus = ("a100-sxm4-40gb", "a100-pcie-80gb", "a100-sxm4-40gb:3g.20gb", "v100-pcie-32gb", "v100s-pcie-32gb", "t4")
    pools = tuple(replace(POOLS[0], gpu=gpu, site_type=f"type{index}") for index, gpu in enumerate(gpus))
    left = without_forbidden(replace(SLURM, pools=pools), (name,), advisor.catalogue)
    assert {*gpus} - {pool.gpu for pool in left.pools} == kinds


def test_a_slice_that_the_catalogue_does_not_know_is_forbidden_with_the_gpu_of_its_name(advisor: Advisor) -> None:
    odd = replace(POOLS[0], gpu=None, site_type="a100_1g.5gb+me")
    left = without_forbidden(replace(SLURM, pools=(*POOLS, odd)), ("a100",), advisor.catalogue)
    assert [pool.site_type for pool in left.pools] == ["t4", "v100"]


def test_a_slice_that_is_not_forbidden_is_all_that_its_job_is_bound_to(advisor: Advisor, graph: ModelGraph) -> None:
    name = "a100_2g.10gb"
    sliced = replace(POOLS[2], gpu="a100-sxm4-40gb:2g.10gb", site_type=name, feature=name, exact_feature=name)
    unshared = (replace(pool, mps_per_gpu=None) for pool in (POOLS[2], sliced))
    cluster = replace(SLURM, pools=(POOLS[0], *unshared))
    request = on_slurm(advisor, graph, ",slowdown=90,forbid=t4", cluster=cluster).decision.request
    assert (request.slice_type, request.required_gpus) == (name, ())
    request = on_slurm(advisor, graph, ",slowdown=90,forbid=a100-sxm4-40gb", cluster=cluster).decision.request
    assert (request.slice_type, request.required_gpus) == (None, ("t4",))


def test_after_a_failure_on_a_slice_the_next_try_has_the_next_larger_gpu(advisor: Advisor, graph: ModelGraph) -> None:
    """Its user's own request, for any GPU, could land on such a slice again."""
    sliced = replace(POOLS[2], gpu="a100-sxm4-40gb:1g.5gb", site_type="1g", feature="1g", exact_feature="1g")
    pools = tuple(replace(pool, mps_per_gpu=None) for pool in (sliced, POOLS[2]))
    cluster = replace(SLURM, pools=pools)
    first = on_slurm(advisor, graph, ",slowdown=90", cluster=cluster)
    assert first.rendered.after == f"gres/gpu:1g:1, else {POOLS[2].site_type}"
    assert first.model is not None
    assert first.job is not None
    identity = replace(first.model, user=first.job.submitter.user, job_name=first.job.submitter.job_name)
    failed = replace(advisor, learned=Learned(failures=with_failures({}, [identity])))
    second = on_slurm(failed, graph, ",slowdown=90", cluster=cluster)
    assert (second.mode, second.rendered.after) == (first.mode, f"gres/gpu:{POOLS[2].site_type}:1")
    assert second.decision.reasons == (
        f"the last job like it failed in its part of a GPU, so this one has {POOLS[2].site_type}",
    )
