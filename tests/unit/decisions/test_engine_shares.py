"""An engine takes a part of the memory that it sees: behind a wall it shares as any job, else if its user says so."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage_hooks.types import Cluster, Decision, DecisionRequest, GpuPool, LimitedBy

H100 = GpuPool(
    gpu="h100-sxm5-80gb", site_type="h100", gpu_count=4, free_gpu_count=4, mps_per_gpu=100, exact_feature="h100"
)


@pytest.fixture(scope="module")
def advisor() -> Advisor:
    return make_advisor()


def decided(
    advisor: Advisor, limited_by: LimitedBy, keys: str = "", requeue: str = "--requeue", engine: str = "vllm"
) -> Decision:
    comment = f"model=hf:gpt2,mode=infer,engine={engine},generate=512+128,batch=8,precision=fp16{keys}"
    script = f"#!/bin/sh\n#SBATCH --gres=gpu:1 {requeue}\n#SBATCH --comment={comment}\nserve\n"
    job = advisor.parse(DecisionRequest(manager="slurm", script=script))
    cluster = Cluster(manager="slurm", version="24.11", pools=(replace(H100, limited_by=limited_by),))
    return advisor.advise(job, cluster, lambda *_: advisor.read("hf:gpt2")).decision


def test_behind_a_wall_an_engine_shares_as_any_job(advisor: Advisor) -> None:
    """It needs about 2 GiB, and takes 0.9 of what it sees, which is its part."""
    assert decided(advisor, "wall").request.mps_thread_percent == 50


@pytest.mark.parametrize("requeue", ["--requeue", "--no-requeue"])
def test_without_a_wall_its_user_reads_the_option_with_which_it_shares(advisor: Advisor, requeue: str) -> None:
    """Half of 81,559 MiB less 256 and 1,223 is 40,040 MiB, of which its CUDA context takes some: 0.47 of the GPU."""
    decision = decided(advisor, "cap", requeue=requeue)
    assert decision.request.mps_thread_percent is None
    option = re.search(r"half an h100 would do with (\S+) (\S+) and (memory_share=\S+)$", decision.reasons[-1])
    assert option is not None, decision.reasons
    assert option.groups() == ("--gpu-memory-utilization", "0.47", "memory_share=0.47")

    assert decided(advisor, "cap", f",{option[3]}", requeue).request.mps_thread_percent == 50


def test_where_no_price_holds_no_option_is_named(advisor: Advisor) -> None:
    assert "memory_share" not in " ".join(decided(advisor, "cap", ",slowdown=1.01").reasons)


def test_an_engine_that_takes_a_part_of_what_is_free_is_told_nothing(advisor: Advisor) -> None:
    decision = decided(advisor, "cap", engine="tensorrt-llm")
    assert decision.request.mps_thread_percent is None
    assert "memory_share" not in " ".join(decision.reasons)


def test_behind_a_wall_an_engine_has_its_option_of_its_part_alone(advisor: Advisor) -> None:
    """It needs 1.9 GiB: 0.04 of half an H100's 39 GiB are too little, and so are 0.03 of three quarters of it."""
    shares = {part: decided(advisor, "wall", f",memory_share={part}") for part in ("0.47", "0.04", "0.03")}
    assert [each.request.mps_thread_percent for each in shares.values()] == [50, 75, None]
    assert "may need up to 1.9 GiB, more than 0.03 of its part of the memory" in shares["0.03"].reasons[-1]
