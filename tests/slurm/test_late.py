"""Jobs that come another way than through our cli_filter, on a real Slurm: slurmrestd's, bare clients', srun's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.trial import install_plugin
from slurm_jobs import GENEROUS, HeldJob, own_output, release, show_job, submit_until, wait_for_state
from waiting import wait_until

pytestmark = pytest.mark.slurm

MODELS = Path(__file__).parents[2] / "examples" / "models"
LIGHT = f"model={MODELS}/dlrm.onnx,batch=8,mode=infer"
NOT_OURS = "nothing for us"
CHANGES = (23, 11)
"""22.05 changes no waiting GPU into a share."""
REPORT = """
echo "$GPUSAGE_DECISION $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
srun --gres=gpu:1 sh -c 'echo "inner $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"'
"""


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with gpusage installed; clients in it are bare where they use the other slurm.conf."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2")), release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", GENEROUS)
        conf = sandbox.layout.slurm_conf
        (sandbox.layout.etc / "bare.conf").write_text(
            "".join(line for line in conf.read_text().splitlines(True) if not line.startswith("CliFilterPlugins"))
        )
        yield sandbox


@pytest.fixture(autouse=True)
def empty_queue(sandbox: Sandbox) -> Iterator[None]:
    """Leave no job to the next test."""
    yield
    sandbox.run("scancel", "--state=PENDING", check=False)
    sandbox.run("scancel", "--state=RUNNING", check=False)
    sandbox.wait_for_queue()


def bare(sandbox: Sandbox, *options: str, comment: str = LIGHT, wrap: str = "true") -> str:
    """Submit a held job with a client that has no cli_filter, and to which gpusaged has said a word if it is ours."""
    environment = {"SLURM_CONF": str(sandbox.layout.etc / "bare.conf")}

    def has_mark(job: HeldJob) -> bool:
        return comment == NOT_OURS or bool(job.mark)

    options = (f"--comment={comment}", *options)
    return submit_until(sandbox, has_mark, *options, wrap=wrap, environment=environment).job_id


def late(sandbox: Sandbox) -> dict[str, dict[str, str]]:
    """Look once, and return what became of each job."""
    document = json.loads(sandbox.run("gpusage", "slurm", "late", "--once", "--json").stdout)
    return {job["job_id"]: job for job in document["jobs"]}


def changes(sandbox: Sandbox) -> bool:
    return sandbox.installation.major_minor >= CHANGES


@pytest.mark.parametrize("request_", ["--gres=gpu:1", "--gpus=1", "--gpus-per-task=1"])
def test_a_bare_clients_job_runs_on_a_share_with_its_cap_and_inner_sruns(sandbox: Sandbox, request_: str) -> None:
    output = sandbox.layout.jobs / f"late{request_}"
    job = bare(sandbox, request_, "--ntasks=1", f"--output={output}", wrap=REPORT)
    assert "no description of the model came" in show_job(sandbox, job)["AdminComment"]
    outcome = late(sandbox)[job]["outcome"]
    mark = show_job(sandbox, job)["AdminComment"]
    assert late(sandbox) == {}  # decided once
    if not changes(sandbox):
        assert outcome == "advised"
        assert re.match(r"gpusage \w{12} REWRITE \(advise\) gres/gpu:1 -> gres/mps:\d+ \| Slurm of this", mark), mark
        return
    assert outcome == "decided"
    match = re.match(
        r"gpusage \w{12} REWRITE gres/gpu:1 -> gres/mps:(\d+).* \| set .*MEM_LIMIT=0=(\d+)M GPUSAGE_DECISION=", mark
    )
    assert match, mark
    release(sandbox, job)
    wait_for_state(sandbox, job, "COMPLETED")
    assert own_output(output) == f"mps:{match[1]} {match[1]} 0={match[2]}M\ninner {match[1]}\n"
    (decision,) = json.loads(sandbox.run("gpusage", "decisions", "--json", job).stdout)["decisions"]
    assert decision["code"] == "REWRITE"


def test_an_array_is_decided_once(sandbox: Sandbox) -> None:
    job = bare(sandbox, "--gres=gpu:1", "--array=1-3%2")
    assert list(late(sandbox)) == [f"{job}_[1-3%2]"]
    assert late(sandbox) == {}
    if changes(sandbox):
        assert {row.split()[1] for row in sandbox.run("squeue", "-hro", "%i %b").stdout.splitlines()} == {"gres/mps:25"}


def test_what_the_user_changes_before_or_after_stays(sandbox: Sandbox) -> None:
    """A request that changed since the mark is left alone, a comment that names a model now is heard."""
    changed = bare(sandbox, "--gres=gpu:1")
    sandbox.run("scontrol", "update", f"JobId={changed}", "Gres=gpu:2")
    opted_out = bare(sandbox, "--gres=gpu:1")
    sandbox.run("scontrol", "update", f"JobId={opted_out}", "Comment=gpusage: off")
    named = bare(sandbox, "--gres=gpu:1", comment=NOT_OURS)
    assert "AdminComment" not in show_job(sandbox, named)
    sandbox.run("scontrol", "update", f"JobId={named}", f"Comment={LIGHT}")
    outcomes = late(sandbox)
    assert changed not in outcomes
    assert outcomes[named]["outcome"] == ("decided" if changes(sandbox) else "advised")
    assert "gpu" in show_job(sandbox, opted_out)["TresPerNode"]
    if changes(sandbox):
        sandbox.run("scontrol", "update", f"JobId={named}", "Gres=gpu:1")
        assert named not in late(sandbox)
        assert show_job(sandbox, named)["TresPerNode"] == "gres/gpu:1"


def test_a_model_that_cannot_be_read_and_a_script_that_needs_its_gpu_keep_it(sandbox: Sandbox) -> None:
    missing = bare(sandbox, "--gres=gpu:1", comment="model=/nowhere/a.onnx")
    counted = bare(sandbox, "--gres=gpu:1", wrap="srun --cpus-per-gpu=2 true")
    late(sandbox)
    assert "must be a file that you can read" in show_job(sandbox, missing)["AdminComment"]
    assert "--cpus-per-gpu" in show_job(sandbox, counted)["AdminComment"]
    assert {show_job(sandbox, job)["TresPerNode"][-5:] for job in (missing, counted)} == {"gpu:1"}
    assert late(sandbox) == {}


def test_a_requeued_job_is_decided_while_it_waits_again(sandbox: Sandbox) -> None:
    job = bare(sandbox, "--gres=gpu:1", wrap="sleep 1000")
    release(sandbox, job)
    wait_for_state(sandbox, job, "RUNNING")
    assert late(sandbox) == {}
    sandbox.run("scontrol", "requeuehold", job)
    wait_for_state(sandbox, job, "PENDING")
    assert late(sandbox)[job]["outcome"] == ("decided" if changes(sandbox) else "advised")


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_srun_and_salloc_get_advice(sandbox: Sandbox, command: str) -> None:
    sandbox.run("sh", "-c", f"{command} --gres=gpu:1 --comment={LIGHT} sleep 1000 >{command}.log 2>&1 &")
    log = sandbox.layout.jobs / f"{command}.log"
    wait_until(lambda: sandbox.run("squeue", "-ht", "R").stdout.strip() != "", log.read_text)
    ((job, seen),) = late(sandbox).items()
    assert seen["outcome"] == "advised"
    mark = show_job(sandbox, job)["AdminComment"]
    assert re.match(r"gpusage \w{12} REWRITE \(advise\) gres/gpu:1 -> gres/mps:\d+", mark), mark
