"""A job whose share's memory is too small: rescued once, unseen, with a whole GPU, never against its user's word."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from ends import give_training
from gpusage.store.opening import open_store
from gpusage.store.rows import UsageQuery
from gpusage_sandboxes.gpusaged import start_gpusaged, stop_gpusaged
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from gpusage_slurm.jobs.queue import PROGRAM_MISSING
from gpusage_slurm.jobs.restore import OUT_OF_MEMORY
from slurm_jobs import (
    GENEROUS,
    configure,
    gpusaged_status,
    is_timely,
    release,
    show_job,
    submit_held,
    submit_share,
    wait_for_state,
)
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("empty_queue")]

LIGHT = f"model={Path(__file__).parents[2] / 'examples' / 'models'}/dlrm.onnx,batch=8,mode=infer"
CHANGES_PENDING_GRES = (23, 11)
"""From this version on a pending job's share can become a GPU: 22.05 refuses, 24.11 does it."""
SLURMS_OWN_WAIT_S = 120
"""What Slurm lets a requeued job wait by itself."""
_OWN = "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
UNTIL_MARKED = f"until scontrol show job {_OWN} | grep -q '^ *AdminComment=.* BACK '; do sleep 0.2; done"
"""gpusaged sets the mark right of a job that waits or runs, and not of one that has ended.

An array's last task has the number of the array, by which scontrol shows all tasks. 26.05 shows this text, too.
"""
STARVES = """
percent=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
echo start cap=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT percent=$percent restarts=$SLURM_RESTART_COUNT
srun --gres=gpu:1 sh -c 'echo step percent=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE'
[ ${percent:-100} = 100 ] && [ -z "$ALWAYS" ] && exit 0
./train "print('torch.OutOfMemoryError: CUDA out of memory.', file=sys.stderr); sys.exit(${STATUS:-1})"
exit ${STATUS:-1}
"""


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with gpusage installed."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2")), release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", f"{GENEROUS}[learning]\nrefresh_s = 1\nenabled = false\n")
        give_training(sandbox)
        yield sandbox


def unlike(script: str) -> tuple[str, str]:
    """Return the option of a name, and *script*, so that no other job is like it: the next try of those is whole."""
    word = "".join(random.choices(string.ascii_lowercase, k=12))  # a name
    return f"--job-name={word}", f": {word}\n{script}"


def shared(sandbox: Sandbox, *options: str, script: str = STARVES) -> str:
    """Return a held job that became a share, and that is like no other."""
    name, script = unlike(script)
    return submit_share(sandbox, "--open-mode=append", f"--comment={LIGHT}", name, *options, wrap=script)


def output(sandbox: Sandbox, job: str) -> str:
    """Return what the job wrote."""
    return (sandbox.layout.jobs / f"slurm-{job}.out").read_text()


@contextmanager
def stopped_gpusaged(sandbox: Sandbox) -> Iterator[None]:
    """Stop gpusaged for a while; the tests that follow find it running whatever happens here."""
    stop_gpusaged(sandbox)
    try:
        yield
    finally:
        start_gpusaged(sandbox)


def submit_after(sandbox: Sandbox, job: str, *kinds: str) -> dict[str, str]:
    """Submit a job that depends on *job* in each of these ways, and return their numbers."""
    command = ("sbatch", "--parsable", "--wrap=true")
    return {kind: sandbox.run(*command, f"--dependency={kind}:{job}").stdout.strip() for kind in kinds}


def test_slurm_and_who_waits_see_one_end_the_last(sandbox: Sandbox) -> None:
    """Meanwhile gpusaged is stopped: the second run has its whole GPU without it, and does not wait two minutes."""
    job = shared(sandbox)
    name = show_job(sandbox, job)["JobName"]
    array = shared(sandbox, "--array=1-2", script='[ "$SLURM_ARRAY_TASK_ID" = 1 ] && exit 0\n' + STARVES)
    number = show_job(sandbox, job)["AdminComment"].split()[1]
    after = submit_after(sandbox, job, "afterok", "afternotok", "afterany")
    after_array = submit_after(sandbox, array, "afterok", "aftercorr")
    single = sandbox.run("sbatch", "--parsable", f"--job-name={name}", "--dependency=singleton", "--wrap=true")
    with stopped_gpusaged(sandbox):
        release(sandbox, job, array)
        job_then = wait_for_state(sandbox, job, "COMPLETED", restarts=1)
        task_then = wait_for_state(sandbox, f"{array}_2", "COMPLETED", restarts=1)
        wait_for_state(sandbox, f"{array}_1", "COMPLETED", restarts=0)
        for dependant in (after["afterok"], after["afterany"], single.stdout.strip()):
            assert wait_for_state(sandbox, dependant, "COMPLETED")["StartTime"] >= job_then["EndTime"]
        for dependant in after_array.values():
            assert wait_for_state(sandbox, dependant, "COMPLETED")["StartTime"] >= task_then["EndTime"]
        wait_until(lambda: show_job(sandbox, after["afternotok"])["Reason"] == "DependencyNeverSatisfied")
    text = output(sandbox, job)
    first, second = text.split("start ")[1:]
    line = rf"gpusage: this job has a share of a GPU, gres/mps:[0-9]+: 'gpusage decisions {job}' says why\.\n"
    assert re.match(line, text)
    assert re.match(r"cap=0=[0-9]+M percent=[1-9][0-9]? restarts=\n", first)
    assert "gpusage: CUDA ran out of memory in this job's share of a GPU (mps:" in first
    assert "gpusage: this job starts again, with a whole GPU" in text
    whole = "" if sandbox.installation.major_minor >= CHANGES_PENDING_GRES else "100"
    assert second.startswith(f"cap= percent={whole} restarts=1\nstep percent={whole}\n")
    store = open_store(f"sqlite:///{sandbox.layout.state}/decisions.db")
    wait_until(lambda: store.usage(UsageQuery(job_id=job)))
    (seen,) = store.usage(UsageQuery(job_id=job))
    assert (seen.usage.outcome, seen.usage.number) == ("out_of_memory", number)
    assert 0 <= seen.usage.ended_at_s - seen.usage.started_at_s < SLURMS_OWN_WAIT_S  # Slurm counts whole seconds
    assert datetime.fromisoformat(job_then["StartTime"]).timestamp() > seen.usage.ended_at_s + 2
    assert datetime.fromisoformat(job_then["EligibleTime"]).timestamp() < seen.usage.ended_at_s + SLURMS_OWN_WAIT_S
    store.close()


def test_of_an_array_only_the_tasks_that_ran_lack_memory(sandbox: Sandbox) -> None:
    """At first gpusaged is stopped. Two tasks run at a time; without this each of the six would run twice."""
    array = shared(sandbox, "--array=1-6%2")
    with stopped_gpusaged(sandbox):
        release(sandbox, array)
        ended = [wait_for_state(sandbox, f"{array}_{task}", "COMPLETED") for task in range(1, 7)]
    assert 1 <= sum(int(task["Restarts"]) for task in ended) <= 2
    array = shared(sandbox, "--array=1-3%1", script=f"[ $SLURM_ARRAY_TASK_ID != 3 ] || {UNTIL_MARKED}\n{STARVES}")
    release(sandbox, array)
    tasks = [wait_for_state(sandbox, f"{array}_{task}", "COMPLETED") for task in range(1, 4)]
    assert [task["Restarts"] for task in tasks] == ["1", "0", "0"]
    assert " BACK gres/mps:" in tasks[2]["AdminComment"]
    assert f": task {array}_1 of its array did" in tasks[2]["AdminComment"]


def test_no_loop_and_never_against_its_users_word_and_its_mark_is_set_right(sandbox: Sandbox) -> None:
    """One fails with a whole GPU as well, one must not be requeued, one copes with it; and `sbatch --wait` waits."""
    waiting = ["sbatch", "--wait", "--parsable", "--gres=gpu:1", "--open-mode=append", f"--comment={LIGHT}"]
    name, script = unlike(f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || {UNTIL_MARKED}\n{STARVES}')
    waiting += [name, f"--wrap={script}"]

    def waited_in_time() -> str | None:
        job = sandbox.run(*waiting).stdout.strip()
        return job if is_timely(show_job(sandbox, job).get("AdminComment", "")) else None

    sandbox.run("scancel", shared(sandbox))  # from now on a card of the model is at hand
    with ThreadPoolExecutor() as threads:
        waiter = threads.submit(wait_until, waited_in_time)
        forever = shared(sandbox, "--export=ALL,ALWAYS=1")
        final = shared(sandbox, "--no-requeue")
        copes = shared(sandbox, "--export=ALL,STATUS=0")
        release(sandbox, forever, final, copes)
        wait_for_state(sandbox, forever, "FAILED", restarts=1)
        wait_for_state(sandbox, final, "FAILED", restarts=0)
        wait_for_state(sandbox, copes, "COMPLETED", restarts=0)
        waited = waiter.result()  # it would have raised an error after the first run
    again = wait_for_state(sandbox, waited, "COMPLETED", restarts=1)
    assert " BACK gres/mps:" in again["AdminComment"]
    assert "CUDA ran out of memory in its part of a GPU" in again["AdminComment"]
    assert again["Comment"] == LIGHT

    def reported() -> list[str]:
        known = gpusaged_status(sandbox)["job_monitor"]["not_requeued"]
        return [each for each in known if f"slurm job {final} of " in each]

    (message,) = wait_until(reported)
    assert "--no-requeue" in message
    assert show_job(sandbox, final)["Comment"] == f"{LIGHT} {OUT_OF_MEMORY}"
    assert show_job(sandbox, forever)["Restarts"] == "1"
    assert "ran out of memory in its share, and is not run again" in sandbox.run("gpusage", "slurm", "status").stdout


def test_the_next_try_of_a_job_that_failed_is_whole_even_if_it_comes_at_once(sandbox: Sandbox) -> None:
    """A client submits `--no-requeue` jobs again and again, as Nextflow does, and this one says nothing of memory."""
    name, script = unlike('[ -z "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" ] || exit 3')
    named = f"--comment={LIGHT.replace('batch=8', 'batch=4')}"  # nothing was learned of it
    job = submit_share(sandbox, "--no-requeue", named, name, wrap=script)
    release(sandbox, job)
    wait_for_state(sandbox, job, "FAILED", restarts=0)
    next_job = submit_held(sandbox, "--no-requeue", "--gres=gpu:1", named, name, wrap=script).job_id
    release(sandbox, next_job)
    assert wait_for_state(sandbox, next_job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    assert "failed in its share of a GPU, so this one has the whole GPU" in show_job(sandbox, next_job)["AdminComment"]
    assert f"--comment={show_job(sandbox, job)['Comment']}" == named  # the epilog's note went to gpusaged


def test_a_program_that_is_missing_takes_no_share_from_the_next_try(sandbox: Sandbox) -> None:
    name, script = unlike("srun --gres=gpu:1 serve-that-is-mistyped")
    named = f"--comment={LIGHT.replace('batch=8', 'batch=3')}"  # nothing was learned of it
    job = submit_share(sandbox, "--no-requeue", named, name, wrap=script)
    release(sandbox, job)
    failed = wait_for_state(sandbox, job, "FAILED", restarts=0)
    assert failed["ExitCode"] == "2:0"
    assert failed["Comment"].endswith(PROGRAM_MISSING), output(sandbox, job)
    submit_share(sandbox, "--no-requeue", named, name, wrap=script)  # which sees to it that it became a share


def test_a_site_that_rescues_no_job_has_the_miss_recorded(sandbox: Sandbox) -> None:
    was = sandbox.layout.gpusage_toml.read_text()
    configure(sandbox, f"{was}[sharing]\nrescue = false\n")
    try:
        job = shared(sandbox, f"--comment={LIGHT.replace('batch=8', 'batch=2')}")
        release(sandbox, job)
        wait_until(
            lambda: any(
                f"job {job} of" in message for message in gpusaged_status(sandbox)["job_monitor"]["not_requeued"]
            )
        )
        assert wait_for_state(sandbox, job, "FAILED", restarts=0)["Comment"].endswith(OUT_OF_MEMORY)
    finally:
        configure(sandbox, was)
