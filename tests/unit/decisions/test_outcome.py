"""One way from a submission to a verdict, whoever asks: gpusaged, `gpusage validate`, `gpusage yarn submit`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.cli.scripts import read_scripts
from gpusage.cli.validate import validate
from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.decisions.outcome import Outcome
from gpusage.experience.learned import FirstRun, Learned, with_failures
from gpusage.graphs.card.text import decode, encode
from gpusage.service.engine import DecidedResponse, DecisionEngine, Exchange
from gpusage.service.snapshots import Snapshot
from gpusage.settings.configuration import Configuration, SiteMode
from gpusage_hooks.types import (
    Cluster,
    Code,
    DecisionRecord,
    DecisionRequest,
    GpuPool,
    GpuRequest,
    JobIdentity,
    ModelGraph,
)
from gpusage_yarn.cluster.snapshot import ClusterSnapshot, ContainerSize, build_cluster, read_snapshot
from gpusage_yarn.submission.command import site_advisor
from gpusage_yarn.submission.planning import PlannedSubmission, plan_submission

ROOT = Path(__file__).parents[3]
MODEL = str(ROOT / "examples/models/dlrm.onnx")
COMMENT = f"model={MODEL},batch=8,mode=infer,precision=fp32,optimizer=none,processes=1"
SLURM = Cluster(
    manager="slurm",
    version="24.11.5",
    pools=(GpuPool(gpu="v100", site_type="v100", gpu_count=4, free_gpu_count=4, mps_per_gpu=100),),
)
VIEW = read_snapshot(json.loads((ROOT / "tests/golden/yarn/3.4.2.json").read_text()).get)
VOLTA = replace(VIEW, nodes=tuple(node for node in VIEW.nodes if node.label == "v100"))
SHOWED = FirstRun(gpu="v100-sxm2-16gb", utilization=0.2, peak_utilization=0.31, memory_bytes=2 * 10**9)
SIZE = ContainerSize(memory_mib=4096, vcores=1)


@pytest.fixture(scope="module")
def advisor() -> Advisor:
    return make_advisor()


@pytest.fixture(scope="module")
def card(advisor: Advisor) -> str:
    return encode(advisor.read(MODEL))


def ruled(
    advisor: Advisor, manager: str, mode: SiteMode = "enforce", kill_reason: str | None = None, **fields: str
) -> DecidedResponse:
    """Return what gpusaged rules."""
    snapshot = Snapshot(
        configuration=replace(Configuration(), mode=mode),
        advisor=advisor,
        trusted_uids=frozenset(),
        clusters={"slurm": SLURM, "yarn": build_cluster(VOLTA, advisor.catalogue)},
        kill_reason=kill_reason,
    )
    return DecisionEngine().decide(Exchange(DecisionRequest(manager=manager, fields=fields), snapshot, lambda _: None))


def proposed(advisor: Advisor, graph: ModelGraph, view: ClusterSnapshot = VOLTA, **fields: str) -> PlannedSubmission:
    """Return what `gpusage yarn submit` proposes."""
    job = advisor.parse(DecisionRequest(manager="yarn", fields=fields, origin="ada"))
    return plan_submission(advisor, job, graph, view, SIZE)


def of_slurm_daemon(advisor: Advisor, card: str) -> Outcome | None:
    fields = {"comment": COMMENT, "tres_per_node": "gres:gpu:1", "script": "1", "het": "0", "card": card}
    return ruled(advisor, "slurm", **fields).outcome


def of_validate(advisor: Advisor, folder: Path) -> Outcome | None:
    path = folder / "job.sbatch"
    path.write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --comment={COMMENT}\nsrun serve\n")
    (script,) = read_scripts([path])
    return validate(script, SLURM, advisor).outcome


def recorded(outcome: Outcome | None) -> DecisionRecord:
    assert outcome is not None
    return outcome.record(origin="ada", number="69215f4a0c3e", decided_at_s=1.0)


def test_gpusaged_and_validate_agree_on_decision_reasons_and_record(
    advisor: Advisor, card: str, tmp_path: Path
) -> None:
    record = recorded(of_slurm_daemon(advisor, card))
    assert record.decision.code is Code.REWRITE
    assert record == recorded(of_validate(advisor, tmp_path))


def test_gpusaged_and_yarn_submit_agree_on_decision_reasons_and_record(advisor: Advisor, card: str) -> None:
    record = recorded(ruled(advisor, "yarn", comment=COMMENT, card=card).outcome)
    assert record.decision.code is Code.REWRITE
    in_mode = site_advisor(advisor, Configuration(kill_switch=""))
    assert record == recorded(proposed(in_mode, decode(card), comment=COMMENT).outcome)


def test_another_clients_share_holds_four_processes_unless_its_user_says_how_many(advisor: Advisor, card: str) -> None:
    shares = []
    for words in (",processes=1", "", ",processes=4"):
        comment = COMMENT.replace(",processes=1", f",utilization=20{words}")
        decision = recorded(ruled(advisor, "yarn", comment=comment, card=card).outcome).decision
        shares.append(decision.request.mps_thread_percent)
    alone, unsaid, four = shares
    assert alone < unsaid == four, "the memory of four; a quarter of the work each is little"


def test_the_managers_differ_in_words_only(advisor: Advisor, card: str) -> None:
    slurm = recorded(of_slurm_daemon(advisor, card))
    yarn = recorded(ruled(advisor, "yarn", comment=COMMENT, card=card).outcome)
    what_jobs_ask = {
        name: getattr(yarn.decision.request, name) for name in ("host_memory_bytes", "bindable", "repeatable", "scopes")
    }
    request = replace(slurm.decision.request, **what_jobs_ask)
    assert replace(slurm.decision, request=request) == yarn.decision
    assert (slurm.model, slurm.workload) == (yarn.model, yarn.workload)
    assert slurm.rendered.after != yarn.rendered.after


@pytest.mark.parametrize("repeats", [True, False])
def test_where_a_cluster_requeues_no_job_unseen_a_request_says_so(advisor: Advisor, *, repeats: bool) -> None:
    request = GpuRequest(gpu_count=1)
    assert advisor._allowed_repeats(request, replace(SLURM, repeats=repeats)).repeatable is repeats


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_a_mode_holds_a_rewrite_back_in_the_same_words(advisor: Advisor, card: str, mode: SiteMode) -> None:
    outcome = ruled(advisor, "yarn", mode, comment=COMMENT, card=card)
    in_mode = site_advisor(advisor, Configuration(kill_switch="", mode=mode, origins={"mode": "gpusage.toml"}))
    planned = proposed(in_mode, decode(card), comment=COMMENT)
    assert recorded(outcome.outcome) == recorded(planned.outcome)
    assert outcome.outcome is not None
    assert outcome.outcome.applied_code is Code.KEEP
    assert planned.line() == outcome.outcome.line
    assert planned.line().startswith(f"advice only in mode {mode}: yarn.io/gpu: 1 -> gpusage.io/share: ")
    assert outcome.message == ("" if mode == "observe" else planned.line())
    assert planned.plan.share == 100


def test_with_the_kill_switch_on_every_request_is_kept_for_that_reason(
    advisor: Advisor, card: str, tmp_path: Path
) -> None:
    switch = tmp_path / "off"
    switch.touch()
    reason = f"the kill switch is on ({switch})"
    outcome = ruled(advisor, "yarn", kill_reason=reason, comment=COMMENT, card=card).outcome
    planned = proposed(site_advisor(advisor, Configuration(kill_switch=str(switch))), decode(card), comment=COMMENT)
    assert outcome is not None
    assert outcome.decision.reasons == planned.outcome.decision.reasons == (reason,)
    assert planned.outcome.decision.need is None
    assert planned.plan.share == 100


def test_where_no_mode_is_set_gpusaged_observes_and_yarn_submit_enforces(advisor: Advisor) -> None:
    assert Configuration().mode == "observe"
    assert site_advisor(advisor, Configuration()).mode == "enforce"


@pytest.mark.parametrize(
    ("words", "clause"),
    [
        ("", "on 4 GPUs by ddp, batch 8 each, a GPU needs "),
        (",gpus=4,strategy=zero2", "on 4 GPUs by zero2, batch 8 each, a GPU needs "),
        (",gpus=4,tensor=2", "must have attention heads for 'tensor'"),
        (",mode=infer", "on 4 GPUs with a copy each, a GPU needs "),
    ],
)
def test_the_user_of_a_job_on_several_gpus_is_told_what_each_needs(
    advisor: Advisor, card: str, words: str, clause: str
) -> None:
    comment = f"model={MODEL},batch=8{words}"
    fields = {"comment": comment, "tres_per_node": "gres:gpu:4", "script": "1", "het": "0", "card": card}
    outcome = ruled(advisor, "slurm", **fields)
    assert outcome.code is Code.KEEP
    assert outcome.outcome is not None
    assert outcome.outcome.decision.request.gpu_count == 4
    assert clause in outcome.message
    assert ("a GPU needs" in outcome.message) == ("a GPU needs" in clause)


@pytest.mark.parametrize(
    ("partition", "mode"),
    [("trial", "enforce"), ("trial,gpu", "observe"), ("gpu", "observe"), ("", "observe"), ("trial,other", "enforce")],
)
def test_a_site_enforces_in_some_partitions_and_observes_in_others(
    advisor: Advisor, card: str, partition: str, mode: SiteMode
) -> None:
    """A job that names none runs in the default one."""
    configuration = replace(Configuration(), mode="enforce", enforce_in=("trial", "other"))
    cluster = replace(SLURM, default_partition="gpu")
    snapshot = Snapshot(
        configuration=configuration, advisor=advisor, trusted_uids=frozenset(), clusters={"slurm": cluster}
    )
    fields = {"comment": COMMENT, "tres_per_node": "gres:gpu:1", "partition": partition, "card": card}
    outcome = DecisionEngine().decide(
        Exchange(DecisionRequest(manager="slurm", fields=fields), snapshot, lambda _: None)
    )
    assert outcome.outcome is not None
    assert (outcome.outcome.mode, outcome.outcome.decision.code) == (mode, Code.REWRITE)
    assert bool(outcome.settings) == bool(outcome.message) == (mode == "enforce")


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_partitions_in_which_a_site_would_enforce_change_no_other_mode(
    advisor: Advisor, card: str, mode: SiteMode
) -> None:
    fields = {"comment": COMMENT, "tres_per_node": "gres:gpu:1", "card": card}
    job = advisor.parse(DecisionRequest(manager="slurm", fields=fields, origin="ada"))
    outcome = replace(advisor, mode=mode, enforce_in=("trial",)).advise(job, SLURM, lambda *_: decode(card))
    assert outcome.mode == mode


@pytest.mark.parametrize(
    ("user", "known", "utilization"),
    [("1000", "", 0.2), ("1001", "", None), ("1000", ",utilization=80", 0.8)],
)
def test_a_job_that_its_own_run_showed_is_decided_with_the_utilization_of_that_run(
    advisor: Advisor, card: str, user: str, known: str, utilization: float | None
) -> None:
    advisor = replace(advisor, learned=Learned(first_runs={("1000", "7"): SHOWED}))
    fields = {"comment": f"{COMMENT},first_run=7{known}", "tres_per_node": "gres:gpu:1", "script": "1", "het": "0"}
    record = recorded(ruled(advisor, "slurm", user_id=user, card=card, **fields).outcome)
    assert record.workload is not None
    assert record.workload.alone.utilization == utilization
    assert any("as job 7's run showed" in reason for reason in record.decision.reasons)


FIRST_RUN = "learn=on,first_run=7,step_time=31ms@v100-sxm2-16gb"
MEASURED = "measured on v100-sxm2-16gb in job 7's run, 31 ms a step: busy 31 % (up to 46 %), 1.9 GiB (up to 2.8 GiB)"


@pytest.mark.parametrize(
    ("user", "comment", "gpu", "code", "reason"),
    [
        ("1000", FIRST_RUN, "v100", Code.REWRITE, MEASURED),
        ("1000", "learn=on,first_run=9+7", "v100", Code.REWRITE, MEASURED.replace(", 31 ms a step", "")),
        ("1000", "learn=on,first_run=8+7", "v100", Code.REWRITE, "in the runs of jobs 8, 7: busy 40 % (up to 52 %)"),
        ("1001", FIRST_RUN, "v100", Code.KEEP, "learn=on: this run shows the model"),  # another user's number
        ("1000", FIRST_RUN, "a100", Code.KEEP, "measured on v100-sxm2-16gb in job 7's run"),
        ("1002", FIRST_RUN, "v100", Code.KEEP, "the last job like it failed in its share of a GPU"),
        (
            "1000",
            f"{FIRST_RUN},batch=8",
            "v100",
            Code.KEEP,
            "learn=on: this run shows the model",
        ),
    ],
)
def test_the_next_job_of_a_script_is_decided_by_what_was_measured_of_its_runs(
    advisor: Advisor, user: str, comment: str, gpu: str, code: Code, reason: str
) -> None:
    runs = {("1000", "7"): SHOWED, ("1000", "8"): replace(SHOWED, peak_utilization=0.4), ("1002", "7"): SHOWED}
    failures = with_failures({}, [JobIdentity(user="1002", job_name="train", script_digest="1")])
    advisor = replace(advisor, learned=Learned(first_runs=runs, failures=failures))
    script = {"tres_per_node": "gres:gpu:1", "script": "1", "het": "0", "name": "train", "script_digest": "1"}
    fields = {**script, "script_comment": "learn=on", "variable_comment": comment, "shows_model": "1", "user_id": user}
    job = advisor.parse(DecisionRequest(manager="slurm", fields=fields, origin="ada"))
    cluster = replace(SLURM, pools=(replace(SLURM.pools[0], gpu=gpu, site_type=gpu),))
    outcome = advisor.advise(job, cluster, lambda *_: None)
    assert outcome.applied_code is code
    assert any(reason in each for each in outcome.decision.reasons), outcome.decision.reasons


def test_what_was_measured_of_one_gpu_type_is_no_reason_where_the_job_may_get_another(advisor: Advisor) -> None:
    advisor = replace(advisor, learned=Learned(first_runs={("1000", "7"): SHOWED}))
    fields = {"variable_comment": FIRST_RUN, "tres_per_node": "gres:gpu:1", "script": "1", "user_id": "1000"}
    job = advisor.parse(DecisionRequest(manager="slurm", fields=fields, origin="ada"))
    both = replace(SLURM, pools=(*SLURM.pools, replace(SLURM.pools[0], gpu="a100", site_type="a100")))
    assert advisor.advise(job, both, lambda *_: None).applied_code is Code.KEEP
