"""What a job really did, from its node to the store and to its user, on a real Slurm; NVML's device is a stand-in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpusage.node.sampler.usage_reports import parse_usage_reports
from gpusage.store.opening import open_store
from gpusage.store.rows import UsageQuery
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from mps import control_in, driver_in
from nvml import built_nvml
from slurm_jobs import (
    GENEROUS,
    HeldJob,
    configure,
    first_job_number,
    fresh_name,
    release,
    submit_held,
    submit_share,
    submit_until,
    wait_for_records,
    wait_for_state,
)
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("empty_queue")]

MODEL = Path(__file__).parents[2] / "examples" / "models" / "dlrm.onnx"
COMMENT = f"model={MODEL},batch=8,mode=infer,slowdown=1"
FACTS = "utilization 40\nenergy 5000\nsm 30\ndram 20\n"
BUSY = "import time; s = time.process_time()\nwhile time.process_time() < s + 1: pass"
LOOKED_AT = "until [ $(wc -l <{facts}.looks) -ge {lines} ]; do sleep 0.1; done"
"""Waits until the sampler has looked twice more: it asks NVML for the processes, first how many they are."""
LOOKED_TWICE = 4


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with gpusage installed, whose node has a GPU as far as pynvml can tell."""
    plan = ClusterPlan(nodes=parse_nodes("1xv100:2"), settings=("SlurmctldDebug=info", first_job_number()))
    with start_sandbox(plan, release=slurm_release) as sandbox:
        site = sandbox.layout.jobs / "site.sh"
        site.write_text("#!/bin/sh\nexit 0\n")
        site.chmod(0o755)
        conf = sandbox.layout.slurm_conf
        conf.write_text(f"{conf.read_text()}Prolog={site}\nEpilog={site}\n")
        install_plugin(sandbox, "enforce", f"{GENEROUS}[learning]\nrefresh_s = 1\n")
        library, facts = built_nvml(sandbox.layout.state), facts_of(sandbox)
        facts.write_text(FACTS)
        path = sandbox.run("sh", "-c", 'dirname "$(command -v scontrol)"').stdout.strip()
        state = sandbox.layout.state
        reported = (
            f"export PATH={path}:$PATH LD_LIBRARY_PATH={library} NVML_STANDIN={facts}"
            f" GPUSAGE_USAGE_FOLDER={state}/usage GPUSAGE_MPS_FOLDER={state}/mps"
            f" GPUSAGE_MPS_CONTROL={control_in(state)} GPUSAGE_CUDA_LIBRARY={driver_in(state, '-DIGNORES_DAEMONS')}\n"
        )
        for name in ("prolog", "epilog"):
            wrapper = sandbox.layout.etc / f"gpusage_{name}.sh"
            wrapper.write_text(wrapper.read_text().replace("\n", f"\n{reported}", 1))
        yield sandbox


def facts_of(sandbox: Sandbox) -> Path:
    """Return the file of what NVML's stand-in tells."""
    return sandbox.layout.jobs / "facts"


def script(sandbox: Sandbox, *lines: str) -> str:
    """Return a job's script: *lines*, and the wait until the sampler has seen what they did."""
    facts = facts_of(sandbox)
    return "\n".join([*lines, f": >{facts}.looks", LOOKED_AT.format(facts=facts, lines=LOOKED_TWICE)])


def using(sandbox: Sandbox) -> str:
    """Return the script of a job that computes for a second, and whose memory NVML shows."""
    facts = facts_of(sandbox)
    shown = f"printf '%s' '{FACTS}' >{facts}; echo process $$ 3000000000 >>{facts}"
    return script(sandbox, shown, f"python3 -c '{BUSY}'")


def ran(sandbox: Sandbox, held: HeldJob) -> str:
    """Return the number of a held job, once it has run."""
    release(sandbox, held.job_id)
    wait_for_state(sandbox, held.job_id, "COMPLETED", "FAILED")
    return held.job_id


def show_decision(sandbox: Sandbox, job: str) -> dict[str, Any]:
    """Return what `gpusage decisions` says of a job once it has its usage: first slurmctld's own, then its node's."""

    def decision() -> dict[str, Any]:
        (only,) = json.loads(sandbox.run("gpusage", "decisions", job, "--json").stdout)["decisions"]
        return dict(only)

    wait_until(
        lambda: [each for each in decision()["usage"] if each["sampled_s"]],
        lambda: sandbox.run("scontrol", "show", "nodes").stdout,
    )
    return decision()


def test_a_jobs_usage_is_in_the_store_and_its_user_is_told(sandbox: Sandbox) -> None:
    """A job that carries no mark counts as well, without a decision."""
    wrap = using(sandbox)
    other = ran(sandbox, submit_held(sandbox, "--gres=gpu:1", "--comment=nothing", wrap=wrap))
    ours = ("--gres=gpu:1", f"--comment={COMMENT}", "--job-name=secret --token=x")
    job = ran(sandbox, submit_held(sandbox, *ours, wrap=wrap))
    decision = show_decision(sandbox, job)
    (usage,) = decision["usage"]
    assert (usage["job_id"], usage["number"], usage["outcome"]) == (job, decision["number"], "completed")
    assert (usage["gpu"], usage["job_name"]) == ("v100-sxm2-16gb", "secret --token=x")
    assert (usage["gpu_utilization"], usage["sm_activity"], usage["dram_activity"]) == (0.4, 0.3, 0.2)
    assert usage["memory_bytes"] == 3_000_000_000
    assert usage["cpu_s"] >= 0.9
    assert usage["alone_s"] > 0
    text = " ".join(sandbox.run("gpusage", "decisions", job).stdout.split())
    assert "used 40 % of its time, 30 % of its SMs, 2.8 GiB, completed after" in text
    with closing(open_store(f"sqlite:///{sandbox.layout.state}/decisions.db")) as store:
        (observed,) = store.usage(UsageQuery(job_id=job))
        assert observed.decision is not None
        assert observed.decision.number == decision["number"]
        (unmarked,) = store.usage(UsageQuery(job_id=other))
        assert (unmarked.decision, unmarked.usage.number, unmarked.usage.gpu_count) == (None, "", 1)
        assert unmarked.usage.account == usage["account"]
        assert unmarked.usage.partition == usage["partition"] == "gpu"


@pytest.mark.one_release
def test_a_job_counts_the_utilization_of_the_run_that_showed_its_model(sandbox: Sandbox) -> None:
    toml = sandbox.layout.gpusage_toml
    was = toml.read_text()
    configure(sandbox, f"{was}least_sampled_s = 0.01\n")  # the last section is [learning]
    try:
        unnamed = ran(sandbox, submit_held(sandbox, "--gres=gpu:1", wrap=using(sandbox)))

        def counts_it(job: HeldJob) -> bool:
            wait_for_records(sandbox)
            (decision,) = json.loads(sandbox.run("gpusage", "decisions", job.job_id, "--json").stdout)["decisions"]
            # Of a job about which gpusaged was late there is no record.
            return bool(decision["workload"]) and decision["workload"]["alone"]["utilization"] == 0.4

        comment = f"--comment={COMMENT},first_run={unnamed}"
        named = submit_until(sandbox, counts_it, "--gres=gpu:1", comment)
        sandbox.run("scancel", named.job_id)
    finally:
        configure(sandbox, was)


def test_a_node_tells_nothing_but_figures_and_keeps_nothing_behind(sandbox: Sandbox) -> None:
    """Everybody may read a node's comment: no name, no user, no command line."""
    ours = ("--gres=gpu:1", "--job-name=secret", f"--comment={COMMENT}")
    job = ran(sandbox, submit_held(sandbox, *ours, wrap=f"{script(sandbox)}; exit 3"))
    (usage,) = show_decision(sandbox, job)["usage"]
    assert usage["outcome"] == "failed"
    nodes = sandbox.run("scontrol", "show", "nodes", "--oneliner").stdout
    assert re.search(r"Comment=gpusage:\S+ gpusage-limit:cap\(cgroup~v2~is~not~at~\S+\)", nodes)
    reports = parse_usage_reports(nodes)
    (report,) = (usage for usage in reports if usage.job_id == job)
    assert (report.user, report.job_name, report.number) == ("", "", "")
    assert "secret" not in repr(reports)
    folder = sandbox.layout.state / "usage"
    wait_until(
        lambda: all(file.name.endswith(("lock", "limit")) for file in folder.iterdir()), lambda: [*folder.iterdir()]
    )


def test_a_job_that_a_signal_ended_was_interrupted(sandbox: Sandbox) -> None:
    """Slurm 22.05 writes its exit status and signal as one number."""
    wrap = f"--wrap={script(sandbox)}; kill -TERM $$"
    job = sandbox.run(
        "sbatch", "--parsable", "--wait", "--gres=gpu:1", f"--comment={COMMENT}", wrap, check=False
    ).stdout.strip()
    (usage,) = show_decision(sandbox, job)["usage"]
    assert usage["outcome"] == "interrupted"


def holding(sandbox: Sandbox, *held_bytes: str) -> str:
    """Return a script of processes that hold so much GPU memory each, until the sampler has seen them; all end well."""
    facts = facts_of(sandbox)
    shown = [
        f"({LOOKED_AT.format(facts=facts, lines=3 * LOOKED_TWICE)}) & echo process $! $(({held})) >>{facts}"
        for held in held_bytes
    ]
    return "\n".join([f"printf '%s' '{FACTS}' >{facts}", f": >{facts}.looks", *shown, "wait"])


CAP = "${CUDA_MPS_PINNED_DEVICE_MEM_LIMIT#0=}"
FILLED = f"cap={CAP}; cap=$((${{cap%M}} * 1048576))"
LIGHT = COMMENT.replace(",slowdown=1", "")


@pytest.mark.one_release
def test_a_share_that_fails_after_its_cap_was_filled_did_not_lack_memory(sandbox: Sandbox) -> None:
    """An allocator that keeps what it frees fills every cap; what failed here was no program on the GPU."""
    name = f"--job-name={fresh_name()}"
    wrap = f": {name}\n{FILLED}\n{holding(sandbox, 'cap')}\nexit 1"
    job = submit_share(sandbox, f"--comment={LIGHT}", name, wrap=wrap)
    release(sandbox, job)
    wait_for_state(sandbox, job, "FAILED", restarts=0)
    (first,) = show_decision(sandbox, job)["usage"]
    assert first["outcome"] == "failed"
    assert first["memory_bytes"] == first["granted"]["memory_limit_bytes"] > 0
    assert first["granted"]["division"] == "whole"
    assert first["granted"]["trouble"] == "no MPS daemon holds the client: it sees all SMs"


@pytest.mark.one_release
def test_two_processes_above_their_part_in_sum_are_told_to_user_and_admin(sandbox: Sandbox) -> None:
    """MPS holds each rank of `torchrun --nproc_per_node=2` to the cap; together they take twice as much."""
    name = f"--job-name={fresh_name()}"
    wrap = f": {name}\n{FILLED}\n{holding(sandbox, 'cap * 9 / 10', 'cap * 9 / 10')}"
    job = submit_share(sandbox, f"--comment={LIGHT}", name, wrap=wrap)
    release(sandbox, job)
    wait_for_state(sandbox, job, "COMPLETED")
    (usage,) = show_decision(sandbox, job)["usage"]
    assert usage["memory_bytes"] == pytest.approx(1.8 * usage["granted"]["memory_limit_bytes"], rel=1e-6)
    assert usage["excess"].startswith("its processes together took ")
    assert usage["excess"] in " ".join(sandbox.run("gpusage", "decisions", job).stdout.split())
    assert f"slurm job {job}: its processes together took" in sandbox.run("gpusage", "status").stdout


@pytest.mark.one_release
def test_where_history_is_observed_a_job_that_names_no_model_is_known_by_its_features(sandbox: Sandbox) -> None:
    """Its mark leads from what its node saw to who submitted it, under what name, and to a digest of its script."""
    was = sandbox.layout.gpusage_toml.read_text()
    configure(sandbox, f'{was}history = "observe"\n')
    unnamed = ("--gres=gpu:1", "--comment=nothing", "--job-name=nightly 7")
    try:
        held = submit_until(sandbox, lambda job: "the job names no model" in job.mark, *unnamed, wrap=using(sandbox))
        job = ran(sandbox, held)
        decision = show_decision(sandbox, job)
    finally:
        configure(sandbox, was)
    (usage,) = decision["usage"]
    assert (decision["code"], usage["job_id"], usage["number"]) == ("KEEP", job, decision["number"])
    with closing(open_store(f"sqlite:///{sandbox.layout.state}/decisions.db")) as store:
        record = store.find(decision["number"])
    assert record is not None
    assert record.identity is not None
    assert record.identity.job_name == "nightly 7"
    assert len(record.identity.script_digest) == 16
    assert record.identity.request.startswith("1 any, 1 cores")
