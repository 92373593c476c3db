"""A job whose share's memory is too small: rescued once, with a whole GPU, and never against its user's word."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from gpusage.store.opening import open_store
from gpusage_slurm.jobs.starving import GPU_FOR_SHARE, SEEN
from gpusage_slurm.sandbox import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_slurm.sandbox.trial import install_plugin
from slurm_jobs import GENEROUS, configure, gpusaged_status, release, shown, submit_share, wait_for_state
from waiting import wait_until

pytestmark = pytest.mark.slurm

LIGHT = f"model={Path(__file__).parents[2] / 'examples' / 'models'}/dlrm.onnx,batch=8,mode=infer"
SLURMS_OWN_WAIT_S = 120
"""What Slurm lets a requeued job wait by itself."""
STARVES = """
percent=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
echo start cap=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT percent=$percent restarts=$SLURM_RESTART_COUNT
srun --gres=gpu:1 sh -c 'echo step percent=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE'
[ ${percent:-100} = 100 ] && [ -z "$ALWAYS" ] && exit 0
echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.' >&2
exit ${STATUS:-1}
"""


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with gpusage installed."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2")), release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", f"{GENEROUS}[learning]\nrefresh_s = 1\n")
        yield sandbox


def shared(sandbox: Sandbox, *options: str, script: str = STARVES) -> str:
    """Return a held job that became a share."""
    return submit_share(sandbox, "--open-mode=append", f"--comment={LIGHT}", *options, wrap=script)


def output(sandbox: Sandbox, job: str) -> str:
    """Return what the job wrote."""
    return (sandbox.layout.jobs / f"slurm-{job}.out").read_text()


def booked_mib(sandbox: Sandbox) -> float:
    """Return the memory that the next share for that model is to book, at the pessimistic end."""
    job = shared(sandbox)
    (told,) = json.loads(sandbox.run("gpusage", "decisions", "--json", job).stdout)["decisions"]
    sandbox.run("scancel", job)
    return float(told["need"]["memory_bytes"]["high"]) / 2**20


def test_it_runs_again_once_with_a_whole_gpu_and_the_user_is_told(sandbox: Sandbox) -> None:
    """The second start does not wait two minutes as requeued jobs do; an inner srun has the whole GPU as well."""
    job = shared(sandbox)
    number = shown(sandbox, job)["AdminComment"].split()[1]
    release(sandbox, job)
    job_then = wait_for_state(sandbox, job, "COMPLETED", restarts=1)
    text = output(sandbox, job)
    first, second = text.split("start ")[1:]
    assert re.match(r"cap=0=[0-9]+M percent=[1-9][0-9]? restarts=\n", first)
    assert "gpusage: CUDA ran out of memory in this job's share of a GPU (mps:" in first
    assert "gpusage: this job runs again, with a whole GPU" in text
    whole = "" if sandbox.installation.major_minor >= GPU_FOR_SHARE else "100"
    assert second.startswith(f"cap= percent={whole} restarts=1\nstep percent={whole}\n")
    assert job_then["AdminComment"].startswith(f"gpusage {number} BACK gres/mps:")
    assert "CUDA ran out of memory in its share" in job_then["AdminComment"]
    assert job_then["Comment"] == LIGHT
    store = open_store(f"sqlite:///{sandbox.layout.state}/decisions.db")
    (seen,) = store.usage(job_id=job)
    assert (seen.usage.outcome, seen.usage.number) == ("out_of_memory", number)
    second_start_s = datetime.fromisoformat(job_then["StartTime"]).timestamp()
    assert second_start_s > seen.usage.ended_at_s + 2  # its node refuses one in the same second
    due_s = datetime.fromisoformat(job_then["EligibleTime"]).timestamp()
    assert due_s < seen.usage.ended_at_s + SLURMS_OWN_WAIT_S
    assert seen.decision is not None
    assert seen.decision.decision.request.memory_cap_bytes
    store.close()
    cap_mib = int(first.partition("M ")[0].removeprefix("cap=0="))
    wait_until(lambda: booked_mib(sandbox) >= 1.2 * cap_mib)  # the same model is not shrunk that far again


def test_no_loop_no_requeue_against_its_users_word_and_only_the_failed_task(sandbox: Sandbox) -> None:
    """One fails with a whole GPU as well, one must not be requeued, one copes with it, one task of an array fails."""
    forever = shared(sandbox, "--export=ALL,ALWAYS=1")
    final = shared(sandbox, "--no-requeue")
    copes = shared(sandbox, "--export=ALL,STATUS=0")
    array = shared(sandbox, "--array=1-2", script='[ "$SLURM_ARRAY_TASK_ID" = 1 ] && exit 0\n' + STARVES)
    release(sandbox, forever, final, copes, array)
    wait_for_state(sandbox, forever, "FAILED", restarts=1)
    wait_for_state(sandbox, f"{array}_2", "COMPLETED", restarts=1)
    wait_for_state(sandbox, f"{array}_1", "COMPLETED", restarts=0)
    wait_for_state(sandbox, final, "FAILED", restarts=0)
    wait_for_state(sandbox, copes, "COMPLETED", restarts=0)
    wait_until(lambda: gpusaged_status(sandbox)["aftercare"]["not_rescued"])
    before = gpusaged_status(sandbox)["aftercare"]
    time.sleep(4)  # more than two looks
    after = gpusaged_status(sandbox)["aftercare"]
    assert (after["rescued"], after["error"]) == (before["rescued"], None)
    assert shown(sandbox, forever)["Restarts"] == "1"
    (told,) = after["not_rescued"]
    assert f"slurm job {final} of " in told
    assert "--no-requeue" in told
    assert "ran out of memory in its share, and is not run again" in sandbox.run("gpusage", "slurm", "status").stdout


def test_a_site_that_rescues_no_job_has_the_miss_recorded(sandbox: Sandbox) -> None:
    was = sandbox.layout.gpusage_toml.read_text()
    configure(sandbox, f"{was}[sharing]\nrescue = false\n")
    try:
        job = shared(sandbox)
        release(sandbox, job)
        wait_until(
            lambda: any(f"job {job} of" in told for told in gpusaged_status(sandbox)["aftercare"]["not_rescued"])
        )
        assert wait_for_state(sandbox, job, "FAILED", restarts=0)["Comment"].endswith(SEEN)
    finally:
        configure(sandbox, was)
