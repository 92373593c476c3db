"""`gpusage yarn submit` on a real YARN, as a user types it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import yarn_applications as apps
import yarn_hdfs
import yarn_masters as masters
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.devices.shares import memory_cap_bytes
from gpusage.service import client
from gpusage.service.reservations import Reservation
from gpusage.store.opening import open_store
from gpusage.store.rows import UsageQuery
from gpusage_hooks.errors import RequestError
from gpusage_hooks.units import MIB
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.settings import SCHEDULER_SETTINGS, SITE_SETTINGS
from gpusage_yarn.cluster.snapshot import read_snapshot
from gpusage_yarn.usage.collection import collect_misses

pytestmark = pytest.mark.yarn

SITE = {
    **SITE_SETTINGS,
    # A master that the killed ResourceManager had noted and not yet started is only missed after this time.
    "yarn.am.liveness-monitor.expiry-interval-ms": "10000",
}
MODELS = Path(__file__).resolve().parents[2] / "examples" / "models"
SMALL = ("--model", f"{MODELS}/dlrm.onnx,batch=8,mode=infer", "--memory-mib", "128")
WHOLE = ("--memory-mib", "128")
GPUS = tuple(map(builtin_catalogue().find, ("v100", "a100", "h100")))


@pytest.fixture(scope="module")
def cluster(jar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Return a cluster with our classes: one V100, two A100, and a node without a GPU."""
    folder = Path(tempfile.mkdtemp(prefix="gpusage-test-"))  # short enough for a socket, unlike pytest's own
    settings = {
        **SITE,
        "gpusage.switch-file": str(tmp_path_factory.mktemp("switch") / "off"),
        "gpusage.daemon.socket": str(folder / "s" / "run" / "gpusaged.sock"),
        "gpusage.daemon.limit-ms": "2000",  # the most; of a machine that runs all of it at once
        "gpusage.daemon.rest-ms": "0",  # a test without gpusaged keeps nothing from the next one
    }
    plan = ClusterPlan(
        nodes=parse_nodes("1xv100:1,1xa100:2,1xcpu:0"),
        jar=jar,
        site_settings=settings,
        scheduler_settings=SCHEDULER_SETTINGS,
    )
    with start_sandbox(plan, folder=folder / "s") as sandbox:
        yield sandbox
    folder.rmdir()


@pytest.fixture(autouse=True)
def no_application(cluster: Sandbox) -> Iterator[None]:
    """Leave no application on the GPUs to the next test, nor to the second try of one that failed."""
    yield
    masters.kill_all(cluster)


def submit(sandbox: Sandbox, *words: str, **keywords: Any) -> subprocess.CompletedProcess[str]:  # run's
    return sandbox.run(
        sys.executable, "-m", "gpusage.cli", "yarn", "submit", *words, timeout_s=apps.PATIENCE_S, **keywords
    )


@contextmanager
def begin(sandbox: Sandbox, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a submission, and wait for nothing; it is ended with the block. Our caller may ignore SIGINT."""
    command = ["env", "--default-signal=INT", sys.executable, "-m", "gpusage.cli", "yarn", "submit", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=sandbox.environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def outputs(sandbox: Sandbox, identity: str) -> list[str]:
    return list(masters.outputs(sandbox, identity.strip()).values())


@pytest.mark.short
def test_a_small_model_gets_a_share_and_sees_no_more(cluster: Sandbox) -> None:
    done = submit(cluster, *SMALL, "--json", "--", "env")
    document = json.loads(done.stdout)
    plan, identity = document["plan"], document["application"]
    assert document["code"] == "REWRITE"
    assert document["before"] == "yarn.io/gpu: 1"
    assert document["after"].startswith(f"gpusage.io/share: {plan['share']} on {plan['labels'][0]}")
    assert document["end"] == {"state": "SUCCEEDED", "exit_status": 0, "diagnostics": "gpusage: exit status 0"}
    (output,) = outputs(cluster, identity)
    assert 0 < plan["share"] < 100
    assert masters.variable(output, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == str(plan["share"])
    assert masters.variable(output, "GPUSAGE_SHARE") == str(plan["share"])
    caps = {f"0={memory_cap_bytes(gpu.memory_bytes, plan['share']) // MIB}M" for gpu in GPUS}
    assert masters.variable(output, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") in caps
    assert masters.variable(output, "XLA_PYTHON_CLIENT_PREALLOCATE") == "false"
    assert f"gpusage: yarn.io/gpu: 1 -> {document['after']} | assumed precision=fp32 | a quarter of a " in done.stderr


@pytest.mark.short
def test_a_training_job_gets_a_share_of_the_only_gpu_type_on_which_one_does(cluster: Sandbox) -> None:
    """Half of an A100 has room for it. Half of a V100 has too little memory, and three quarters are more GPU time."""
    training = f"{MODELS}/resnet50.onnx,batch=112,precision=fp16,utilization=35"
    done = submit(cluster, "--model", training, "--memory-mib", "128", "--json", "--", "env")
    document = json.loads(done.stdout)
    plan = document["plan"]
    assert (plan["share"], plan["labels"]) == (50, ["a100"])
    assert "bound to a100, where that holds" in document["reasons"]
    assert document["end"]["state"] == "SUCCEEDED"
    (output,) = outputs(cluster, document["application"])
    assert masters.variable(output, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == "50"


def test_a_plan_of_a_user_has_the_threads_of_its_share_and_claims_travel(cluster: Sandbox, tmp_path: Path) -> None:
    """More threads come in gpusaged's answer alone; whoever submits next knows of a share that has no container yet."""
    config = tmp_path / "gpusage.toml"
    config.write_text((cluster.layout.etc / "gpusage.toml").read_text() + '[sharing]\ncap = "double"\n')
    training = ("--model", f"{MODELS}/resnet50.onnx,batch=112,precision=fp16,utilization=35", "--memory-mib", "128")
    words = (*training, "--json", "--", "env; sleep 1")
    done = submit(cluster, *words, environment={**cluster.environment, "GPUSAGE_CONFIG": str(config)})
    document = json.loads(done.stdout)
    (output,) = outputs(cluster, document["application"])
    assert (document["plan"]["share"], document["plan"]["threads"]) == (50, 0)
    assert masters.variable(output, "GPUSAGE_SHARE") == "50"
    assert masters.variable(output, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == "50"
    with begin(cluster, *training, "--containers", "4", "--", "sleep 2"):
        claims: list[Reservation] = []
        apps.wait_until(
            cluster, lambda: claims.extend(read_snapshot(cluster.get).reservations) or claims, "they are claimed"
        )
    assert (claims[0].site_types, claims[0].share_percent) == (("a100",), 50)


def test_the_decision_is_in_the_store(cluster: Sandbox) -> None:
    submit(cluster, *SMALL, "--detach", "--", "true")
    with closing(open_store(f"sqlite:///{cluster.layout.state}/decisions.db")) as store:
        (record,) = store.latest(1)
        submit(cluster, *SMALL, "--dry-run", "--", "true")
        assert store.latest(1) == (record,)  # a dry run is no job
    assert (record.manager, record.model) == ("yarn", f"{MODELS}/dlrm.onnx")


TYPED = "echo \"a 'b' $HOME\" '$HOME' | tr a-z A-Z\nprintf '%s\\n' `echo tick` {{ }} \\\\ <<E\nE\n"


def test_a_command_line_arrives_as_it_was_typed(cluster: Sandbox) -> None:
    identity = submit(cluster, *WHOLE, "--env", "HOME=/h", "--", TYPED).stdout
    assert outputs(cluster, identity) == ["A 'B' /H $HOME\ntick\n{{\n}}\n\\\n"]


def test_words_arrive_as_they_were_typed(cluster: Sandbox) -> None:
    words = ["a b", "$HOME", "it's", '"', "`id`", "|", "", "*", "\n", "{{X}}", "<LOG_DIR>", "\\", "ü"]
    identity = submit(cluster, *WHOLE, "--", "printf", "[%s]", *words).stdout
    assert outputs(cluster, identity) == ["".join(f"[{word}]" for word in words)]


def test_variables_and_files_arrive(cluster: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "it's a file").write_text("content\n")
    value = 'it\'s "$x" `y`\n2'
    done = submit(
        cluster,
        *WHOLE,
        "--env",
        f"VALUE={value}",
        "--env",
        f"LONG={'l' * 30_000}",
        "--env",
        "CUDA_VISIBLE_DEVICES=7",
        "--env",
        "HERE",
        "--file",
        str(tmp_path / "it's a file"),
        "--",
        f'cat "it\'s a file"; echo "$VALUE" "$HERE" ${{#LONG}}  # {"x" * 60_000}',
        environment={"HERE": "here"},
    )
    assert outputs(cluster, done.stdout) == [f"content\n{value} here 30000\n"]
    assert "note: --env CUDA_VISIBLE_DEVICES is left out" in done.stderr


def test_files_go_through_hdfs_where_there_is_one(cluster: Sandbox, tmp_path: Path) -> None:
    """The file itself is out of the nodes' sight: it is gone before its application starts."""
    name, content = "it's a file ü", "content\n" * 100_000
    path = tmp_path / name
    with yarn_hdfs.running(cluster, tmp_path) as conf:
        environment = {"HADOOP_CONF_DIR": str(conf), "YARN_CONF_DIR": str(conf), "HADOOP_USER_NAME": "alice"}
        for _ in range(2):  # the second finds it there
            path.write_text(content)
            command = ("--detach", "--file", str(path), "--", 'wc -c <"it\'s a file ü"')
            identity = submit(cluster, *WHOLE, *command, environment=environment).stdout.strip()
            path.unlink()
            masters.wait_for_end(cluster, identity)
            assert outputs(cluster, identity) == [f"{len(content)}\n"]
        done = submit(cluster, *WHOLE, "--dry-run", "--file", str(path), "--", "true", check=False)
        assert "must exist" in done.stderr


def test_a_failure_is_explained_and_its_status_is_ours(cluster: Sandbox) -> None:
    done = submit(cluster, *WHOLE, "--", "echo said; echo complained >&2; exit 7", check=False)
    assert done.returncode == 7
    assert "failed, exit status 7" in done.stderr
    assert "stdout\nsaid\n" in done.stderr
    assert "stderr\ncomplained\n" in done.stderr


STARVE = "echo ran with $GPUSAGE_SHARE; echo 'torch.OutOfMemoryError: CUDA out of memory.' >&2; exit 1"


def test_a_command_that_runs_out_of_its_share_s_memory_runs_once_more_with_a_whole_gpu(cluster: Sandbox) -> None:
    """YARN copies the end of stderr into the container's diagnostics: that is how the master knows."""
    done = submit(cluster, *SMALL, "--", f"[ $GPUSAGE_SHARE = 100 ] && exec env; {STARVE}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"container_\w+ ran out of GPU memory in its share of \d+, .* ran again with a whole", done.stderr)
    out_of_memory_messages, whole = sorted(outputs(cluster, done.stdout), key=len)
    assert re.fullmatch(r"ran with [1-9]\d?\n", out_of_memory_messages)
    assert masters.variable(whole, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == "100"
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in whole
    (miss,) = [each for each in collect_misses(cluster.get) if each.job_id == done.stdout.strip()]
    with closing(open_store(f"sqlite:///{cluster.layout.state}/decisions.db")) as store:
        store.record_usage([miss])
        (observed,) = store.usage(UsageQuery(job_id=done.stdout.strip()))
        assert observed.decision is not None
        assert observed.decision.model == f"{MODELS}/dlrm.onnx"


@pytest.mark.parametrize(("words", "runs"), [((), 2), (("--no-rescue",), 1)])
def test_a_command_that_never_has_memory_enough_is_no_loop(
    cluster: Sandbox, words: tuple[str, ...], runs: int
) -> None:  # fmt: skip
    done = submit(cluster, *SMALL, *words, "--", STARVE, check=False)
    assert done.returncode == 1
    assert len(outputs(cluster, done.stdout)) == runs
    assert "did not run again: it " in done.stderr


def test_a_killed_application_ends_as_one_that_was_ended(cluster: Sandbox) -> None:
    with begin(cluster, *WHOLE, "--", "sleep 600") as process:
        assert process.stdout is not None
        identity = process.stdout.readline().strip()
        apps.wait_for_state(cluster, identity, "RUNNING")
        apps.kill(cluster, identity)
        assert process.wait(apps.PATIENCE_S) == 143


def test_a_master_keeps_no_gpu_s_node_busy_and_status_tells_the_largest_free_part(
    cluster: Sandbox, tmp_path: Path
) -> None:
    """Both A100 are half full: their sum is one GPU, and no container of 80 has room there."""
    hold = f"env; until test -e {tmp_path}/go; do sleep 0.1; done"
    plain = {"share": "60", "labels": "a100", "containers": "2"}
    held = masters.submit(cluster, hold, plan=masters.plan(**plain))
    masters.wait_for_output(cluster, held, 2)
    printed = cluster.run(sys.executable, "-m", "gpusage.cli", "yarn", "status").stdout
    assert "a100 (a100-sxm4-40gb): 0 of 2 GPUs free, room for a share of 40\n" in printed
    document = json.loads(submit(cluster, *WHOLE, "--json", "--", "env").stdout)
    assert document["plan"]["labels"] == ["v100", "a100"]
    cpu = apps.application(cluster, document["application"])["amHostHttpAddress"]
    assert cpu == masters.node_url(cluster, "cpu-1").removeprefix("http://")
    (tmp_path / "go").touch()
    masters.wait_for_end(cluster, held)


def test_detached_is_only_submitted_with_what_yarn_knows_of_an_application(cluster: Sandbox, tmp_path: Path) -> None:
    limits = ("--lifetime", "8s", "--priority", "7", "--tag", "Run 7", "--attempts", "1")
    done = submit(cluster, *WHOLE, *limits, "--detach", "--", f"until test -e {tmp_path}/go; do sleep 0.1; done")
    report = apps.wait_for_state(cluster, done.stdout.strip(), "ACCEPTED", "RUNNING", *apps.ENDED)
    assert (report["name"], report["priority"], "run 7" in report["applicationTags"].split(",")) == ("until", 0, True)
    assert "note: the priority becomes 0, the highest here (yarn.cluster.max-application-priority)" in done.stderr
    (ended,) = masters.wait_for_end(cluster, done.stdout.strip())
    assert (ended["finalStatus"], "lifetime" in ended["diagnostics"]) == ("KILLED", True)


@pytest.mark.short
def test_two_containers_share_one_gpu(cluster: Sandbox, tmp_path: Path) -> None:
    hold = f"env; until test -e {tmp_path}/go; do sleep 0.1; done"
    identity = submit(
        cluster, *SMALL, "--gpu", "v100", "--containers", "2", "--detach", "--", hold
    ).stdout.strip()  # fmt: skip
    masters.wait_for_output(cluster, identity, 2)
    seen = outputs(cluster, identity)
    assert [masters.variable(output, "CUDA_VISIBLE_DEVICES") for output in seen] == ["0", "0"]
    assert {masters.variable(output, "GPUSAGE_CONTAINER") for output in seen} == {"0", "1"}
    (tmp_path / "go").touch()
    (report,) = masters.wait_for_end(cluster, identity)
    assert report["finalStatus"] == "SUCCEEDED"


@pytest.mark.parametrize("moment", [0.0, 0.05])
def test_a_resource_manager_that_is_killed_meanwhile_gets_the_application_once(
    cluster: Sandbox, tmp_path: Path, moment: float
) -> None:
    known = {app["id"] for app in apps.applications(cluster)}
    mark = tmp_path / "ran"
    with begin(cluster, *WHOLE, "--name", mark.parent.name, "--", f"echo $$ >>{mark}") as process:
        assert process.stderr is not None
        assert "gpusage.io/share: 100 on" in process.stderr.readline()  # what comes next is the submission
        time.sleep(moment)
        cluster.kill_rm()
        cluster.start_rm()
        identity, printed = process.communicate(timeout=apps.PATIENCE_S)
    assert process.returncode == 0, printed
    actual = [app for app in apps.applications(cluster) if app["id"] not in known]
    assert [(app["id"], app["finalStatus"]) for app in actual] == [(identity.strip(), "SUCCEEDED")]
    assert len(mark.read_text().splitlines()) == 1


def test_who_stops_waiting_leaves_the_application_alone(cluster: Sandbox, tmp_path: Path) -> None:
    with begin(cluster, *WHOLE, "--", f"until test -e {tmp_path}/go; do sleep 0.1; done") as process:
        assert process.stdout is not None
        identity = process.stdout.readline().strip()
        apps.wait_for_state(cluster, identity, "RUNNING")
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(apps.PATIENCE_S) == 130
        assert process.stderr is not None
        assert f"{identity} goes on" in process.stderr.read()
    (tmp_path / "go").touch()
    (report,) = masters.wait_for_end(cluster, identity)
    assert report["finalStatus"] == "SUCCEEDED"


def test_a_card_alone_makes_the_same_decision_as_the_command(cluster: Sandbox, tmp_path: Path) -> None:
    """Any client can name its model: the ResourceManager asks gpusaged, which knows as much as `submit`."""
    plan = json.loads(submit(cluster, *SMALL, "--gpu", "a100", "--dry-run", "--json", "--", "true").stdout)["plan"]
    comment = f"model={MODELS}/dlrm.onnx,batch=8,mode=infer"
    card = cluster.run(sys.executable, "-m", "gpusage.cli", "job-card", comment).stdout.strip()
    config = tmp_path / "gpusage.toml"
    text = (cluster.layout.etc / "gpusage.toml").read_text()
    config.write_text(f'mode = "enforce"\n{text}\n[slurm]\nlimit_ms = 1000\n')
    with gpusaged(cluster, config, tmp_path / "gpusaged.log") as socket:
        fields = {"user": "alice", "queue": "default", "label": "a100", "card": card, "comment": comment}
        answer: dict[str, str] = {}

        def has_answer() -> bool:
            """Ask, as often as it takes on a busy machine, with the time that the ResourceManager gives."""
            request = {"v": 1, "manager": "yarn", "fields": fields, "until_s": time.time() + 2}
            answer.update(client.ask(socket, request, timeout_s=10))
            return answer["code"] == "REWRITE"

        apps.wait_until(cluster, has_answer, "gpusaged has an answer in time")
        identity = masters.submit(cluster, environment={"GPUSAGE_CARD": card, "GPUSAGE_COMMENT": comment})
        (report,) = masters.wait_for_end(cluster, identity)
    assert answer["set.share"] == str(plan["share"])
    assert answer["set.labels"] == "a100"
    (output,) = outputs(cluster, identity)
    assert re.fullmatch("gpusage-number-[0-9a-f]{12}", report["applicationTags"])
    assert report["appNodeLabelExpression"] == ""  # its master is on the node without a GPU
    assert 0 < int(masters.variable(output, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")) < 100
    assert masters.variable(output, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")


@contextmanager
def gpusaged(cluster: Sandbox, config: Path, log: Path) -> Iterator[Path]:
    """Run gpusaged beside the ResourceManager until the end of the block; yield its socket once it has seen YARN."""
    environment = {**cluster.environment, "GPUSAGE_CONFIG": str(config)}
    socket = cluster.layout.run / "gpusaged.sock"
    command = [sys.executable, "-m", "gpusage.service.daemon"]
    with log.open("w") as printed, subprocess.Popen(command, env=environment, stdout=printed, stderr=printed) as daemon:
        try:
            apps.wait_until(cluster, partial(has_seen_yarn, socket), f"gpusaged has seen the cluster; see {log}")
            yield socket
        finally:
            daemon.terminate()


def has_seen_yarn(socket: Path) -> bool:
    try:
        return "yarn" in client.status(socket).get("clusters", {})
    except RequestError:
        return False


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--gpu", "k80"), "GPU 'k80' must be a node label with shared GPUs; there are a100, v100."),
        (("--queue", "nope"), "Queue 'nope' must be one of the cluster's; there are root.default."),
        (("--env", "1=2"), "Variable must be NAME=VALUE"),
        (("--memory-mib", "999999"), "Container's --memory-mib must be at most 16384 MiB"),
        (("--file", "/none"), "File '/none' must exist"),
        (("--model", "/none.onnx"), "none.onnx"),
    ],
)
def test_what_cannot_work_is_told_in_one_line_before_anything_is_sent(
    cluster: Sandbox, words: tuple[str, ...], sentence: str
) -> None:
    known = len(apps.applications(cluster))
    done = submit(cluster, *words, "--", "true", check=False)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert len(apps.applications(cluster)) == known


def test_a_site_that_only_observes_gets_whole_gpus(cluster: Sandbox, tmp_path: Path) -> None:
    config = tmp_path / "gpusage.toml"
    config.write_text('mode = "advise"\n' + (cluster.layout.etc / "gpusage.toml").read_text())
    done = submit(
        cluster, *SMALL, "--dry-run", "--json", "--", "true", environment={"GPUSAGE_CONFIG": str(config)}
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["plan"]["share"] == 100
    assert "advice only in mode advise: yarn.io/gpu: 1 -> gpusage.io/share" in done.stderr


def test_plain_yarn_is_told_what_it_lacks(new_cluster: Any) -> None:  # NewCluster of conftest
    plain = new_cluster(ClusterPlan(nodes=parse_nodes("1xv100:1"), share_per_gpu=0, whole_gpus=1))
    done = submit(plain, "--", "true", check=False)
    assert (
        "Cluster must have the resource type 'gpusage.io/share'; it has memory-mb, vcores, yarn.io/gpu" in done.stderr
    )
    assert apps.applications(plain) == []
