"""MIG slices and more threads than a share books, on a real Slurm; a slice there is a GPU type like any other."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusage.sandboxes.nodes import SandboxNode
from gpusage.service.client import status
from gpusage_slurm.sandbox import ClusterPlan, Sandbox, start_sandbox
from gpusage_slurm.sandbox.trial import install_plugin

pytestmark = pytest.mark.slurm

MODELS = Path(__file__).parents[2] / "examples" / "models"
LIGHT = f"model={MODELS}/dlrm.onnx,batch=8,mode=infer,utilization=40"
TURNS_BACK = (23, 11)
SLICE = "a100_3g.20gb"
SETTINGS = '[sharing]\ncap = "double"\nsizes = [50]\n[slurm]\nlimit_ms = 1000\n'


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with one V100 and two slices, whose daemon lets a job go that has been stuck for two seconds."""
    nodes = (
        SandboxNode(name="n1", gpu_type="v100", gpu_count=1),
        SandboxNode(name="n2", gpu_type=SLICE, gpu_count=2),
    )
    with start_sandbox(ClusterPlan(nodes=nodes), release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", SETTINGS)
        toml = sandbox.layout.etc / "gpusage.toml"
        toml.write_text(toml.read_text().replace("refresh_s = 1\n", "refresh_s = 1\nstuck_after_s = 2\n"))
        yield sandbox


def submitted(sandbox: Sandbox, wanted: str, *options: str, wrap: str = "true") -> str:
    """Return a job that asks for *wanted* in place of its GPU, once one does: a busy machine may be late."""
    for _ in range(20):
        command = ("sbatch", "--parsable", "--gres=gpu:1", f"--comment={LIGHT}", *options, f"--wrap={wrap}")
        job = sandbox.run(*command).stdout.strip()
        if wanted in tres(sandbox, job):
            return job
        sandbox.run("scancel", job)
        time.sleep(0.5)
    pytest.fail(f"no job asks for {wanted}: {sandbox.run('scontrol', 'show', 'job', job).stdout}")


def tres(sandbox: Sandbox, job: str) -> str:
    found = re.search(r"TresPerNode=(\S*)", sandbox.run("scontrol", "show", "job", job).stdout)
    return found[1] if found else ""


def test_a_slice_is_asked_for_by_its_own_name_and_let_go_where_none_is_free(sandbox: Sandbox) -> None:
    """Two jobs fill the slices while a third waits for one, held; then the V100 is free for it."""
    if sandbox.installation.major_minor < TURNS_BACK:
        pytest.skip("22.05 changes no waiting slice into a GPU")
    waiting = submitted(sandbox, SLICE, "--hold")
    others = [
        sandbox.run("sbatch", "--parsable", f"--gres=gpu:{SLICE}:1", "--wrap=sleep 60").stdout.strip() for _ in range(2)
    ]
    deadline_s = time.monotonic() + 30
    while sandbox.run("squeue", "--noheader", "--states=RUNNING").stdout.count("\n") < len(others):
        assert time.monotonic() < deadline_s, "the slices are not full"
        time.sleep(0.2)
    sandbox.run("scontrol", "release", waiting)
    while SLICE in tres(sandbox, waiting):
        assert time.monotonic() < deadline_s, str(status(str(sandbox.layout.socket))["aftercare"])
        time.sleep(0.2)
    sandbox.run("scancel", *others)
    sandbox.wait_for_queue()
    assert "COMPLETED" in sandbox.run("scontrol", "show", "job", waiting).stdout


def test_a_share_may_use_more_threads_than_slurm_counts(sandbox: Sandbox) -> None:
    job = submitted(sandbox, "mps:50", "--constraint=v100", wrap="echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    sandbox.wait_for_queue()
    assert (sandbox.layout.jobs / f"slurm-{job}.out").read_text().strip() == "100"
