"""The main job on a real Slurm: a model's file, `sbatch`, and what became of the request."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusage.boundary.operating_system import user_name
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from slurm_jobs import (
    GENEROUS,
    HeldJob,
    is_timely,
    own_output,
    release,
    show_job,
    submit_held,
    submit_until,
    wait_for_records,
    wait_for_state,
)
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("empty_queue")]

MODELS = Path(__file__).parents[2] / "examples" / "models"
LIGHT = f"model={MODELS}/dlrm.onnx,batch=8,mode=infer"
NO_POSIX = "package.preload['posix.stdlib'] = error\n"


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster of two generations with gpusage installed and its daemon running."""
    partitions = (
        "PartitionName=whole Nodes=ALL OverSubscribe=EXCLUSIVE",
        "PartitionName=own Nodes=ALL ExclusiveUser=YES",
        "PartitionName=counted Nodes=ALL DefCpuPerGPU=2",
    )
    plan = ClusterPlan(nodes=parse_nodes("1xv100:2,1xh100:2"), settings=partitions)
    with start_sandbox(plan, release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", GENEROUS)
        yield sandbox


def submit(sandbox: Sandbox, *options: str, wrap: str = "true") -> tuple[str, dict[str, str]]:
    """Submit a held job, and return what sbatch said and the job as `scontrol show job` has it."""
    held = submit_held(sandbox, *options, wrap=wrap)
    sandbox.run("scancel", held.job_id)
    return held.output, dict(held.shown)


def completed(sandbox: Sandbox, *options: str, wrap: str = "true") -> HeldJob:
    """Return a job as it was submitted, once it has run."""
    held = submit_held(sandbox, *options, wrap=wrap)
    release(sandbox, held.job_id)
    wait_for_state(sandbox, held.job_id, "COMPLETED")
    return held


def dry_run(sandbox: Sandbox, *options: str) -> str:
    """Return what a dry run tells, once gpusaged was in time."""
    output = [""]

    def is_in_time() -> bool:
        output.append(sandbox.run("sbatch", "--test-only", *options).stderr)
        return "gpusage: " in output[-1] and is_timely(output[-1])

    wait_until(is_in_time, lambda: output[-1])
    return output[-1]


def decided(sandbox: Sandbox) -> list[str]:
    """Return the number of the latest decision."""
    wait_for_records(sandbox)
    record = json.loads(sandbox.run("gpusage", "decisions", "--json", "--last", "1").stdout)["decisions"]
    return [decision["number"] for decision in record]


@pytest.mark.short
@pytest.mark.parametrize("option", ["--gres=gpu:1", "--gpus=1", "--gpus-per-node=1", "--gpus-per-task=1"])
def test_a_light_model_gets_a_share_wherever_the_request_stood(sandbox: Sandbox, option: str) -> None:
    output, job = submit(sandbox, option, "--ntasks=1", f"--comment={LIGHT}")
    after = r"gres/(mps:\d+)(?:, prefer [\w|]+)?"
    match = re.search(rf"gpusage: gres/gpu:1 -> {after} \| assumed precision=fp32 \| \w.* an? \w+: .*GiB", output)
    assert match, output
    assert job["TresPerNode"] in (f"gres:{match[1]}", f"gres/{match[1]}")
    assert "TresPerJob" not in job
    assert "gpu" not in job.get("TresPerTask", "")


ENGINE = "model=hf:gpt2,mode=infer,engine=vllm,generate=512+128,batch=8,precision=fp16"
"""It needs 2 GiB, and takes 0.9 of the memory that it sees."""


@pytest.mark.short
def test_an_engine_shares_where_its_nodes_say_that_a_wall_stands_and_elsewhere_by_its_own_option(
    sandbox: Sandbox,
) -> None:
    output, job = submit(sandbox, "--gres=gpu:h100:1", f"--comment={ENGINE}")
    assert "half an h100 would do with --gpu-memory-utilization 0.47 and memory_share=0.47" in output
    assert "mps" not in job["TresPerNode"]
    output, job = submit(sandbox, "--gres=gpu:h100:1", f"--comment={ENGINE},memory_share=0.47")
    assert "mps:50" in job["TresPerNode"], output

    nodes = [name for name in sandbox.run("sinfo", "-h", "-N", "-o", "%N").stdout.split() if "h100" in name]
    try:
        for name in nodes:
            sandbox.run("scontrol", "update", f"NodeName={name}", "Comment=rack 7 gpusage-limit:wall")
        wait_until(lambda: "memory limited by wall" in sandbox.run("gpusage", "slurm", "status").stdout)
        output, job = submit(sandbox, "--gres=gpu:h100:1", f"--comment={ENGINE}")
        assert "mps:50" in job["TresPerNode"], output
    finally:
        for name in nodes:
            sandbox.run("scontrol", "update", f"NodeName={name}", "Comment=")
        wait_until(lambda: "memory limited by wall" not in sandbox.run("gpusage", "slurm", "status").stdout)


TRAINING = f"model={MODELS}/resnet18.onnx,batch=24,precision=fp16"
"""Three quarters of an H100 keep it within 25 %, no part of a V100 does."""


@pytest.mark.short
def test_a_training_job_runs_on_a_share_of_the_only_gpu_type_on_which_its_price_holds(sandbox: Sandbox) -> None:
    report = 'echo "$SLURMD_NODENAME $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"'
    bound = bound_job(sandbox, "--cpus-per-task=1", wrap=report)
    assert re.search(r"-> gres/mps:(\d+), constraint h100 \| .* of an h100|half an h100: ", bound.output), bound.output
    identity = bound.job_id
    release(sandbox, identity)
    wait_for_state(sandbox, identity, "COMPLETED")
    job = sandbox.run("scontrol", "--oneliner", "show", "job", identity).stdout
    features = re.search(r" Features=(\S+)", job)
    assert features, job
    assert features[1] == "h100"
    node, percent, limit = own_output(sandbox.layout.jobs / f"slurm-{identity}.out").split()
    states = sandbox.run("sinfo", "-h", "-N", "-n", node, "-o", "%f").stdout
    assert "h100" in states
    assert 0 < int(percent) < 100
    assert limit.startswith("0=")


TURN_BACK = """
import sys
from gpusage_hooks.types import AnnotatedJob
from gpusage_slurm.jobs.restore import restore_request
restore_request(AnnotatedJob(job_id=sys.argv[1], manager="slurm", user="u", state="waiting", mark=sys.argv[2]), "tried")
"""


def test_a_bound_job_that_is_turned_back_has_its_own_constraint_again(sandbox: Sandbox) -> None:
    if sandbox.installation.major_minor < (23, 11):
        pytest.skip("this version of Slurm turns no waiting share back")
    for constraint, own in ((), "(null)"), (("--constraint=h100|v100",), "h100|v100"):
        identity = bound_job(sandbox, *constraint).job_id
        text = sandbox.run("scontrol", "show", "job", identity).stdout
        (mark,) = re.findall(r"^ *AdminComment=(.*?) *$", text, re.MULTILINE)
        sandbox.run(sys.executable, "-c", TURN_BACK, identity, mark)
        job = dict(re.findall(r"(\w+)=(\S*)", sandbox.run("scontrol", "show", "job", identity).stdout))
        sandbox.run("scancel", identity)
        assert (job["TresPerNode"], job["Features"]) == ("gres/gpu:1", own)


@pytest.mark.parametrize(
    "option", ["--mem=900G", "--cpus-per-task=4096", "--nodelist={}", "--exclude={}", "--prefer=v100", "--tmp=1"]
)
def test_a_job_that_something_else_ties_to_a_node_is_never_bound_to_a_gpu_type(sandbox: Sandbox, option: str) -> None:
    """Slurm refuses some of these itself; none is refused, or told to run elsewhere, because of us."""
    node = sandbox.run("sinfo", "-h", "-N", "-o", "%N").stdout.split()[0]
    output, job = submit(sandbox, "--gres=gpu:1", option.format(node), f"--comment={TRAINING}")
    assert "constraint h100" not in output, output
    assert job.get("Features", "(null)") == "(null)"


def bound_job(sandbox: Sandbox, *options: str, wrap: str = "true") -> HeldJob:
    """Return a held job that is bound to h100, once gpusaged has seen that there is room."""
    usual = ("--gres=gpu:1", "--mem=100M", f"--comment={TRAINING}")
    return submit_until(sandbox, lambda job: "constraint " in job.output, *usual, *options, wrap=wrap)


PRINT_STATE = """
from gpusage_slurm.jobs.stuck import find_shared_jobs
from gpusage_slurm.jobs.restore import restore_request
for job in find_shared_jobs(("waiting",)):
    if job.job_id == "{job}" and job.stuck:
        print(restore_request(job, job.stuck))
"""


@pytest.mark.parametrize("lost", ["State=DRAIN Reason=test", "AvailableFeatures=none ActiveFeatures=none"])
def test_a_bound_job_whose_gpu_type_is_gone_runs_elsewhere_as_its_user_wrote_it(sandbox: Sandbox, lost: str) -> None:
    """What gpusaged does, without its wait; slurmctld holds a job for good that asks for a lost feature."""
    node = next(name for name in sandbox.run("sinfo", "-h", "-N", "-o", "%N").stdout.split() if "h100" in name)
    job = bound_job(sandbox).job_id
    try:
        sandbox.run("scontrol", "update", f"NodeName={node}", *lost.split())
        release(sandbox, job)
        command = (sys.executable, "-c", PRINT_STATE.format(job=job))
        wait_until(lambda: "True" in sandbox.run(*command).stdout, lambda: sandbox.run("squeue").stdout)
        ended = wait_for_state(sandbox, job, "COMPLETED")
    finally:
        restored = ["State=RESUME"] if "DRAIN" in lost else ["AvailableFeatures=h100", "ActiveFeatures=h100"]
        sandbox.run("scontrol", "update", f"NodeName={node}", *restored)
        sandbox.run("scancel", "--state=PENDING", check=False)
        sandbox.run("scancel", bound_job(sandbox).job_id)  # gpusaged knows that the node is back
    assert ended["Features"] == "(null)"
    assert ended["TresPerNode"] in ("gres/gpu:1", "gres:mps:100")


def test_a_jobs_own_constraint_is_joined_with_the_gpu_types(sandbox: Sandbox) -> None:
    output, job = submit(sandbox, "--gres=gpu:1", "--constraint=h100|v100", f"--comment={TRAINING}")
    assert job["Features"] in ("h100&(h100|v100)", "h100|v100"), output


def test_slurm_s_own_deadline_reaches_the_decision(sandbox: Sandbox) -> None:
    """Eight hours are plenty for a thousand steps; for more of them no share is taken."""
    due = ("--time=1", "--deadline=now+8hours")
    sandbox.run("scancel", bound_job(sandbox, *due, f"--comment={TRAINING},steps=1000").job_id)
    output, job = submit(sandbox, "--gres=gpu:1", *due, f"--comment={TRAINING},steps=100000000")
    assert "no GPU here certainly finishes it by its deadline" in output, output
    assert "gpu" in job["TresPerNode"]


def test_a_comment_in_the_script_and_a_path_from_the_folder_of_the_submission_count(sandbox: Sandbox) -> None:
    script = sandbox.layout.jobs / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --gres=gpu:1 --comment=here.onnx\n")
    here = sandbox.layout.jobs / "here.onnx"
    here.write_bytes((MODELS / "resnet18.onnx").read_bytes())
    elsewhere = sandbox.layout.jobs / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "there.onnx").write_bytes(here.read_bytes())
    for options in ((), (f"--chdir={elsewhere}", "--comment=there.onnx"), ("-D", "elsewhere", "--comment=there.onnx")):
        output = dry_run(sandbox, *options, str(script))
        assert "GiB" in output, output


def test_a_dry_run_says_what_would_be_done_and_does_nothing(sandbox: Sandbox) -> None:
    """It is no job in the store either."""
    submit(sandbox, "--gres=gpu:1", f"--comment={LIGHT}")
    before, latest = sandbox.run("squeue", "-h").stdout, decided(sandbox)
    output = dry_run(sandbox, "--gres=gpu:1", f"--comment={LIGHT}", "--wrap=true")
    assert "gres/gpu:1 -> gres/mps:" in output
    assert sandbox.run("squeue", "-h").stdout == before
    assert decided(sandbox) == latest


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--gres=gpu:2",), "2 GPUs"),
        (("--gpus=1", "--cpus-per-gpu=2"), "--cpus-per-gpu"),
        (("--gres=gpu:1", "--gpu-freq=high"), "--gpu-freq"),
        (("--gres=gpu:1", "--exclusive"), "--exclusive"),
        (("--gres=gpu:1", "--nodes=2"), "on 2 GPUs"),
        (("--gres=gpu:1", "--nodes=1-2"), "several nodes"),
    ],
)
def test_what_cannot_safely_be_changed_is_kept_and_the_user_hears_why(
    sandbox: Sandbox, options: tuple[str, ...], reason: str
) -> None:
    output, job = submit(sandbox, *options, f"--comment={LIGHT}")
    assert "kept" in output
    assert reason in output
    assert "mps" not in str(job)


def test_where_whole_nodes_are_given_gpus_stay_whole_and_jobs_run(sandbox: Sandbox) -> None:
    """A share would wait there for ever, and no dry run tells; where only users are kept apart, shares run."""
    for partition, request in [("whole", "gpu:1"), ("own", "mps:"), ("own,whole", "gpu:1")]:
        output, job = submit(sandbox, f"--partition={partition}", "--gres=gpu:1", f"--comment={LIGHT}")
        assert request in job["TresPerNode"], output
        assert ("partition whole gives whole nodes" in output) == ("gpu:1" in request)
        completed(sandbox, f"--partition={partition}", "--gres=gpu:1", f"--comment={LIGHT}")


def test_defaults_for_each_gpu_keep_gpus_whole_in_their_partition_alone(sandbox: Sandbox) -> None:
    output, job = submit(sandbox, "--partition=counted", "--gres=gpu:1", f"--comment={LIGHT}")
    assert "a share would lose what partition counted gives for each GPU (DefCpuPerGPU=2)" in output
    assert "gpu:1" in job["TresPerNode"]
    assert "mps:" in submit(sandbox, "--partition=own", "--gres=gpu:1", f"--comment={LIGHT}")[1]["TresPerNode"]


def test_a_type_that_the_user_named_and_a_constraint_hold_where_the_job_runs(sandbox: Sandbox) -> None:
    """Both nodes could run each job; only one has the features that it must have."""
    output, job = submit(sandbox, "--gres=gpu:h100:1", "--constraint=h100|v100", f"--comment={LIGHT}")
    assert "gres/gpu:h100:1 -> gres/mps:" in output
    assert (job["Features"], "h100" in job["TresPerNode"]) == ("h100&(h100|v100)", False)
    output, job = submit(sandbox, "--gres=gpu:1", "--constraint=h100", f"--comment={LIGHT}")
    assert (job["Features"], job.get("Prefer", "(null)")) == ("h100", "(null)"), output
    assert " of an h100: " in output  # its size is by the only GPU on which it may land
    options = ("--gres=gpu:h100:1", "--constraint=h100|v100", f"--comment={LIGHT}", "--output=where")
    completed(sandbox, *options, wrap="srun --gpus=1 printenv SLURMD_NODENAME")
    assert own_output(sandbox.layout.jobs / "where") == "h100-1\n"


@pytest.mark.parametrize("comment", ["project=x", f"{LIGHT},gpusage=off", "gpusage: off"])
def test_a_job_that_does_not_want_us_is_left_alone_without_a_word(sandbox: Sandbox, comment: str) -> None:
    output, job = submit(sandbox, "--gres=gpu:1", f"--comment={comment}")
    assert "gpusage" not in output
    assert job["TresPerNode"].endswith("gpu:1")


def test_a_mistake_in_the_comment_is_told_and_the_job_goes_through(sandbox: Sandbox) -> None:
    output, job = submit(sandbox, "--gres=gpu:1", "--comment=model=r.onnx,btch=4")
    assert "Did you mean 'batch'?" in output
    assert job["TresPerNode"].endswith("gpu:1")


def test_a_job_carries_what_was_done_to_it_and_slurmctlds_log_has_the_same_number(sandbox: Sandbox) -> None:
    """Kept or rewritten; a job that named no model carries nothing."""
    for options, expected in [
        ((), r"REWRITE gres/gpu:1 -> gres/mps:\d+.* \| "),
        (("--nodes=2",), r"KEEP .* \| .*on 2 GPUs"),
    ]:
        mark = admin_comment(sandbox, *options, f"--comment={LIGHT}")
        match = re.fullmatch(rf"gpusage ([0-9a-f]{{12}}) {expected}.*", mark)
        assert match, mark
        log = sandbox.layout.log_file("slurmctld").read_text()
        assert log.count(f"gpusage: uid {os.getuid()}: {match[1]} {mark.split()[2]}") == 1
    assert admin_comment(sandbox, "--comment=project=x") == ""


def test_decisions_tells_of_a_job_what_was_done_and_why(sandbox: Sandbox) -> None:
    """By the job's mark, and by the record whose number the mark has; a task of an array is a job as well."""
    job = submit_held(sandbox, "--gres=gpu:1", "--array=1-2", f"--comment={LIGHT}").job_id

    def newest(_: HeldJob) -> bool:
        wait_for_records(sandbox)
        last.extend(decisions(sandbox, "--last", "1", "--user", user_name()))
        return last[-1]["number"] not in show_job(sandbox, job)["AdminComment"]

    last: list[dict[str, Any]] = []
    whole = submit_until(sandbox, newest, "--gres=gpu:1").job_id
    try:
        (task,) = decisions(sandbox, f"{job}_2")
        assert (task["job"]["id"], task["job"]["state"], task["job"]["user"]) == (f"{job}_2", "waiting", user_name())
        assert (task["code"], task["before"], task["source"]) == ("REWRITE", "gres/gpu:1", "record")
        assert task["after"].startswith("gres/mps:")
        assert task["workload"]["batch_size"] == 8
        assert task["need"]["sm_activity"]["value"] > 0
        assert task["reasons"]
        assert (last[-1]["code"], last[-1]["job"]) == ("DECLINE", None)
        text = sandbox.run("gpusage", "decisions", job).stdout
        assert f"  gres/gpu:1 -> {task['after']}: rewritten\n" in text
        (unmarked,) = decisions(sandbox, whole)
        assert (unmarked["code"], unmarked["job"]["id"]) == (None, whole)
        store = sandbox.layout.etc / "gpusage.toml"
        (marked,) = decisions(sandbox, f"{job}_1", environment={"GPUSAGE_CONFIG": f"{store}.none"})
        assert (marked["source"], marked["code"], marked["number"]) == ("mark", "REWRITE", task["number"])
        unknown = sandbox.run("gpusage", "decisions", "999999", check=False)
        assert (unknown.returncode, "it is neither" in unknown.stderr) == (1, True)
    finally:
        sandbox.run("scancel", job, whole)


def test_the_jobs_that_run_and_those_that_wait_are_ranked_as_partners(sandbox: Sandbox) -> None:
    """Each by its record; one that said nothing to us is not among them."""
    options = ("--gres=gpu:1", "--mem=100M", "--cpus-per-task=1", f"--comment={LIGHT}")
    running, waiting = (submit_held(sandbox, *options, wrap="sleep 1000").job_id for _ in range(2))
    plain = sandbox.run("sbatch", "--parsable", "--gres=gpu:1", "--wrap=sleep 1000").stdout.strip()
    release(sandbox, running)
    wait_for_records(sandbox)
    try:
        wait_for_state(sandbox, running, "RUNNING")
        (record,) = decisions(sandbox, running)
        for option, job in (("--running", running), ("--queue", waiting)):
            among = ("gpusage", "colocate", LIGHT.removeprefix("model="), option, "--gpu", record["need"]["gpu"])
            partners = json.loads(sandbox.run(*among, "--json", check=False).stdout)["partners"]
            assert [(each["job_id"], each["user"]) for each in partners] == [(job, user_name())]
    finally:
        sandbox.run("scancel", running, waiting, plain)


def decisions(sandbox: Sandbox, *options: str, environment: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Return what `gpusage decisions` answers."""
    document = json.loads(sandbox.run("gpusage", "decisions", "--json", *options, environment=environment).stdout)
    assert document["schema"] == "gpusage.decisions/1"
    decision: list[dict[str, Any]] = document["decisions"]
    return decision


def admin_comment(sandbox: Sandbox, *options: str) -> str:
    """Submit a held job, and return its admin comment."""
    held = submit_held(sandbox, "--gres=gpu:1", *options)
    sandbox.run("scancel", held.job_id)
    return held.mark


def test_a_model_that_is_not_there_costs_the_job_nothing_and_the_user_hears_why(sandbox: Sandbox) -> None:
    output, job = submit(sandbox, "--gres=gpu:1", "--comment=/nowhere/r.onnx")
    assert "kept | Model '/nowhere/r.onnx' must be" in output
    assert job["TresPerNode"].endswith("gpu:1")


@pytest.mark.parametrize("export", ["NONE", "HOME,X=1"])
def test_a_card_travels_whatever_export_says(sandbox: Sandbox, export: str) -> None:
    output, _ = submit(sandbox, "--gres=gpu:1", f"--export={export}", f"--comment={LIGHT}")
    assert "gres/gpu:1 -> gres/mps:" in output


def test_a_model_by_name_gets_its_card_as_fast_as_one_of_a_file(sandbox: Sandbox) -> None:
    output, _ = submit(
        sandbox, "--gres=gpu:1", "--comment=model=torchvision:resnet18,batch=8,mode=infer,utilization=10"
    )
    assert re.search(r"assumed precision=fp32 \| \w.*: [\d.]+ GiB", output), output


def test_srun_is_kept_because_it_is_srun(sandbox: Sandbox) -> None:
    command = ("srun", "--gres=gpu:1", f"--comment={LIGHT}", "true")
    output = wait_until(lambda: text if is_timely(text := sandbox.run(*command).stderr) else None)
    assert "only batch jobs are changed, not srun or salloc" in output


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("/bin/gpusage", "/bin/none", "the host of the submission has no gpusage where"),
        ("limit_s = 20", "limit_s = 0.001", "describing the model t"),
        ("gpusage_cli", "nowhere", "no description of the model came with the job: its script came through a pipe, it"),
        ('package.path = "', f'{NO_POSIX}package.path = "', "--export=NONE left the description of the model behind"),
    ],
    ids=["no gpusage on the host", "a card that took too long", "no filter on the host", "--export=NONE, no luaposix"],
)
def test_a_kept_request_says_its_true_cause(sandbox: Sandbox, old: str, new: str, reason: str) -> None:
    model = sandbox.layout.jobs / "never seen before.onnx"
    model.write_bytes((MODELS / "dlrm.onnx").read_bytes())
    script = sandbox.layout.etc / "cli_filter.lua"
    good = script.read_text()
    assert old in good
    script.write_text(good.replace(old, new))
    try:
        export = ("--export=NONE",) if "--export" in reason else ()
        options = ("--gres=gpu:1", *export, f"--comment=model={model},batch=8,mode=infer")
        job = submit_until(sandbox, lambda job: reason in job.output or job.was_in_time, *options)
    finally:
        script.write_text(good)
    sandbox.run("scancel", job.job_id)
    assert f"gres/gpu:1 kept | {reason}" in job.output
    assert job.tres.endswith("gpu:1")


def test_the_card_does_not_stay_in_the_jobs_environment(sandbox: Sandbox) -> None:
    output = sandbox.layout.jobs / "environment"
    completed(sandbox, f"--output={output}", "--gres=gpu:1", f"--comment={LIGHT}", wrap="env")
    names = dict(line.split("=", 1) for line in output.read_text().splitlines() if "=" in line)
    assert names["GPUSAGE_DECISION"].startswith("mps:")
    assert re.fullmatch(r"0=\d+M", names["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"])
    assert not [name for name in names if name.endswith("GPUSAGE_CARD")]


@pytest.mark.parametrize(
    "options",
    [
        ("--mem=100G",),
        ("--cpus-per-task=20",),
        ("--constraint=v100",),
        ("--constraint=h100",),
        ("--nodelist=v100-1",),
        ("--nodelist=h100-1",),
        ("--exclude=h100-1",),
        ("--exclude=v100-1",),
        ("--gres=gpu:v100:1",),
    ],
)
def test_a_job_that_only_some_nodes_can_run_is_never_refused_and_runs(
    sandbox: Sandbox, options: tuple[str, ...]
) -> None:
    """Slurm refuses a job whose preference no node can meet, unless it is told not to; the installer tells it."""
    gres = () if any("gres" in option for option in options) else ("--gres=gpu:1",)
    completed(sandbox, *gres, *options, f"--comment={LIGHT}")


@pytest.mark.short
def test_two_light_jobs_share_one_gpu(sandbox: Sandbox) -> None:
    """Each runs until the other has started, or for 100 s, which tells that they did not run together."""
    for path in sandbox.layout.jobs.glob("*.device"):
        path.unlink()  # of an earlier try
    until = "until [ $(ls *.device | wc -l) = 2 ]; do sleep 0.1; done"
    wrap = f"echo $CUDA_VISIBLE_DEVICES >$SLURM_JOB_ID.device; timeout 100 sh -c '{until}'"
    jobs = [submit_held(sandbox, "--gres=gpu:v100:1", f"--comment={LIGHT}", wrap=wrap).job_id for _ in range(2)]
    release(sandbox, *jobs)
    for job in jobs:
        wait_for_state(sandbox, job, "COMPLETED", "FAILED")
    details = [sandbox.run("scontrol", "--oneliner", "show", "job", job).stdout for job in jobs]
    assert all("JobState=COMPLETED" in text and "NodeList=v100-1" in text for text in details), details
    assert [(sandbox.layout.jobs / f"{job}.device").read_text() for job in jobs] == ["0\n", "0\n"]
