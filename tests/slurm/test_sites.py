"""Sites as they are (tests/golden/sites), on a real Slurm: each job gets its golden request, and starts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpusage_sandboxes.layout import SandboxNode
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from gpusage_slurm.cluster.hostlist import expand_hostlist
from gpusage_slurm.cluster.nodes import counts
from slurm_jobs import GENEROUS, configure, own_output, release, show_job, submit_until, wait_for_state

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
SITES = ROOT / "tests" / "golden" / "sites"
SHARES_FROM = CHANGES_TYPES_FROM = (23, 11)
LARGE_RUNS_ON = {
    "fir": "gpu:h100:1",
    "mila": "gpu:h100:1",
    "mig_only": "gpu:nvidia_a100_80gb_pcie_3g.40gb:1",
}
"""What the large job gets, of all that a request for any GPU may lead to."""


def plan_of(site: str) -> ClusterPlan:
    """Return a cluster with one node of each of the site's lines."""
    nodes, text = [], (SITES / f"{site}.conf").read_text()
    for line in re.findall(r"^NodeName=.*", text, re.MULTILINE):
        settings = dict(re.findall(r"(\w+)=(\S+)", line))
        (gpu_type, count), *others = counts(settings["Gres"], "gpu").items()
        features = settings.get("Features", "")
        node = SandboxNode(
            name=expand_hostlist(settings["NodeName"])[0],
            gpu_type=gpu_type,
            gpu_count=count,
            other_gpus=tuple(others),
            features=tuple(features.split(",")) if features else (),
            has_shares="mps" in settings["Gres"],
        )
        nodes.append(node)
    return ClusterPlan(nodes=tuple(nodes), mps_per_gpu=100 if "GresTypes=gpu,mps" in text else 0)


def script_of(job: str, folder: Path) -> Path:
    """Return the script of *job*, which names its model by its whole path and prints what it has."""
    text = (SITES / "jobs" / f"{job}.sbatch").read_text().replace("model=", f"model={ROOT}/").replace("COUNT", "256")
    path = folder / f"{job}.sbatch"
    path.write_text(text.replace("python run.py", 'scontrol show job -d "$SLURM_JOB_ID" | grep -om1 "GRES=[^ (]*"'))
    return path


@pytest.mark.parametrize(
    "site",
    [
        pytest.param("fir", marks=pytest.mark.short),
        pytest.param("mila", marks=pytest.mark.nightly),
        pytest.param("mig_only", marks=pytest.mark.nightly),
    ],
)
def test_jobs_get_their_golden_requests_and_start_where_they_fit(
    site: str, slurm_release: str | None, tmp_path: Path
) -> None:
    golden = dict(re.findall(r"^(\w+): (?:REWRITE|KEEP) (.*)$", (SITES / f"{site}.txt").read_text(), re.MULTILINE))
    plan = plan_of(site)
    with start_sandbox(plan, release=slurm_release) as sandbox:
        if plan.mps_per_gpu and sandbox.installation.major_minor < SHARES_FROM:
            pytest.skip("this release shares no GPU")
        install_plugin(sandbox, "enforce", GENEROUS)
        for job in ("small", "large", "serve"):
            gres = started(sandbox, job, golden[job], tmp_path)
            assert job != "large" or gres == f"GRES={LARGE_RUNS_ON[site]}"


def started(sandbox: Sandbox, job: str, request: str, folder: Path) -> str:
    """Return what *job* was given, whose mark has the golden *request*."""
    held = submit_until(sandbox, lambda job: f" {request} |" in job.mark, wrap=script_of(job, folder))
    release(sandbox, held.job_id)
    wait_for_state(sandbox, held.job_id, "COMPLETED")
    return own_output(sandbox.layout.jobs / f"slurm-{held.job_id}.out").split()[0]


@pytest.mark.short
def test_two_gpus_land_where_their_model_fits_and_prefer_what_is_faster(
    slurm_release: str | None, tmp_path: Path
) -> None:
    nodes = [
        SandboxNode(name=f"{prefix}{number}", gpu_type=gpu_type, gpu_count=2, features=(gpu_type,))
        for prefix, gpu_type in (("a", "v100"), ("b", "a100"))
        for number in (1, 2)
    ]
    with start_sandbox(ClusterPlan(nodes=tuple(nodes), mps_per_gpu=0), release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", GENEROUS)
        for job, request, prefixes in (("sharded", "constraint a100", "b"), ("several", "prefer a100", "ab")):
            mark = f" gres/gpu:2 -> gres/gpu:2, {request} |"
            held = submit_until(sandbox, lambda job, mark=mark: mark in job.mark, wrap=script_of(job, tmp_path))
            release(sandbox, held.job_id)
            wait_for_state(sandbox, held.job_id, "COMPLETED")
            names = expand_hostlist(show_job(sandbox, held.job_id)["NodeList"])
            assert {name[0] for name in names} <= {*prefixes}
            assert len(names) == (2 if job == "sharded" else 1)


def test_a_job_that_fits_on_two_types_waits_for_neither_while_the_other_has_room(
    slurm_release: str | None, tmp_path: Path
) -> None:
    """Both types stand beside slices, so one is named until the other is free; of nodes with `x` one has small GPUs."""
    nodes = (
        SandboxNode(name="a1", gpu_type="h100", gpu_count=1, other_gpus=(("h100_1g.10gb", 2),), features=()),
        SandboxNode(name="b1", gpu_type="a100", gpu_count=1, other_gpus=(("a100_1g.5gb", 2),), features=()),
        SandboxNode(name="c1", gpu_type="h100", gpu_count=1, features=("x",)),
        SandboxNode(name="d1", gpu_type="a100", gpu_count=1, features=("x",)),
        SandboxNode(name="e1", gpu_type="t4", gpu_count=1, features=("x",)),
    )
    with start_sandbox(ClusterPlan(nodes=nodes, mps_per_gpu=0), release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", GENEROUS)
        text = sandbox.layout.gpusage_toml.read_text()
        configure(sandbox, text.replace("refresh_s = 1\n", "refresh_s = 1\nstuck_after_s = 1\n"))
        script = script_of("large", tmp_path)
        named = submit_until(sandbox, lambda job: " gres/gpu:h100:1, or a100 |" in job.mark, wrap=script).job_id
        spread = submit_until(sandbox, lambda job: ", exclude e1 |" in job.mark, "--constraint=x", wrap=script).job_id

        # Someone takes all of the type that is named; then the other is free for both.
        command = ("sbatch", "--parsable", "--gres=gpu:h100:1", "--wrap=sleep 1000", "--comment=gpusage=off")
        for other in [sandbox.run(*command).stdout.strip() for _ in range(2)]:
            wait_for_state(sandbox, other, "RUNNING")
        release(sandbox, spread)
        wait_for_state(sandbox, spread, "COMPLETED")
        assert show_job(sandbox, spread)["NodeList"] == "d1"
        if sandbox.installation.major_minor >= CHANGES_TYPES_FROM:
            release(sandbox, named)
            wait_for_state(sandbox, named, "COMPLETED")
            assert " gres/gpu:a100:1, or h100 |" in show_job(sandbox, named)["AdminComment"]
