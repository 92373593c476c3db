"""What a job of several GPUs needs of each: as it is taken to run, and the least in any way that its keys allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.decisions.several_gpus import predict_several
from gpusage_hooks.comment import parse_model
from gpusage_hooks.types import Cluster, Code, Decision, DecisionRequest, GpuPool, GpuRequest, Job, ModelGraph, Workload

MODELS = Path(__file__).parents[3] / "examples" / "models"
NAMES = {"v100": "v100-sxm2-16gb", "a100": "a100-sxm4-40gb"}
POOLS = tuple(
    GpuPool(gpu=gpu, site_type=name, gpu_count=8, free_gpu_count=8, feature=name, exact_feature=name)
    for name, gpu in NAMES.items()
)
TOO_BIG = "batch=2048,precision=fp16,optimizer=adamw"


@pytest.fixture(scope="module")
def advisor() -> Advisor:
    return make_advisor()


@pytest.fixture(scope="module")
def graph(advisor: Advisor) -> ModelGraph:
    return advisor.read(str(MODELS / "vit_b_16.onnx"))


def job_of(words: str, count: int = 2, **request: object) -> Job:
    return Job(
        submission=DecisionRequest(manager="slurm"),
        request=replace(GpuRequest(gpu_count=count), **request),  # type: ignore[arg-type]
        request_text="",
        model_request=parse_model(f"vit,{words}"),
    )


def decided(advisor: Advisor, graph: ModelGraph, words: str, count: int = 2, **request: object) -> Decision:
    cluster = Cluster(manager="slurm", version="24.11.5", pools=POOLS)
    return advisor.decide(job_of(words, count, **request), graph, cluster)


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ("batch=64,precision=fp16", ("ddp", False)),  # which fits on both
        (TOO_BIG, ("fsdp", True)),
        (f"{TOO_BIG},gpus=2,strategy=zero1", ("zero1", True)),
        (f"{TOO_BIG},checkpointing=off", ("ddp", False)),  # which is on neither, nor is fsdp
    ],
)
def test_training_that_does_not_say_how_is_sharded_only_where_no_gpu_has_the_memory_else(
    advisor: Advisor, graph: ModelGraph, words: str, way: tuple[str, bool]
) -> None:
    job, gpus = job_of(words), [advisor.catalogue.find(gpu) for gpu in NAMES.values()]
    assert job.model_request is not None
    run, usual, least = predict_several(advisor, graph, job, job.model_request.workload, gpus)
    assert (run.gpus, run.strategy, run.checkpointing) == (2, *way)
    assert usual == tuple(replace(need, familiar=True) for need in advisor.predict(graph, run, gpus))
    for need, at_least in zip(usual, least, strict=True):
        assert at_least is not None
        assert at_least.required_bytes.value <= need.required_bytes.value


def test_what_no_v100_holds_however_it_is_divided_is_held_to_a100s(advisor: Advisor, graph: ModelGraph) -> None:
    decision = decided(advisor, graph, TOO_BIG)
    assert (decision.code, decision.request.required_gpus) == (Code.REWRITE, ("a100",))
    assert decision.request.gpu_count == 2
    assert decision.request.mps_thread_percent is None
    assert decision.reasons[0].startswith("on 2 GPUs by fsdp with checkpointing, batch 2048 each, a GPU needs ")
    assert decision.reasons[1].startswith("kept off v100: may need up to ")


def test_what_would_fit_divided_is_held_to_nothing_and_told_so(advisor: Advisor, graph: ModelGraph) -> None:
    decision = decided(advisor, graph, "batch=128,precision=fp16,optimizer=adamw")
    assert not decision.request.required_gpus
    assert decision.request.preferred_gpus == ("a100",)
    assert decision.reasons[0].endswith(", more than v100 has unless its GPUs divide more")
    named = decided(advisor, graph, "batch=256,precision=fp16,optimizer=adamw,gpus=2,strategy=ddp,checkpointing=off")
    assert named.request.required_gpus == ("a100",)


def test_what_fits_everywhere_prefers_what_is_faster(advisor: Advisor, graph: ModelGraph) -> None:
    decision = decided(advisor, graph, "batch=64,precision=fp16,optimizer=adamw", 4)
    assert (decision.request.required_gpus, decision.request.preferred_gpus) == ((), ("a100",))
    assert decision.need is not None
    run = Workload(batch_size=64, precision="fp16", optimizer="adamw", gpus=4)
    (need,) = advisor.predict(graph, run, [advisor.catalogue.find(NAMES["a100"])])
    assert decision.need.step_time_s.high == pytest.approx(need.step_time_s.high)  # unequal inputs and all


def test_a_type_with_too_few_gpus_is_not_preferred(advisor: Advisor, graph: ModelGraph) -> None:
    assert not decided(advisor, graph, "batch=64,precision=fp16,optimizer=adamw", 16).request.preferred_gpus


def test_a_type_that_the_user_names_stays(advisor: Advisor, graph: ModelGraph) -> None:
    decision = decided(advisor, graph, TOO_BIG, gpu_type="v100")
    assert (decision.code, decision.request.gpu_type) == (Code.KEEP, "v100")
    assert "more than any GPU that it may use has" in decision.reasons[-1]


def test_a_deadline_counts_for_several_gpus(advisor: Advisor, graph: ModelGraph) -> None:
    run = Workload(batch_size=64, precision="fp16", optimizer="adamw", gpus=2)
    slow, fast = advisor.predict(graph, run, [advisor.catalogue.find(gpu) for gpu in NAMES.values()])
    between_s = (slow.step_time_s.high + fast.step_time_s.high) / 2
    words = "batch=64,precision=fp16,optimizer=adamw,steps=10000"
    decision = decided(advisor, graph, words, deadline_s=int(10000 * between_s))
    assert decision.request.preferred_gpus == ("a100",)
    assert decision.reasons[1] == "a100 is the slowest with room now that ends it by its deadline"


def test_a_model_that_answers_without_generating_needs_at_least_an_equal_part(
    advisor: Advisor, graph: ModelGraph
) -> None:
    job, gpus = job_of("batch=16384,mode=infer", 4), [advisor.catalogue.find(NAMES["v100"])]
    assert job.model_request is not None
    run, (usual,), (least,) = predict_several(advisor, graph, job, job.model_request.workload, gpus)
    assert (run.gpus, usual.fits) == (1, False)
    assert least is not None
    assert least.required_bytes.value == pytest.approx(usual.required_bytes.value / 4)


def test_a_gpu_is_not_too_small_for_what_tensor_parallelism_would_divide(advisor: Advisor) -> None:
    graph = advisor.read(str(MODELS / "gpt2.onnx"))
    words, gpus = "batch=128,precision=bf16", [advisor.catalogue.find("v100-sxm2-32gb")]
    run = parse_model(f"gpt2,{words},gpus=4,tensor=4,checkpointing=on")
    job = job_of(words, 4)
    assert run is not None
    assert job.model_request is not None
    (by_tensor,) = advisor.predict(graph, run.workload, gpus)
    _, (usual,), (least,) = predict_several(advisor, graph, job, job.model_request.workload, gpus)
    assert least is not None
    assert by_tensor.fits
    assert not usual.fits
    assert least.fits
    assert least.required_bytes.low <= by_tensor.required_bytes.low


@pytest.mark.parametrize(("words", "is_chosen"), [("precision=fp16", True), ("precision=fp8-mixed", False)])
def test_what_is_unfamiliar_on_one_gpu_is_unfamiliar_on_several(
    advisor: Advisor, graph: ModelGraph, words: str, is_chosen: bool
) -> None:
    for count in (1, 4):
        assert bool(decided(advisor, graph, f"batch=64,{words}", count).request.preferred_gpus) == is_chosen


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_gpus_1_of_its_user_is_one_process_on_each_gpu(advisor: Advisor, graph: ModelGraph, mode: str) -> None:
    decision = decided(advisor, graph, f"batch=2048,precision=fp16,mode={mode},gpus=1", 4)
    assert decision.reasons[0].startswith("on 4 GPUs with a copy each")
    job, gpus = job_of(f"batch=2048,precision=fp16,mode={mode},gpus=1", 4), [advisor.catalogue.find(NAMES["v100"])]
    assert job.model_request is not None
    run, usual, least = predict_several(advisor, graph, job, job.model_request.workload, gpus)
    assert (run.gpus, usual) == (1, least)
    assert usual == advisor.predict(graph, run, gpus)
