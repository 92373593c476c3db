"""What a share costs, and which limits hold it, by a real slurmdbd on a real MariaDB."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpusage.boundary.operating_system import user_name
from gpusage_sandboxes.gpusaged import start_gpusaged
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.accounting import ACCOUNT
from gpusage_sandboxes.slurm.creation import install_plugin
from gpusage_slurm.trace import COMMAND
from slurm_jobs import (
    GENEROUS,
    fresh_name,
    gpusaged_status,
    release,
    show_job,
    submit_held,
    wait_for_state,
    write_whole,
)
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("empty_queue")]

MODELS = Path(__file__).parents[2] / "examples" / "models"
LIGHT = f"--comment=model={MODELS}/dlrm.onnx,batch=8,mode=infer"
NO_LIMIT = "billing=-1,gres/gpu=-1,gres/mps=-1"
BILLED = "PartitionName=billed Nodes=ALL TRESBillingWeights=CPU=0,GRES/gpu=100"
PREEMPTS = "PreemptType=preempt/qos\nPreemptMode=REQUEUE"
WHOLE, SHARE = "gpu:1", "mps:25"


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with books, where GPUs are billed and gpusage was installed a moment ago."""
    plan = ClusterPlan(nodes=parse_nodes("1xv100:2"), accounting=True, settings=(BILLED, PREEMPTS))
    with start_sandbox(plan, release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", GENEROUS)
        yield sandbox


def doctor(sandbox: Sandbox, name: str) -> dict[str, str]:
    """Return what doctor says of one thing."""
    document = json.loads(sandbox.run("gpusage", "slurm", "doctor", "--json", check=False).stdout)
    (check,) = (each for each in document["checks"] if each["check"] == name)
    expected: dict[str, str] = check
    return expected


def submit(sandbox: Sandbox, *options: str, wrap: str = "sleep 1000") -> str:
    """Return a held job."""
    return submit_held(sandbox, "-p", "billed", "-A", ACCOUNT, "--gres=gpu:1", *options, wrap=wrap).job_id


def billing(sandbox: Sandbox, *options: str) -> int:
    """Return what a job was billed, by slurmdbd."""
    job = submit(sandbox, *options, wrap="true")
    release(sandbox, job)
    wait_for_state(sandbox, job, "COMPLETED")

    def books() -> re.Match[str] | None:
        return re.search(r"billing=(\d+)", sandbox.run("sacct", "-nXP", "-j", job, "-o", "alloctres").stdout)

    return int(wait_until(books)[1])


def rows(sandbox: Sandbox, names: list[str]) -> list[tuple[str, str]]:
    """Return state and reason of the jobs."""
    text = sandbox.run("squeue", "-h", f"--jobs={','.join(names)}", "--sort=i", "-o", "%t %r").stdout
    return [(line.split()[0], line.split()[1]) for line in text.splitlines()]


def limit_user(sandbox: Sandbox, limit: str) -> None:
    """Let this user's jobs together have no more than *limit*."""
    sandbox.run(
        "sacctmgr", "-i", "modify", "user", user_name(), "where", f"account={ACCOUNT}", "set", f"GrpTRES={limit}"
    )


def states(sandbox: Sandbox, limit: str, *jobs: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return state and reason of *jobs* under *limit*, once slurmctld has looked at each."""
    names: list[str] = []

    def looked_at() -> list[tuple[str, str]] | None:
        seen = rows(sandbox, names)
        return seen if all(state == "R" or reason.startswith(("Assoc", "QOS")) for state, reason in seen) else None

    try:
        limit_user(sandbox, limit)
        sandbox.wait_for_queue()
        names.extend(submit(sandbox, *options) for options in jobs)
        release(sandbox, *names)
        return wait_until(looked_at, lambda: rows(sandbox, names))
    finally:
        sandbox.run("scancel", f"--user={user_name()}")
        limit_user(sandbox, NO_LIMIT)
        sandbox.wait_for_queue()


@pytest.fixture
def unlike(sandbox: Sandbox) -> Iterator[str]:
    """Return the end of names that the books do not have yet; afterwards neither the QOS nor the user has a limit."""
    end = fresh_name()
    yield end
    sandbox.run("sacctmgr", "-i", "modify", "qos", f"quota{end}", "set", "MaxTRESPU=gres/gpu=-1", check=False)
    limit_user(sandbox, NO_LIMIT)


@pytest.fixture
def conf(sandbox: Sandbox) -> Iterator[Path]:
    """Return slurm.conf, which is afterwards as it was."""
    path = sandbox.layout.slurm_conf
    before = path.read_text()
    yield path
    write_whole(path, before)
    sandbox.reconfigure()


def test_a_share_is_billed_as_its_part_of_a_gpu_and_a_users_limit_holds(sandbox: Sandbox, conf: Path) -> None:
    """As an admin does it, by what doctor says: weigh shares, limit what is billed."""
    check = doctor(sandbox, "accounting")
    assert (check["verdict"], "GRES/mps=1 in partition billed" in check["todo"]) == ("warn", True)
    write_whole(conf, conf.read_text().replace(BILLED, f"{BILLED},GRES/mps=1"))
    sandbox.reconfigure()
    assert doctor(sandbox, "accounting")["verdict"] == "pass"

    # The report counts by what a GPU is billed, a decision by what a share is.
    wait_until(lambda: '"billing_weight": 100.0' in json.dumps(gpusaged_status(sandbox)))
    assert billing(sandbox) == 100
    assert billing(sandbox, LIGHT) == 25  # a quarter of it
    comments = ("sacct", "-nXP", "-S", "now-1hour", "-o", "comment")  # for gpusage simulate
    sandbox.wait_for(lambda: "dlrm.onnx" in sandbox.run(*comments).stdout, "slurmdbd knows the comment")

    whole, share = (), (LIGHT,)
    held = ("PD", "AssocGrpBilling")
    assert states(sandbox, "billing=100", share, share, whole) == [("R", "None"), ("R", "None"), held]
    assert states(sandbox, "billing=100", whole, share) == [("R", "None"), held]


def manage(sandbox: Sandbox, *commands: str) -> None:
    """Run *commands* of sacctmgr, and let gpusaged read the books again, which it else does once a minute."""
    for command in commands:
        sandbox.run("sacctmgr", "-i", *command.split())
    start_gpusaged(sandbox)


def requested(sandbox: Sandbox, *options: str) -> tuple[str, str]:
    """Return what a job requests in the end, and its mark."""
    job = submit_held(sandbox, "-p", "billed", "-A", ACCOUNT, "--gres=gpu:1", LIGHT, *options)
    sandbox.run("scancel", job.job_id)
    return job.tres.removeprefix("gres").lstrip(":/"), job.mark


def test_a_quota_on_gpus_keeps_shares_away_until_billing_has_it_too(sandbox: Sandbox, conf: Path, unlike: str) -> None:
    """Before, six shares and two GPUs of one user ran at once under MaxTRESPerUser=gres/gpu=2."""
    quota = f"quota{unlike}"
    user = f"modify user {user_name()} where account={ACCOUNT} set qos+={quota}"
    manage(sandbox, f"add qos {quota} set MaxTRESPU=gres/gpu=1", user)
    tres, mark = requested(sandbox, f"--qos={quota}")
    assert tres == WHOLE
    assert f"quality of service {quota} has a limit that does not count shares (MaxTRESPU=gres/gpu=1)" in mark
    assert requested(sandbox)[0] == SHARE  # of another QOS

    # As doctor says.
    check = doctor(sandbox, "limits")
    assert check["verdict"] == "fail"
    weights = next(each for each in check["todo"].split("; ") if "in partition gpu" in each)
    assert weights == "TRESBillingWeights=GRES/gpu=100,GRES/mps=1 in partition gpu"
    both = f"PartitionName=gpu {weights.split()[0]},CPU=0 "
    text = conf.read_text().replace(BILLED, f"{BILLED},GRES/mps=1").replace("PartitionName=gpu ", both)
    write_whole(conf, text)
    sandbox.reconfigure()
    (command,) = doctor(sandbox, "limits")["todo"].split("; ")
    manage(sandbox, command.removeprefix("sacctmgr "))
    assert doctor(sandbox, "limits")["verdict"] == "pass"

    share, whole = (LIGHT, f"--qos={quota}"), (f"--qos={quota}",)
    held = ("PD", "QOSMaxBillingPerUser")
    assert states(sandbox, NO_LIMIT, share, share, whole) == [("R", "None"), ("R", "None"), held]
    assert states(sandbox, NO_LIMIT, whole, share) == [("R", "None"), held]


def test_a_spent_budget_of_an_account_or_one_above_it_keeps_shares_away(sandbox: Sandbox, unlike: str) -> None:
    spent, below = f"spent{unlike}", f"below{unlike}"
    manage(
        sandbox,
        f"add account {spent} set GrpTRESMins=gres/gpu=0",
        f"add account {below} parent={spent}",
        f"add user {user_name()} account={below}",
    )
    tres, mark = requested(sandbox, "-A", below)
    assert tres == WHOLE
    assert f"account {spent} has a limit that does not count shares (GrpTRESMins=gres/gpu=0)" in mark
    assert requested(sandbox)[0] == SHARE

    own = f"modify user {user_name()} where account={ACCOUNT} set"
    manage(sandbox, f"{own} GrpTRES=gres/gpu=1")
    tres, mark = requested(sandbox)
    assert (tres, f"user {user_name()} in account {ACCOUNT} has a limit" in mark) == (WHOLE, True)
    manage(sandbox, f"{own} GrpTRES=gres/gpu=-1")
    assert requested(sandbox)[0] == SHARE


def test_jobs_that_others_may_preempt_keep_whole_gpus(sandbox: Sandbox, unlike: str) -> None:
    """Before, one job preempted three shares one after another, and waited 24 s for them."""
    low, high = f"spare{unlike}", f"urgent{unlike}"
    everybody = f"modify user {user_name()} where account={ACCOUNT} set qos+={low},{high}"
    manage(sandbox, f"add qos {low}", f"add qos {high} set Preempt={low} Priority=1000", everybody)
    tres, mark = requested(sandbox, f"--qos={low}")
    assert tres == WHOLE
    assert f"jobs of quality of service {high} preempt those of quality of service {low}" in mark
    assert requested(sandbox, f"--qos={high}")[0] == SHARE

    spare = [submit(sandbox, LIGHT, f"--qos={low}") for _ in range(2)]
    release(sandbox, *spare)
    for job in spare:
        wait_for_state(sandbox, job, "RUNNING")
    urgent = submit(sandbox, f"--qos={high}")
    release(sandbox, urgent)
    wait_for_state(sandbox, urgent, "RUNNING")
    assert sorted(int(show_job(sandbox, job)["Restarts"]) for job in spare) == [0, 1]
    sandbox.run("scancel", urgent, *spare)
    sandbox.wait_for_queue()


@pytest.mark.one_release
def test_partitions_whose_jobs_a_higher_one_preempts_keep_whole_gpus(new_cluster: Callable[..., Sandbox]) -> None:
    low, high = (f"PartitionName={name} Nodes=ALL PriorityTier={tier}" for name, tier in (("low", 2), ("high", 9)))
    settings = ("PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE", f"{low} PreemptMode=OFF", high)
    sandbox = new_cluster(ClusterPlan(nodes=parse_nodes("1xv100:2"), settings=settings))
    install_plugin(sandbox, "enforce", GENEROUS)
    for partition, is_shared in (("gpu", False), ("low", True), ("high", True)):
        job = submit_held(sandbox, "--gres=gpu:1", LIGHT, "-p", partition)
        assert ("mps" in job.tres) == is_shared
        assert ("jobs in partition high preempt those in partition gpu" in job.mark) != is_shared


@pytest.mark.one_release
def test_a_report_counts_a_job_that_no_node_sampled_and_that_gpusage_never_saw(sandbox: Sandbox) -> None:
    """It was submitted without gpusage's mark, and its node has no NVML."""
    job = submit(sandbox, "--comment=nothing", wrap="sleep 2")
    release(sandbox, job)
    wait_for_state(sandbox, job, "COMPLETED")

    def in_partition() -> dict[str, Any]:
        document = json.loads(sandbox.run("gpusage", "report", "--since", "1h", "--json").stdout)
        assert document["unaccounted"] == []
        groups = document["groups"]["partition"]
        return next((dict(each) for each in groups if each["name"] == "billed"), {"job_count": 0})

    # slurmdbd knows of a job before it knows for how long it ran.
    wait_until(lambda: in_partition().get("hours", {}).get("booked", 0) > 0)
    before = in_partition()
    assert before["hours"]["unseen"] == pytest.approx(before["hours"]["booked"])
    assert before["hours"]["booked"] > 0
    shown = sandbox.run("gpusage", "report", "--since", "1h", "--by", "account").stdout
    assert re.search(rf"^{ACCOUNT} ", shown, re.MULTILINE)


REST = {
    (22, 5): ("v0.0.38", "openapi/v0.0.38", {"gres": "gpu:1", "environment": {"PATH": "/bin"}}),
    (24, 11): ("v0.0.42", "openapi/slurmctld", {"tres_per_node": "gres/gpu:1", "environment": ["PATH=/bin"]}),
}
"""Of each release: the version of the interface, what slurmrestd loads, and how a job asks for a GPU there."""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def listens(path: Path) -> bool:
    """Return whether anybody listens at *path*, which is there a moment before."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


def test_a_job_of_slurmrestd_keeps_its_request(sandbox: Sandbox) -> None:
    """Nothing of ours runs in its client, and it brings no card."""
    if sandbox.installation.major_minor not in REST:
        pytest.skip("26.05's slurmrestd never starts as SlurmUser, and in a sandbox everybody is SlurmUser")
    version, plugin, request = REST[sandbox.installation.major_minor]
    path = sandbox.layout.run / "rest.socket"
    start = 'setsid slurmrestd -a rest_auth/local -s "$@" >rest.log 2>&1 &'
    # In a sandbox everybody is SlurmUser, as whom slurmrestd would not start.
    security = {"SLURMRESTD_SECURITY": "disable_user_check,disable_unshare_files,disable_unshare_sysv"}
    sandbox.run("sh", "-c", start, "sh", plugin, f"unix:{path}", environment=security)
    sandbox.wait_for(lambda: path.exists() and listens(path), "slurmrestd answers")
    comment = LIGHT.removeprefix("--comment=")
    job = {"name": "rest", "partition": "billed", "account": ACCOUNT, "hold": True, "comment": comment, **request}
    folder = str(sandbox.layout.jobs)
    body = {"script": "#!/bin/sh\ntrue", "job": {"current_working_directory": folder, **job}}

    def marked() -> str | None:
        with closing(UnixConnection(path)) as connection:
            connection.request(
                "POST", f"/slurm/{version}/job/submit", json.dumps(body), {"Content-Type": "application/json"}
            )
            answer = json.loads(connection.getresponse().read())
        # Where gpusaged is late, a job without a card has no mark.
        return str(answer["job_id"]) if show_job(sandbox, str(answer["job_id"])).get("AdminComment") else None

    name = wait_until(marked)
    assert "no description of the model came with the job" in show_job(sandbox, name)["AdminComment"]
    assert "gpu" in sandbox.run("squeue", "-h", f"--jobs={name}", "-o", "%b").stdout
    sandbox.run("scancel", name)


@pytest.mark.one_release
def test_the_last_month_is_simulated_as_the_books_have_it(sandbox: Sandbox) -> None:
    """On the cluster as slurmctld describes it; who asks is root here, and sees all jobs."""
    job = submit(sandbox, wrap="sleep 2")
    release(sandbox, job)
    wait_for_state(sandbox, job, "COMPLETED")
    books = ("sacct", "-nXP", "-j", job, "-o", "state,alloctres")
    sandbox.wait_for(lambda: re.match("COMPLETED.*gres/gpu", sandbox.run(*books).stdout), "slurmdbd knows the end")
    result = sandbox.run("gpusage", "simulate", "--last-month", "--policy", "slots", "--repetitions", "2", "--json")
    document = json.loads(result.stdout)
    assert document["policies"][0]["gpu_hours"] > 0
    assert re.match(r"Slurm's accounting has \d+ jobs on GPUs in the last 30 days", document["notes"][0])


@pytest.mark.one_release
def test_what_sacct_prints_shows_the_hours_and_every_row_that_is_no_job(sandbox: Sandbox, tmp_path: Path) -> None:
    """By the command of docs/admin.md: an array, a heterogeneous job, jobs that wait, run, or have no GPU."""
    name = fresh_name()
    ours, on_gpu = ("-A", ACCOUNT, f"--job-name={name}"), ("-p", "billed", "--gres=gpu:1")
    plain = sandbox.run("sbatch", "--parsable", *ours, "--wrap=sleep 1").stdout.strip()
    command = ("sbatch", "--parsable", *ours, *on_gpu)  # once each: also what was cancelled is in the books
    array = sandbox.run(*command, "--array=1-2", "--wrap=srun true; sleep 2").stdout.strip()
    for job in (plain, f"{array}_1", f"{array}_2"):
        wait_for_state(sandbox, job, "COMPLETED")
    running = sandbox.run(*command, "--wrap=sleep 1000").stdout.strip()
    wait_for_state(sandbox, running, "RUNNING")
    # Its parts are on two nodes, so it waits.
    heterogeneous = (*ours, "--gres=gpu:1", ":", f"--job-name={name}", "-n1", "--wrap=true")
    both = sandbox.run("sbatch", "--parsable", *heterogeneous).stdout.strip()
    file = tmp_path / "sacct.txt"
    conf = str(sandbox.layout.slurm_conf)

    def report() -> dict[str, Any]:
        file.write_text(sandbox.run("sh", "-c", f"{COMMAND} --name={name} --starttime=now-1hour").stdout)
        arguments = ("gpusage", "report", "--from", str(file), "--cluster", conf, "--json")
        document: dict[str, Any] = json.loads(sandbox.run(*arguments).stdout)
        return document

    # slurmdbd knows of a job before it knows for how long it ran.
    left_out = {"has not started": 2, "has not ended": 1, "had no GPU": 1}
    document = wait_until(lambda: seen if (seen := report())["left_out"] == left_out else None, report)
    sandbox.run("scancel", running, both)
    assert document["run_count"] == 2
    (group,) = document["groups"]["gpu"]
    assert (group["name"], group["job_count"]) == ("v100-sxm2-16gb", 2)
    assert 2 * 2 <= 3600 * group["hours"]["booked"] < 2 * 60
    assert abs(document["until_s"] - time.time()) < 600  # whatever this host's time zone
    assert any("Slurm's accounting has them with AccountingStorageTRES=gres/gpu" in note for note in document["notes"])


def test_without_books_no_month_can_be_simulated(cluster: Sandbox) -> None:
    result = cluster.run("gpusage", "simulate", "--last-month", check=False)
    assert "Slurm must keep its accounting in slurmdbd" in result.stderr
    assert result.returncode == 1
