"""The built-in policies, each alone and then in their turn; a cluster of two GPU types, built here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest

from gpusage.policies.candidates import admitted_candidates
from gpusage.policies.latency import decide_slo
from gpusage.policies.preference import decide_generation
from gpusage.policies.stages import decide_eligibility, decide_fit
from gpusage.predictors.intervals import speedup
from gpusage_hooks.types import (
    Candidate,
    Cluster,
    Code,
    Decision,
    GenerationRules,
    Gpu,
    GpuNeed,
    GpuPool,
    GpuRequest,
    Interval,
    PolicyInput,
    Rules,
    Slo,
    SloRules,
    Workload,
)
from gpusage_hooks.units import GIB


def gpu(name: str, *, gib: float = 16, year: int = 2017, capability: tuple[int, int] = (7, 0)) -> Gpu:
    return Gpu(
        name=name,
        aliases=(),
        generation=str(year),
        compute_capability=capability,
        sm_count=80,
        clock_hz=1.5e9,
        peak_flop_per_s=MappingProxyType({"fp32": 15e12}),
        memory_bytes=int(gib * GIB),
        bandwidth_bytes_per_s=9e11,
        l2_bytes=6 << 20,
        power_limit_w=300.0,
        launch_year=year,
        source="made up",
    )


def exactly(value: float, spread: float = 0.0) -> Interval:
    return Interval(value=value, low=value * (1 - spread), high=value * (1 + spread))


def need(of: Gpu, *, gib: float = 4.0, sm: float = 0.3, step_s: float = 0.1, spread: float = 0.0) -> GpuNeed:
    memory = exactly(gib * GIB, spread)
    return GpuNeed(
        gpu=of.name,
        step_time_s=exactly(step_s, spread),
        memory_bytes=memory,
        gpu_utilization=exactly(0.9),
        sm_activity=exactly(sm, spread),
        dram_activity=exactly(0.2),
        throughput_samples_per_s=exactly(1 / step_s),
        fits=memory.high <= of.memory_bytes,
    )


def pool(of: Gpu, *, mps: int | None = 100, gpu_count: int = 4) -> GpuPool:
    name = of.name.partition("-")[0]
    return GpuPool(
        gpu=of.name, site_type=name, gpu_count=gpu_count, free_gpu_count=0, mps_per_gpu=mps, feature=f"gpu_{name}"
    )


V100 = gpu("v100-sxm2-16gb")
H100 = gpu("h100-sxm5-80gb", gib=80, year=2022, capability=(9, 0))
P100 = gpu("p100-pcie-16gb", year=2016, capability=(6, 0))


def make_input(
    *rows: tuple[Gpu, GpuNeed],
    request: GpuRequest | None = None,
    rules: Rules | None = None,
    workload: Workload | None = None,
    pools: Sequence[GpuPool] | None = None,
    others: Sequence[GpuPool] = (),
) -> PolicyInput:
    seen = tuple(pools or [pool(row) for row, _ in rows])
    return PolicyInput(
        request=request or GpuRequest(gpu_count=1),
        workload=workload or Workload(),
        candidates=tuple(
            Candidate(pool=where, gpu=row, need=need) for where, (row, need) in zip(seen, rows, strict=True)
        ),
        cluster=Cluster(manager="slurm", version="24.11", pools=(*seen, *others)),
        rules=rules or Rules(),
    )


def draft(of: PolicyInput) -> Decision:
    return Decision(code=Code.KEEP, request=of.request, reasons=(), plugin="test")


def shared(of: PolicyInput, percent: int = 40) -> Decision:
    return replace(draft(of), request=replace(of.request, gpu_count=0, mps_thread_percent=percent, memory_cap_bytes=9))


def small(of: Gpu = V100) -> tuple[Gpu, GpuNeed]:
    return of, need(of)


# Eligibility: which requests may be changed at all.


def eligible(of: PolicyInput) -> Decision | None:
    return decide_eligibility(of, draft(of))


@pytest.mark.parametrize("count", [1, 2])
def test_whole_gpus_go_on(count: int) -> None:
    assert eligible(make_input(small(), request=GpuRequest(gpu_count=count))) is None


def test_history_decides_on_one_gpu_alone() -> None:
    gpu, needed = small()
    decision = eligible(make_input((gpu, replace(needed, source="history")), request=GpuRequest(gpu_count=2)))
    assert decision is not None
    assert decision.reasons == ("the job asks for 2 GPUs, and history decides only on one",)


@pytest.mark.parametrize(
    ("request_", "code", "reason"),
    [
        (GpuRequest(gpu_count=0), Code.DECLINE, "the job asks for no whole GPU"),
        (GpuRequest(gpu_count=1, obstacles=("--exclusive takes it all",)), Code.KEEP, "--exclusive takes it all"),
        (GpuRequest(gpu_count=0, mps_thread_percent=5), Code.KEEP, "the job asks for a share of a GPU already"),
        (GpuRequest(gpu_count=1, gpu_type="a100"), Code.KEEP, "no node that it may use has a GPU of type 'a100'"),
    ],
)
def test_the_rest_is_refused_with_a_reason(request_: GpuRequest, code: Code, reason: str) -> None:
    decision = eligible(make_input(small(), request=request_))
    assert decision is not None
    assert (decision.code, decision.reasons, decision.request) == (code, (reason,), request_)
    assert decision.final


def test_a_job_that_asks_for_one_gpu_and_means_several_keeps_it_whole() -> None:
    decision = eligible(make_input(small(), workload=Workload(batch_size=8, gpus=8, strategy="fsdp")))
    assert decision is not None
    assert (decision.code, decision.reasons) == (Code.KEEP, ("gpus=8 is not the 1 GPU that the job asks for",))


def test_a_job_on_several_gpus_is_told_what_each_needs() -> None:
    rows = [(V100, need(V100, gib=6.0)), (H100, need(H100, gib=20.0))]
    run = Workload(batch_size=8, gpus=4, strategy="fsdp")
    one = make_input(*rows, request=GpuRequest(gpu_count=4), workload=run)
    decision = decide_fit(one, draft(one))
    assert decision is not None
    assert decision.request == GpuRequest(gpu_count=4)
    assert decision.reasons == ("on 4 GPUs by fsdp, batch 8 each, a GPU needs 20.0 GiB (up to 20.0 GiB)",)
    of_copies = replace(run, gpus=8, tensor=2, pipeline=2)
    copies = make_input(*rows, request=GpuRequest(gpu_count=8), workload=of_copies)
    decision = decide_fit(copies, draft(copies))
    assert decision is not None
    assert decision.reasons[0].startswith("on 8 GPUs by fsdp, batch 8 for each 4, a GPU needs")
    assert len(decision.reasons) == 1
    decision = eligible(make_input(*rows, request=GpuRequest(gpu_count=4), workload=of_copies))
    assert decision is not None
    assert decision.reasons[1] == "gpus=8 is not the 4 GPUs that the job asks for"
    on_two_nodes = GpuRequest(gpu_count=8, obstacles=("the job may use several nodes",))
    decision = eligible(make_input(*rows, request=on_two_nodes, workload=of_copies))
    assert decision is not None
    assert decision.reasons[0] == "the job may use several nodes"
    assert decision.reasons[1].startswith("on 8 GPUs by fsdp, batch 8 for each 4, a GPU needs")
    (of, _), *_ = rows
    decision = eligible(make_input((of, need(of, gib=100.0)), request=on_two_nodes, workload=of_copies))
    assert decision is not None
    assert decision.reasons[1].endswith("needs 100.0 GiB (up to 100.0 GiB), more than v100 has")


def test_a_gpu_that_the_catalogue_does_not_know_is_left_alone() -> None:
    unknown = GpuPool(gpu=None, site_type="mi300", gpu_count=1, free_gpu_count=1, mps_per_gpu=100)
    decision = eligible(make_input(others=[unknown]))
    assert decision is not None
    assert decision.reasons == ("none of the GPU types that the job may use is in the catalogue",)


def test_a_cluster_without_gpus_is_said_to_have_none() -> None:
    decision = eligible(make_input())
    assert decision is not None
    assert decision.reasons == ("no node that it may use has a GPU",)


@pytest.mark.parametrize("named", ["v100", "V100", "v100-sxm2-16gb"])
def test_a_type_may_be_named_as_the_site_or_as_the_catalogue_does(named: str) -> None:
    both = make_input(small(), small(H100), request=GpuRequest(gpu_count=1, gpu_type=named))
    assert eligible(both) is None
    assert [candidate.name for candidate in admitted_candidates(both)] == ["v100"]


# Fit: where the pessimistic end of the memory fits.


def test_what_fits_everywhere_needs_no_words() -> None:
    policy_input = make_input(small(), small(H100))
    decision = decide_fit(policy_input, draft(policy_input))
    assert decision is not None
    assert decision.reasons == ()
    assert decision.need == need(V100)  # 4 of 16 GiB is tighter than 4 of 80


def test_the_pessimistic_end_counts() -> None:
    """15 GiB fit in 16, but 15 x 1.1 = 16.5 do not: the job is held to the type that surely holds it."""
    policy_input = make_input((V100, need(V100, gib=15, spread=0.1)), (H100, need(H100, gib=15, spread=0.1)))
    decision = decide_fit(policy_input, draft(policy_input))
    assert decision is not None
    assert decision.reasons == ("kept off v100: may need up to 16.5 GiB",)
    assert decision.request.required_gpus == ("h100",)
    assert not decision.final


def test_what_fits_nowhere_is_kept_as_asked() -> None:
    policy_input = make_input((V100, need(V100, gib=100)), (H100, need(H100, gib=100)))
    decision = decide_fit(policy_input, draft(policy_input))
    assert decision is not None
    assert (decision.code, decision.request, decision.final) == (Code.KEEP, policy_input.request, True)
    assert decision.reasons == (
        "may need up to 100.0 GiB, more than any GPU that it may use has (the largest, h100, has 80.0 GiB)",
    )


def steps(v100_s: float, h100_s: float, *, spread: float = 0.05, **more: object) -> PolicyInput:
    rows = (V100, need(V100, step_s=v100_s, spread=spread)), (H100, need(H100, step_s=h100_s, spread=spread))
    return make_input(*rows, **more)  # type: ignore[arg-type]


def preferred(of: PolicyInput) -> tuple[str, ...]:
    decision = decide_generation(of, draft(of))
    return decision.request.preferred_gpus if decision else ()


# Generation: new GPUs for the jobs that gain from them.


def test_a_job_that_gains_much_prefers_the_new_gpu() -> None:
    policy_input = steps(0.3, 0.1)
    decision = decide_generation(policy_input, draft(policy_input))
    assert decision is not None
    assert decision.request.preferred_gpus == ("h100",)
    gain = speedup(*reversed([item.need for item in admitted_candidates(policy_input)]))
    # 5 % either way on both, were they independent: exp(hypot(log(1.05), log(1 / 0.95))) = 1.073
    assert 2.79 < gain.low < gain.high < 3.23
    assert decision.reasons == (f"3.00x ({gain.low:.2f}-{gain.high:.2f}) on h100 against v100",)


def test_a_gain_against_a_gpu_without_units_for_the_precision_is_said_to_be_one() -> None:
    workload = replace(steps(0.3, 0.1), workload=Workload(precision="bf16"))
    decision = decide_generation(workload, draft(workload))
    assert decision is not None
    assert decision.reasons[0].endswith("on h100 against v100, which has no units for bf16")


def test_a_job_that_gains_little_leaves_the_new_gpu_to_others() -> None:
    policy_input = steps(0.108, 0.1)
    decision = decide_generation(policy_input, draft(policy_input))
    assert decision is not None
    assert decision.request.preferred_gpus == ("v100",)
    assert decision.reasons[0].startswith("only 1.08x (1.0")
    assert decision.reasons[0].endswith(") on h100, which is left to jobs that gain more")


def test_the_sites_threshold_decides() -> None:
    assert preferred(steps(0.124, 0.1, spread=0.01)) == ("v100",)
    assert preferred(steps(0.126, 0.1, spread=0.01)) == ("h100",)
    lenient = Rules(generation=GenerationRules(minimum_speedup=1.1))
    assert preferred(steps(0.124, 0.1, spread=0.01, rules=lenient)) == ("h100",)


def test_a_gain_that_the_intervals_do_not_prove_is_no_preference() -> None:
    """0.15 x 0.4 = 0.06 < 0.1 x 1.6 = 0.16: V100 may be the faster one after all."""
    assert preferred(steps(0.15, 0.1, spread=0.6)) == ()


def test_a_named_type_is_kept() -> None:
    assert preferred(steps(0.3, 0.1, request=GpuRequest(gpu_count=1, gpu_type="v100"))) == ()


def test_a_gpu_that_is_too_small_is_not_preferred() -> None:
    policy_input = make_input((V100, need(V100, gib=20)), (H100, need(H100, gib=20, step_s=0.2)))
    assert preferred(policy_input) == ("h100",)


def test_an_unfamiliar_gpu_is_neither_preferred_nor_passed_over() -> None:
    policy_input = make_input((V100, need(V100, step_s=0.3)), (H100, replace(need(H100), familiar=False)))
    assert preferred(policy_input) == ()


def test_a_pool_that_cannot_be_asked_for_is_not_preferred() -> None:
    policy_input = steps(0.3, 0.1, pools=[pool(V100), replace(pool(H100), feature=None)])
    assert preferred(policy_input) == ()


def test_an_empty_pool_does_not_exist() -> None:
    assert preferred(steps(0.3, 0.1, pools=[pool(V100), pool(H100, gpu_count=0)])) == ()


def test_a_site_can_turn_it_off() -> None:
    assert preferred(steps(0.3, 0.1, rules=Rules(generation=GenerationRules(enabled=False)))) == ()


def test_of_three_generations_the_oldest_that_is_good_enough_wins() -> None:
    policy_input = make_input(
        (P100, need(P100, step_s=0.5)), (V100, need(V100, step_s=0.11)), (H100, need(H100, step_s=0.1))
    )
    assert preferred(policy_input) == ("v100",)


def serving(latency_s: float, rate_per_s: float | None = None, batch: int = 1) -> Workload:
    return Workload(batch_size=batch, mode="infer", slo=Slo(latency_s=latency_s, rate_per_s=rate_per_s))


# Slo: what an inference job's promise still needs.


def test_a_job_without_a_promise_is_not_touched() -> None:
    policy_input = make_input(small())
    assert decide_slo(policy_input, shared(policy_input)) is None


def test_a_share_stays_where_a_step_may_double() -> None:
    """0.1 s / margin 0.5 = 0.2 s."""
    policy_input = make_input(small(), workload=serving(0.2))
    assert decide_slo(policy_input, shared(policy_input)) is None


def test_a_share_is_taken_back_where_partners_could_break_the_promise() -> None:
    policy_input = make_input(small(), workload=serving(0.199))
    decision = decide_slo(policy_input, shared(policy_input))
    assert decision is not None
    assert decision.request == policy_input.request
    assert decision.reasons == ("a whole GPU is kept: beside partners the promised 199 ms might not hold on v100",)


def test_requests_that_queue_wait() -> None:
    """Alone 0.1 s; beside partners 0.2 s, at 2.5/s half busy: 95 of 100 wait 2.05 steps at most, so 0.61 s."""
    policy_input = make_input(small(), workload=serving(0.612, rate_per_s=2.5))
    assert decide_slo(policy_input, shared(policy_input)) is None
    policy_input = make_input(small(), workload=serving(0.610, rate_per_s=2.5))
    assert decide_slo(policy_input, shared(policy_input)) is not None


def test_a_rate_that_a_share_cannot_serve_takes_it_back() -> None:
    """0.2 s a step beside partners serves 5 requests/s."""
    policy_input = make_input(small(), workload=serving(60.0, rate_per_s=6))
    decision = decide_slo(policy_input, shared(policy_input))
    assert decision is not None
    assert decision.reasons == ("a whole GPU is kept: beside partners v100 might not keep up with 6 requests/s",)


def test_a_batch_serves_several_requests() -> None:
    policy_input = make_input(small(), workload=serving(60.0, rate_per_s=6, batch=8))
    assert decide_slo(policy_input, shared(policy_input)) is None


def test_the_slowest_gpu_that_a_share_may_land_on_counts() -> None:
    policy_input = make_input(small(), (H100, need(H100, step_s=0.01)), workload=serving(0.15))
    decision = decide_slo(policy_input, shared(policy_input))
    assert decision is not None
    assert decision.request.mps_thread_percent is None


def test_a_preference_for_a_gpu_that_breaks_the_promise_is_changed() -> None:
    policy_input = make_input(small(), (H100, need(H100, step_s=0.01)), workload=serving(0.05))
    drafted = replace(draft(policy_input), request=replace(policy_input.request, preferred_gpus=("v100",)))
    decision = decide_slo(policy_input, drafted)
    assert decision is not None
    assert decision.request.preferred_gpus == ("h100",)
    assert decision.reasons == ("the promised 50 ms may not hold on v100",)


def test_a_promise_that_holds_nowhere_is_said_and_the_fastest_gpu_preferred() -> None:
    policy_input = make_input(small(), (H100, need(H100, step_s=0.01)), workload=serving(0.001))
    decision = decide_slo(policy_input, draft(policy_input))
    assert decision is not None
    assert decision.request.preferred_gpus == ("h100",)
    assert decision.reasons == ("the promised 1 ms may not hold on any GPU here",)


def test_a_site_can_turn_it_off_or_forbid_any_slowdown() -> None:
    off = make_input(small(), workload=serving(0.01), rules=Rules(slo=SloRules(enabled=False)))
    assert decide_slo(off, shared(off)) is None
    strict = make_input(small(), workload=serving(100.0), rules=Rules(slo=SloRules(latency_margin=0.0)))
    assert decide_slo(strict, shared(strict)) is not None
