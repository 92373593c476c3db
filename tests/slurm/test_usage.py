"""What a job really did, from its node to the store and to its user, on a real Slurm; NVML's device is a stand-in."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpusage.sampler.letter import letter_in
from gpusage.store.opening import open_store
from gpusage_slurm.sandbox import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_slurm.sandbox.trial import install_plugin
from mps import control_in, driver_in
from nvml import built_nvml

pytestmark = pytest.mark.slurm

MODEL = Path(__file__).parents[2] / "examples" / "models" / "dlrm.onnx"
COMMENT = f"model={MODEL},batch=8,mode=infer,slowdown=1"
FACTS = "utilization 40\nenergy 5000\nsm 30\ndram 20\n"
BUSY = "import time; s = time.process_time()\nwhile time.process_time() < s + 1: pass"
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with gpusage installed, whose node has a GPU as far as pynvml can tell."""
    plan = ClusterPlan(nodes=parse_nodes("1xv100:2"), settings=("SlurmctldDebug=info",))
    with start_sandbox(plan, release=slurm_release) as sandbox:
        site = sandbox.layout.jobs / "site.sh"
        site.write_text("#!/bin/sh\nexit 0\n")
        site.chmod(0o755)
        conf = sandbox.layout.slurm_conf
        conf.write_text(f"{conf.read_text()}Prolog={site}\nEpilog={site}\n")
        install_plugin(sandbox, "enforce", "[slurm]\nlimit_ms = 1000\n")
        library, facts = built_nvml(sandbox.layout.state), sandbox.layout.jobs / "facts"
        facts.write_text(FACTS)
        path = sandbox.run("sh", "-c", 'dirname "$(command -v scontrol)"').stdout.strip()
        state = sandbox.layout.state
        told = (
            f"export PATH={path}:$PATH LD_LIBRARY_PATH={library} NVML_STANDIN={facts}"
            f" GPUSAGE_USAGE_FOLDER={state}/usage GPUSAGE_MPS_FOLDER={state}/mps"
            f" GPUSAGE_MPS_CONTROL={control_in(state)} GPUSAGE_CUDA_LIBRARY={driver_in(state, '-DIGNORES_DAEMONS')}\n"
        )
        for name in ("prolog", "epilog"):
            wrapper = sandbox.layout.etc / f"gpusage_{name}.sh"
            wrapper.write_text(wrapper.read_text().replace("\n", f"\n{told}", 1))
        yield sandbox


def ran(sandbox: Sandbox, *options: str, comment: str = COMMENT) -> str:
    """Return a job that has run: it computes for a second, and NVML shows its memory."""
    facts = sandbox.layout.jobs / "facts"
    shown = f"printf '%s' '{FACTS}' >{facts}; echo process $$ 3000000000 >>{facts}"
    script = f"{shown}; python3 -c '{BUSY}'; sleep 2"
    command = ("sbatch", "--parsable", "--wait", "--gres=gpu:1", f"--comment={comment}", *options, f"--wrap={script}")
    return sandbox.run(*command, check=False).stdout.strip()


def told(sandbox: Sandbox, job: str) -> dict[str, Any]:
    """Return what `gpusage decisions` says of a job once it has its usage."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        (decision,) = json.loads(sandbox.run("gpusage", "decisions", job, "--json").stdout)["decisions"]
        if decision["usage"]:
            return dict(decision)
        time.sleep(0.5)
    pytest.fail(f"no usage came: {sandbox.run('scontrol', 'show', 'nodes').stdout}")


def test_a_jobs_usage_is_in_the_store_and_its_user_is_told(sandbox: Sandbox) -> None:
    """A job that carries no mark is told of by its node, and not kept."""
    other, job = ran(sandbox, comment="nothing"), ran(sandbox, "--job-name=secret --token=x")
    decision = told(sandbox, job)
    (usage,) = decision["usage"]
    assert (usage["job_id"], usage["number"], usage["outcome"]) == (job, decision["number"], "completed")
    assert (usage["gpu"], usage["job_name"]) == ("v100-sxm2-16gb", "secret --token=x")
    assert (usage["gpu_utilization"], usage["sm_activity"], usage["dram_activity"]) == (0.4, 0.3, 0.2)
    assert usage["memory_bytes"] == 3_000_000_000
    assert usage["cpu_s"] >= 0.9
    assert usage["alone_s"] > 0
    shown = " ".join(sandbox.run("gpusage", "decisions", job).stdout.split())
    assert "used 40 % of its time, 30 % of its SMs, 2.8 GiB, completed after" in shown
    with closing(open_store(f"sqlite:///{sandbox.layout.state}/decisions.db")) as store:
        (observed,) = store.usage(job_id=job)
        assert observed.decision is not None
        assert observed.decision.number == decision["number"]
        assert store.usage(job_id=other) == ()


def test_a_node_tells_nothing_but_figures_and_keeps_nothing_behind(sandbox: Sandbox) -> None:
    """Everybody may read a node's comment: no name, no user, no command line."""
    script = "--wrap=sleep 1; exit 3"
    command = ("sbatch", "--parsable", "--wait", "--gres=gpu:1", "--job-name=secret", f"--comment={COMMENT}", script)
    job = sandbox.run(*command, check=False).stdout.strip()
    (usage,) = told(sandbox, job)["usage"]
    assert usage["outcome"] == "failed"
    letters = letter_in(sandbox.run("scontrol", "show", "nodes", "--oneliner").stdout)
    (letter,) = (usage for usage in letters if usage.job_id == job)
    assert (letter.user, letter.job_name, letter.number) == ("", "", "")
    assert "secret" not in repr(letters)
    left = [file.name for file in (sandbox.layout.state / "usage").iterdir() if not file.name.endswith("lock")]
    assert left == []


def test_a_job_that_a_signal_ended_was_interrupted(sandbox: Sandbox) -> None:
    """Slurm 22.05 writes its exit status and signal as one number."""
    script = "--wrap=sleep 1; kill -TERM $$"
    job = sandbox.run(
        "sbatch", "--parsable", "--wait", "--gres=gpu:1", f"--comment={COMMENT}", script, check=False
    ).stdout.strip()
    (usage,) = told(sandbox, job)["usage"]
    assert usage["outcome"] == "interrupted"


STARVES = """
[ -n "$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" ] || exit 0
mib=${{CUDA_MPS_PINNED_DEVICE_MEM_LIMIT#0=}}
printf '%s' '{facts}' >{file}; echo process $$ $((${{mib%M}} * 1048576)) >>{file}
sleep 3
exit 1
"""


def test_a_share_that_fails_with_its_cap_filled_runs_again_without_a_word_in_its_output(sandbox: Sandbox) -> None:
    script = STARVES.format(facts=FACTS, file=sandbox.layout.jobs / "facts")
    light = COMMENT.replace(",slowdown=1", "")
    job = sandbox.run("sbatch", "--parsable", "--gres=gpu:1", f"--comment={light}", f"--wrap={script}").stdout.strip()

    def has_run_again() -> bool:
        text = sandbox.run("scontrol", "show", "job", job).stdout
        return "JobState=COMPLETED" in text and "Restarts=1" in text

    sandbox.wait_for(has_run_again, "it runs again, with a whole GPU", LIMIT_S)
    first = min(told(sandbox, job)["usage"], key=lambda usage: usage["started_at_s"])
    assert first["outcome"] == "out_of_memory"
    assert first["memory_bytes"] == first["granted"]["memory_limit_bytes"] > 0
    assert first["granted"]["division"] == "whole"
    assert first["granted"]["trouble"] == "no MPS daemon holds the client: it sees all SMs"


def test_where_history_is_observed_a_job_that_names_no_model_is_known_by_its_features(sandbox: Sandbox) -> None:
    """Its mark leads from what its node saw to who submitted it, under what name, and to a digest of its script."""
    settings = sandbox.layout.etc / "gpusage.toml"
    settings.write_text(f'{settings.read_text()}\n[learning]\nhistory = "observe"\n')
    deadline_s, mark = time.monotonic() + LIMIT_S, ""
    while "the job names no model" not in mark and time.monotonic() < deadline_s:
        job = ran(sandbox, "--job-name=nightly 7", comment="nothing")
        mark = sandbox.run(
            "squeue", "--noheader", "--states=all", f"--jobs={job}", "--Format=admin_comment:1000"
        ).stdout
    decision = told(sandbox, job)
    (usage,) = decision["usage"]
    assert (decision["code"], usage["job_id"], usage["number"]) == ("KEEP", job, decision["number"])
    with closing(open_store(f"sqlite:///{sandbox.layout.state}/decisions.db")) as store:
        record = store.find(decision["number"])
    assert record is not None
    assert record.identity is not None
    assert record.identity.job_name == "nightly 7"
    assert len(record.identity.script_digest) == 16
    assert record.identity.request.startswith("1 any, 1 cores")
