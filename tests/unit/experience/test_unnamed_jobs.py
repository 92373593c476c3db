"""What history decides of a job that names no model: a share where it waits for its host, and never a GPU type."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.experience.learned import Learned
from gpusage.experience.unnamed_jobs import SHARPNESS, largest_slowdown
from gpusage.predictors.sharing import host
from gpusage.store.annotation import UNNAMED
from gpusage_hooks.types import (
    Cluster,
    Code,
    Decision,
    DecisionRequest,
    GpuPool,
    GpuRequest,
    Job,
    Rules,
    SharingRules,
    Submitter,
)
from gpusage_lab.history.training import fit_history
from past_runs import ADA, V100, past_runs

FIELDS = {"user": ADA.user, "account": ADA.account, "job_name": ADA.job_name, "script_digest": ADA.script_digest}
JOB = Job(
    submission=DecisionRequest(manager="slurm"),
    request=GpuRequest(gpu_count=1),
    request_text="gres/gpu:1",
    submitter=Submitter(fields=MappingProxyType(FIELDS)),
)


def cluster(*gpus: str) -> Cluster:
    pools = (
        GpuPool(gpu=gpu, site_type=gpu, gpu_count=4, free_gpu_count=4, mps_per_gpu=100, exact_feature=gpu)
        for gpu in gpus
    )
    return Cluster(manager="slurm", version="24.11.5", pools=tuple(pools))


@pytest.fixture(scope="module")
def plain() -> Advisor:
    return make_advisor()


def decided(plain: Advisor, utilization: float, where: Cluster, job: Job = JOB) -> Decision:
    """Return what is decided of *job* after thirty runs that were so busy."""
    history, _ = fit_history(past_runs([utilization] * 30), plain.catalogue.find, 0.0)
    advisor = replace(plain, learned=Learned(history=history))
    return replace(advisor, submitter=job.submitter).decide_by_history(job, where)[0]


def test_a_job_that_waits_for_its_host_gets_a_share(plain: Advisor) -> None:
    """At 20 %, a quarter of the SMs makes it as busy as 80 %, which the waiting absorbs."""
    decision = decided(plain, 0.2, cluster("v100"))
    assert (decision.code, decision.request.mps_thread_percent) == (Code.REWRITE, 33)
    assert decision.reasons[0] == UNNAMED
    assert decision.need is not None
    assert (decision.need.source, decision.need.gpu) == ("history", V100)


def test_a_job_that_fills_its_gpu_keeps_it(plain: Advisor) -> None:
    decision = decided(plain, 0.95, cluster("v100"))
    assert (decision.code, decision.request) == (Code.KEEP, JOB.request)
    assert any("more than 25 %" in reason or "save too little" in reason for reason in decision.reasons)


def test_no_gpu_type_is_preferred_or_required_and_nobody_becomes_a_rival(plain: Advisor) -> None:
    """Nothing tells how fast the job is on which; a site that binds jobs does not bind this one."""
    bound = replace(plain, rules=Rules(sharing=SharingRules(bind="always")))
    decision = decided(bound, 0.15, cluster("v100", "a100", "t4"))
    assert (decision.request.preferred_gpus, decision.request.required_gpus) == ((), ())
    assert decision.step_times_s == {}


def test_obstacles_and_several_gpus_are_kept(plain: Advisor) -> None:
    for request in (
        replace(JOB.request, obstacles=("--exclusive takes the whole node",)),
        replace(JOB.request, gpu_count=2),
    ):
        assert decided(plain, 0.1, cluster("v100"), replace(JOB, request=request)).code is Code.KEEP


def test_a_job_of_whom_nothing_is_known_is_kept_and_says_so(plain: Advisor) -> None:
    stranger = replace(JOB, submitter=Submitter(fields={"user": "7"}))
    decision = decided(plain, 0.1, cluster("v100"), stranger)
    assert (decision.code, decision.reasons) == (Code.KEEP, (UNNAMED, "its history shows nothing yet"))


def test_a_step_is_the_same_norm_as_where_the_model_is_known() -> None:
    """The figure stands twice, because the module of the other imports numpy."""
    assert SHARPNESS == host.SHARPNESS


@pytest.mark.parametrize(
    ("utilization", "percent", "expected"),
    [
        pytest.param(1.0, 50, 2.0, id="a full GPU: as much longer as there are fewer SMs"),
        pytest.param(0.02, 25, 1.0, id="an idle one: no longer"),
        pytest.param(0.5, 50, 2.0**0.125, id="full on its share: a little"),
        pytest.param(0.7, 100, 1.0, id="all of the GPU"),
        pytest.param(0.25, 25, 2**0.125, id="the GPU's time grows to the step's own: the norm of 1 and 1"),
    ],
)
def test_a_share_costs_what_its_fewer_sms_can_cost_at_most(utilization: float, percent: int, expected: float) -> None:
    assert largest_slowdown(utilization, percent) == pytest.approx(expected, abs=1e-3)
