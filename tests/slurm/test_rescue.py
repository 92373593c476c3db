"""A job whose share's memory is too small: rescued once, with a whole GPU, and never against its user's word."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from gpusage.service.client import status
from gpusage.store.opening import open_store
from gpusage_slurm.jobs.starving import GPU_FOR_SHARE, SEEN
from gpusage_slurm.sandbox import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_slurm.sandbox.trial import install_plugin

pytestmark = pytest.mark.slurm

LIGHT = f"model={Path(__file__).parents[2] / 'examples' / 'models'}/dlrm.onnx,batch=8,mode=infer"
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
        install_plugin(sandbox, "enforce", "[slurm]\nlimit_ms = 1000\n[learning]\nrefresh_s = 1\n")
        yield sandbox


def shared(sandbox: Sandbox, *options: str, script: str = STARVES) -> str:
    """Return a held job that became a share, once one did: a busy machine may be late for the first."""
    for _ in range(20):
        command = ("sbatch", "--parsable", "--hold", "--open-mode=append", "--gres=gpu:1", f"--comment={LIGHT}")
        job = sandbox.run(*command, *options, f"--wrap={script}").stdout.strip()
        if "mps" in shown(sandbox, job)["TresPerNode"]:
            return job
        sandbox.run("scancel", job)
    pytest.fail("no job was rewritten")


def shown(sandbox: Sandbox, job: str) -> dict[str, str]:
    """Return what `scontrol show job` says; its texts as a whole."""
    text = sandbox.run("scontrol", "show", "job", job).stdout
    texts = re.findall(r"^ *(AdminComment|Comment)=(.*?) *$", text, re.MULTILINE)
    return dict(re.findall(r"(\w+)=(\S*)", text)) | dict(texts)


def wait(condition: Callable[[], object]) -> None:
    """Wait until *condition* holds, for less than the two minutes that Slurm lets a requeued job wait by itself."""
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


def wait_for(sandbox: Sandbox, job: str, state: str, restarts: int) -> dict[str, str]:
    """Return the job once it is in *state* after so many restarts."""
    wait(lambda: (shown(sandbox, job)["JobState"], shown(sandbox, job)["Restarts"]) == (state, str(restarts)))
    return shown(sandbox, job)


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
    sandbox.run("scontrol", "release", job)
    started_s = time.monotonic()
    job_then = wait_for(sandbox, job, "COMPLETED", 1)
    assert time.monotonic() - started_s < 60
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
    assert seen.decision is not None
    assert seen.decision.decision.request.memory_cap_bytes
    store.close()
    cap_mib = int(first.partition("M ")[0].removeprefix("cap=0="))
    wait(lambda: booked_mib(sandbox) >= 1.2 * cap_mib)  # the same model is not shrunk that far again


def test_no_loop_no_requeue_against_its_users_word_and_only_the_failed_task(sandbox: Sandbox) -> None:
    """One fails with a whole GPU as well, one must not be requeued, one copes with it, one task of an array fails."""
    forever = shared(sandbox, "--export=ALL,ALWAYS=1")
    final = shared(sandbox, "--no-requeue")
    copes = shared(sandbox, "--export=ALL,STATUS=0")
    array = shared(sandbox, "--array=1-2", script='[ "$SLURM_ARRAY_TASK_ID" = 1 ] && exit 0\n' + STARVES)
    sandbox.run("scontrol", "release", forever, final, copes, array)
    wait_for(sandbox, forever, "FAILED", 1)
    wait_for(sandbox, f"{array}_2", "COMPLETED", 1)
    wait_for(sandbox, f"{array}_1", "COMPLETED", 0)
    wait_for(sandbox, final, "FAILED", 0)
    wait_for(sandbox, copes, "COMPLETED", 0)
    before = status(str(sandbox.layout.socket))["aftercare"]
    time.sleep(4)  # more than two looks
    after = status(str(sandbox.layout.socket))["aftercare"]
    assert (after["rescued"], after["error"]) == (before["rescued"], None)
    assert shown(sandbox, forever)["Restarts"] == "1"
    (told,) = after["not_rescued"]
    assert f"slurm job {final} of " in told
    assert "--no-requeue" in told
    assert "ran out of memory in its share, and is not run again" in sandbox.run("gpusage", "slurm", "status").stdout


def test_a_site_that_rescues_no_job_has_the_miss_recorded(sandbox: Sandbox) -> None:
    toml = sandbox.layout.etc / "gpusage.toml"
    was = toml.read_text()
    toml.write_text(f"{was}[sharing]\nrescue = false\n")
    try:
        wait(lambda: "rescue" in sandbox.run("gpusage", "slurm", "doctor", "--json", check=False).stdout)
        time.sleep(1)
        job = shared(sandbox)
        sandbox.run("scontrol", "release", job)
        wait(
            lambda: any(
                f"job {job} of" in told for told in status(str(sandbox.layout.socket))["aftercare"]["not_rescued"]
            )
        )
        assert wait_for(sandbox, job, "FAILED", 0)["Comment"].endswith(SEEN)
    finally:
        toml.write_text(was)
