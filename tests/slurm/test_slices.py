"""MIG slices and more threads than a share books, on a real Slurm; a slice there is a GPU type like any other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusage.store.opening import open_store
from gpusage.store.rows import UsageQuery
from gpusage_sandboxes.layout import SandboxNode
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from slurm_jobs import (
    GENEROUS,
    configure,
    fresh_name,
    gpusaged_status,
    own_output,
    release,
    show_job,
    submit_until,
    wait_for_state,
)
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("empty_queue")]

MODELS = Path(__file__).parents[2] / "examples" / "models"
LIGHT = f"model={MODELS}/dlrm.onnx,batch=8,mode=infer,utilization=40"
TURNS_BACK = (23, 11)
SLICE = "a100_3g.20gb"
SETTINGS = f'[sharing]\ncap = "double"\nsizes = [50]\n{GENEROUS}[learning]\nenabled = false\n'
"""What lacked memory once is learned within half a minute: the tests that follow would get no share."""


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with two slices and two GPUs, whose daemon lets a job go that has been stuck for two seconds."""
    nodes = (
        SandboxNode(name="n1", gpu_type="v100", gpu_count=1),
        SandboxNode(name="n2", gpu_type=SLICE, gpu_count=2),
        SandboxNode(name="n3", gpu_type="a100", gpu_count=1),
    )
    with start_sandbox(ClusterPlan(nodes=nodes), release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", SETTINGS)
        text = sandbox.layout.gpusage_toml.read_text()
        configure(sandbox, text.replace("refresh_s = 1\n", "refresh_s = 1\nstuck_after_s = 2\n"))
        yield sandbox


def submitted(sandbox: Sandbox, wanted: str, *options: str, wrap: str = "true") -> str:
    """Return a held job that asks for *wanted* in place of its GPU."""
    ours = ("--gres=gpu:1", f"--comment={LIGHT}", *options)
    return submit_until(sandbox, lambda job: wanted in job.tres, *ours, wrap=wrap).job_id


def test_a_slice_is_asked_for_by_its_own_name_and_let_go_where_none_is_free(sandbox: Sandbox) -> None:
    """Two jobs fill the slices while a third waits for one, held; then the V100 is free for it."""
    if sandbox.installation.major_minor < TURNS_BACK:
        pytest.skip("22.05 changes no waiting slice into a GPU")
    waiting = submitted(sandbox, SLICE)
    command = ("sbatch", "--parsable", f"--gres=gpu:{SLICE}:1", "--wrap=sleep 1000")
    others = [sandbox.run(*command).stdout.strip() for _ in range(2)]
    for other in others:
        wait_for_state(sandbox, other, "RUNNING")
    release(sandbox, waiting)
    wait_until(
        lambda: SLICE not in show_job(sandbox, waiting)["TresPerNode"], lambda: gpusaged_status(sandbox)["job_monitor"]
    )
    sandbox.run("scancel", *others)
    wait_for_state(sandbox, waiting, "COMPLETED")


def test_a_slice_of_the_named_type_is_given_where_its_user_says_so_and_let_go_for_that_type_alone(
    sandbox: Sandbox,
) -> None:
    """Both slices are busy and the V100 is free, which is not what the user named; then the A100 is free, too."""
    if sandbox.installation.major_minor < TURNS_BACK:
        pytest.skip("22.05 changes no waiting slice into a GPU")
    typed = ("--gres=gpu:a100:1", f"--comment={LIGHT},slices=on")
    waiting = submit_until(sandbox, lambda job: SLICE in job.tres, *typed).job_id
    assert f"gres/gpu:a100:1 -> gres/gpu:{SLICE}:1, else a100" in show_job(sandbox, waiting)["AdminComment"]
    command = ("sbatch", "--parsable", "--wrap=sleep 1000")
    others = [sandbox.run(*command, f"--gres=gpu:{kind}:1").stdout.strip() for kind in (SLICE, SLICE, "a100")]
    for other in others:
        wait_for_state(sandbox, other, "RUNNING")
    release(sandbox, waiting)
    time.sleep(5)
    assert SLICE in show_job(sandbox, waiting)["TresPerNode"]
    sandbox.run("scancel", others.pop())
    wait_until(lambda: show_job(sandbox, waiting)["TresPerNode"] == "gres/gpu:a100:1")
    wait_for_state(sandbox, waiting, "COMPLETED")
    sandbox.run("scancel", *others)


def test_a_job_that_lacks_memory_on_its_slice_runs_again_on_a_larger_gpu_and_so_does_the_next(
    sandbox: Sandbox,
) -> None:
    """22.05 changes no waiting slice, so that there the next try alone is larger."""
    starves = """
echo "here: $GPUSAGE_DECISION restarts=$SLURM_RESTART_COUNT"
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0
echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 24.00 GiB.' >&2
exit 1
"""
    name = (f"--job-name={fresh_name()}", "--open-mode=append")
    job = submitted(sandbox, SLICE, *name, wrap=f": {name[0]}{starves}")
    assert f"-> gres/gpu:{SLICE}:1, else a100 |" in show_job(sandbox, job)["AdminComment"]
    release(sandbox, job)
    text = sandbox.layout.jobs / f"slurm-{job}.out"
    if sandbox.installation.major_minor < TURNS_BACK:
        wait_for_state(sandbox, job, "FAILED", restarts=0)
        assert "The next job like it gets gres/gpu:a100:1" in text.read_text()
    else:
        again = wait_for_state(sandbox, job, "COMPLETED", restarts=1)
        assert (again["TresPerNode"], again["NodeList"]) == ("gres/gpu:a100:1", "n3")
        assert "runs again by itself, once, with gres/gpu:a100:1" in text.read_text()
        assert text.read_text().count("gpusage: this job starts again, on a larger GPU") == 1
    next_try = submitted(sandbox, "gpu:a100:1", *name)
    assert "failed in its part of a GPU, so this one has a100" in show_job(sandbox, next_try)["AdminComment"]
    sandbox.run("scancel", next_try)
    store = open_store(f"sqlite:///{sandbox.layout.state}/decisions.db")
    wait_until(lambda: store.usage(UsageQuery(job_id=job)))
    (seen,) = store.usage(UsageQuery(job_id=job))
    assert (seen.usage.outcome, seen.usage.granted.division) == ("out_of_memory", "slice")
    store.close()


def test_a_share_may_use_more_threads_than_slurm_counts(sandbox: Sandbox) -> None:
    job = submitted(sandbox, "mps:50", "--constraint=v100", wrap="echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    release(sandbox, job)
    wait_for_state(sandbox, job, "COMPLETED")
    assert own_output(sandbox.layout.jobs / f"slurm-{job}.out").strip() == "100"
