"""One way from a submission to a verdict, whoever asks: gpusaged, `gpusage validate`, `gpusage yarn submit`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.advisor import Advisor, make_advisor
from gpusage.cli.scripts import read_scripts
from gpusage.cli.validate import validate
from gpusage.configuration import Configuration, SiteMode
from gpusage.graphs.card.text import decode, encode
from gpusage.service.judge import Judge, Ruling
from gpusage.service.protocol import Ask
from gpusage.service.state import Snapshot
from gpusage.verdict import Premises, Verdict, require_job
from gpusage_hooks.types import Cluster, Code, DecisionRecord, GpuPool, ModelGraph, Submission
from gpusage_yarn.cluster import Size, View, cluster_of, read_view
from gpusage_yarn.proposal import Proposal, propose
from gpusage_yarn.submit import site_premises

ROOT = Path(__file__).parents[2]
MODEL = str(ROOT / "examples/models/dlrm.onnx")
COMMENT = f"model={MODEL},batch=8,mode=infer,precision=fp32,optimizer=none"
SLURM = Cluster(
    manager="slurm",
    version="24.11.5",
    pools=(GpuPool(gpu="v100", site_type="v100", gpu_count=4, free_gpu_count=4, mps_per_gpu=100),),
)
VIEW = read_view(json.loads((ROOT / "tests/golden/yarn/3.4.2.json").read_text()).get)
VOLTA = replace(VIEW, nodes=tuple(node for node in VIEW.nodes if node.label == "v100"))
SIZE = Size(memory_mib=4096, vcores=1)


@pytest.fixture(scope="module")
def advisor() -> Advisor:
    return make_advisor()


@pytest.fixture(scope="module")
def card(advisor: Advisor) -> str:
    return encode(advisor.read(MODEL))


def ruled(
    advisor: Advisor, manager: str, mode: SiteMode = "enforce", killed: str | None = None, **fields: str
) -> Ruling:
    """Return what gpusaged rules."""
    snapshot = Snapshot(
        configuration=replace(Configuration(), mode=mode),
        advisor=advisor,
        trusted_uids=frozenset(),
        clusters={"slurm": SLURM, "yarn": cluster_of(VOLTA, advisor.catalogue)},
        killed=killed,
    )
    return Judge().rule(Ask(manager=manager, fields=fields), snapshot, lambda _: None)


def proposed(premises: Premises, graph: ModelGraph, view: View = VOLTA, **fields: str) -> Proposal:
    """Return what `gpusage yarn submit` proposes."""
    job = require_job(Submission(manager="yarn", fields=fields, origin="ada"), premises.advisor)
    return propose(premises, job, graph, view, SIZE)


def of_slurm_daemon(advisor: Advisor, card: str) -> Verdict | None:
    fields = {"comment": COMMENT, "tres_per_node": "gres:gpu:1", "script": "1", "het": "0", "card": card}
    return ruled(advisor, "slurm", **fields).verdict


def of_validate(advisor: Advisor, folder: Path) -> Verdict | None:
    path = folder / "job.sbatch"
    path.write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --comment={COMMENT}\nsrun serve\n")
    (script,) = read_scripts([path])
    return validate(script, SLURM, Premises(advisor=advisor, mode="enforce")).verdict


def recorded(verdict: Verdict | None) -> DecisionRecord:
    assert verdict is not None
    return verdict.record(origin="ada", number="69215f4a0c3e", decided_at_s=1.0)


def test_gpusaged_and_validate_agree_on_decision_reasons_and_record(
    advisor: Advisor, card: str, tmp_path: Path
) -> None:
    record = recorded(of_slurm_daemon(advisor, card))
    assert record.decision.code is Code.REWRITE
    assert record == recorded(of_validate(advisor, tmp_path))


def test_gpusaged_and_yarn_submit_agree_on_decision_reasons_and_record(advisor: Advisor, card: str) -> None:
    record = recorded(ruled(advisor, "yarn", comment=COMMENT, card=card).verdict)
    assert record.decision.code is Code.REWRITE
    premises = site_premises(advisor, Configuration(kill_switch=""))
    assert record == recorded(proposed(premises, decode(card), comment=COMMENT).verdict)


def test_the_managers_differ_in_words_only(advisor: Advisor, card: str) -> None:
    slurm = recorded(of_slurm_daemon(advisor, card))
    yarn = recorded(ruled(advisor, "yarn", comment=COMMENT, card=card).verdict)
    what_jobs_ask = {name: getattr(yarn.decision.request, name) for name in ("host_memory_bytes", "bindable")}
    request = replace(slurm.decision.request, **what_jobs_ask)
    assert replace(slurm.decision, request=request) == yarn.decision
    assert (slurm.model, slurm.workload) == (yarn.model, yarn.workload)
    assert slurm.rendered.after != yarn.rendered.after


def test_a_job_that_cannot_be_changed_any_more_is_advised_and_recorded_as_that(advisor: Advisor, card: str) -> None:
    fields = {"comment": COMMENT, "tres_per_node": "gres:gpu:1", "card": card, "advice_only": "it is too late"}
    ruling = ruled(advisor, "slurm", **fields)
    record = recorded(ruling.verdict)
    assert (record.mode, record.decision.code, record.decision.reasons[0]) == ("advise", Code.REWRITE, "it is too late")
    assert ruling.answer.code is Code.KEEP
    assert ruling.answer.settings == {}
    assert ruling.claim is None
    assert ruling.answer.mark.startswith(" REWRITE (advise) gres/gpu:1 -> gres/mps:")


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_a_mode_holds_a_rewrite_back_in_the_same_words(advisor: Advisor, card: str, mode: SiteMode) -> None:
    ruling = ruled(advisor, "yarn", mode, comment=COMMENT, card=card)
    premises = site_premises(advisor, Configuration(kill_switch="", mode=mode, origins={"mode": "gpusage.toml"}))
    proposal = proposed(premises, decode(card), comment=COMMENT)
    assert recorded(ruling.verdict) == recorded(proposal.verdict)
    assert ruling.verdict is not None
    assert ruling.verdict.carried_out is Code.KEEP
    assert proposal.line() == ruling.verdict.line
    assert proposal.line().startswith(f"advice only in mode {mode}: yarn.io/gpu: 1 -> gpusage.io/share: ")
    assert ruling.answer.message == ("" if mode == "observe" else proposal.line())
    assert proposal.plan.share == 100


def test_with_the_kill_switch_on_every_request_is_kept_for_that_reason(
    advisor: Advisor, card: str, tmp_path: Path
) -> None:
    switch = tmp_path / "off"
    switch.touch()
    reason = f"the kill switch is on ({switch})"
    verdict = ruled(advisor, "yarn", killed=reason, comment=COMMENT, card=card).verdict
    proposal = proposed(site_premises(advisor, Configuration(kill_switch=str(switch))), decode(card), comment=COMMENT)
    assert verdict is not None
    assert verdict.decision.reasons == proposal.verdict.decision.reasons == (reason,)
    assert proposal.verdict.decision.need is None
    assert proposal.plan.share == 100


def test_where_no_mode_is_set_gpusaged_observes_and_yarn_submit_enforces(advisor: Advisor) -> None:
    assert Configuration().mode == "observe"
    assert site_premises(advisor, Configuration()).mode == "enforce"


@pytest.mark.parametrize(
    ("words", "clause"),
    [
        ("", "on 4 GPUs by ddp, batch 8 each, a GPU needs "),
        (",gpus=4,strategy=zero2", "on 4 GPUs by zero2, batch 8 each, a GPU needs "),
        (",mode=infer", "only a request for one is changed"),
    ],
)
def test_a_job_on_several_gpus_is_kept_and_its_user_told_what_each_needs(
    advisor: Advisor, card: str, words: str, clause: str
) -> None:
    comment = f"model={MODEL},batch=8{words}"
    fields = {"comment": comment, "tres_per_node": "gres:gpu:4", "script": "1", "het": "0", "card": card}
    ruling = ruled(advisor, "slurm", **fields)
    assert ruling.answer.code is Code.KEEP
    assert ruling.verdict is not None
    assert ruling.verdict.decision.request.gpu_count == 4
    assert clause in ruling.answer.message
    assert ("a GPU needs" in ruling.answer.message) == ("infer" not in words)


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
    ruling = Judge().rule(Ask(manager="slurm", fields=fields), snapshot, lambda _: None)
    assert ruling.verdict is not None
    assert (ruling.verdict.mode, ruling.verdict.decision.code) == (mode, Code.REWRITE)
    assert bool(ruling.answer.settings) == bool(ruling.answer.message) == (mode == "enforce")


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_partitions_in_which_a_site_would_enforce_change_no_other_mode(
    advisor: Advisor, card: str, mode: SiteMode
) -> None:
    premises = Premises(advisor=advisor, mode=mode, enforce_in=("trial",))
    fields = {"comment": COMMENT, "tres_per_node": "gres:gpu:1", "card": card}
    job = require_job(Submission(manager="slurm", fields=fields, origin="ada"), advisor)
    assert premises.of(job, SLURM) == premises
