"""The sandbox is a real YARN of its own, and leaves nothing behind."""

from __future__ import annotations

import codecs
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import yarn_applications as apps
from gpusage_hooks.errors import RequestError
from gpusage_sandboxes import processes
from gpusage_sandboxes.host import cache_folder
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, open_sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.hadoop import prepare_jdk
from gpusage_sandboxes.yarn.layout import RESOURCE_MANAGER

pytestmark = pytest.mark.yarn

ONE_NODE = ClusterPlan(nodes=parse_nodes("1xv100:2"))
NOBODY = 65534
NewCluster = Callable[..., Sandbox]


def facts(node: dict[str, Any]) -> tuple[str, list[str], dict[str, int]]:
    """Return state, labels and resources of a node as the ResourceManager lists them."""
    resources = node["totalResource"]["resourceInformations"]["resourceInformation"]
    offered = {entry["name"]: entry["value"] for entry in resources if "/" in entry["name"] and entry["value"]}
    return node["state"], node.get("nodeLabels", []), offered


def nodes(sandbox: Sandbox) -> dict[str, tuple[str, list[str], dict[str, int]]]:
    """Return the facts of each node by our name."""
    listed = {node["id"]: facts(node) for node in sandbox.get("nodes")["nodes"]["node"]}
    return {name: listed[sandbox.node_id(name)] for name in sandbox.nodes()}


def running(folder: Path) -> list[str]:
    """Return the living processes that know *folder* by command line, environment or working directory."""
    mark = os.fsencode(folder)
    known = {path.name: knowledge(path) for path in Path("/proc").glob("[0-9]*")}
    return [f"{pid} {printed[0]!r}" for pid, printed in known.items() if any(mark in fact for fact in printed)]


def knowledge(process: Path) -> tuple[bytes, ...]:
    """Return command line, environment and working directory of a process, nothing where it has just ended."""
    try:
        cwd = os.fsencode((process / "cwd").readlink())
        return (process / "cmdline").read_bytes(), (process / "environ").read_bytes(), cwd
    except OSError:
        return ()


def start_sleep(sandbox: Sandbox, label: str = "v100") -> tuple[str, int]:
    """Run an application that sleeps, and return its id and the id of its process."""
    identity = apps.submit(sandbox, "exec sleep 1000", **{"app-node-label-expression": label})

    def pids() -> list[int]:
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_sleep_of(path, identity)]

    apps.wait_until(sandbox, pids, f"{identity} runs")
    return identity, pids()[0]


def sleeps(sandbox: Sandbox) -> list[str]:
    """Return the sleeping processes that know the sandbox."""
    return [line for line in running(sandbox.layout.folder) if "b'sleep" in line]


def _is_sleep_of(process: Path, identity: str) -> bool:
    printed = knowledge(process)
    return bool(printed) and printed[0].startswith(b"sleep\0") and identity.encode() in printed[2]


def test_every_node_label_and_share_of_the_plan_is_there(cluster: Sandbox) -> None:
    assert nodes(cluster) == {
        "v100-1": ("RUNNING", ["v100"], {"gpusage.io/share": 200}),
        "a100-1": ("RUNNING", ["a100"], {"gpusage.io/share": 200}),
        "h100-1": ("RUNNING", ["h100"], {"gpusage.io/share": 200}),
    }


def test_containers_get_shares_and_the_third_waits_for_room(cluster: Sandbox) -> None:
    options = ["-num_containers", "3", "-master_memory", "128", "-node_label_expression", "h100"]
    options += ["-container_resources", "memory-mb=64,vcores=1,gpusage.io/share=100"]
    seen = apps.run_distributed_shell(cluster, "date +%s; sleep 2; echo $NM_PORT", *options)
    port = cluster.node_id("h100-1").partition(":")[2]
    assert [text.split()[1] for text in seen] == [port] * 3
    began = sorted(int(text.split()[0]) for text in seen)
    assert began[2] - began[0] >= 2


def test_an_application_without_a_label_runs(cluster: Sandbox) -> None:
    assert apps.run_distributed_shell(cluster, "echo run", "-master_memory", "128") == ["run\n"]


def test_an_application_outlives_its_resource_manager(cluster: Sandbox) -> None:
    identity, pid = start_sleep(cluster)
    cluster.kill_rm()
    cluster.start_rm()
    assert apps.wait_for_state(cluster, identity, "ACCEPTED", "RUNNING")["user"] == "alice"
    assert processes.is_alive(pid)
    assert [labels for _, labels, _ in nodes(cluster).values()] == [["v100"], ["a100"], ["h100"]]
    apps.kill(cluster, identity)
    assert not processes.wait_for_end([pid], apps.PATIENCE_S)


def test_a_container_outlives_its_node_manager(cluster: Sandbox) -> None:
    identity, pid = start_sleep(cluster, "a100")
    cluster.kill_nm("a100-1")
    assert processes.is_alive(pid)
    cluster.start_nm("a100-1")
    assert processes.is_alive(pid)
    apps.kill(cluster, identity)
    assert not processes.wait_for_end([pid], apps.PATIENCE_S)


def test_two_sandboxes_run_side_by_side(new_cluster: NewCluster) -> None:
    first, second = new_cluster(ONE_NODE), new_cluster(ONE_NODE)
    start_sleep(first)
    identity, pid = start_sleep(second)
    first.down()
    assert running(first.layout.folder) == []
    assert processes.is_alive(pid)
    assert [app["id"] for app in apps.applications(second)] == [identity]


@pytest.fixture(scope="module")
def varied(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:  # asked for to skip
    """Return a cluster with a GPU-less node, whole GPUs beside shares, and queues, settings and a jar of the site."""
    jar = tmp_path_factory.mktemp("site") / "site.jar"
    jar.write_bytes(b"PK\x05\x06" + bytes(18))  # an archive of nothing
    plan = ClusterPlan(
        nodes=parse_nodes("1xv100:1,1xcpu:0"),
        whole_gpus=1,
        queues=("default", "research", "teaching"),
        jar=jar,
        site_settings={"yarn.cluster.max-application-priority": "7"},
        scheduler_settings={"yarn.scheduler.capacity.maximum-applications": "321"},
    )
    with start_sandbox(plan) as sandbox:
        yield sandbox


def test_nodes_without_gpus_have_no_label_and_take_what_asks_for_none(varied: Sandbox) -> None:
    assert nodes(varied) == {
        "v100-1": ("RUNNING", ["v100"], {"gpusage.io/share": 100, "yarn.io/gpu": 1}),
        "cpu-1": ("RUNNING", [], {}),
    }
    _, pid = start_sleep(varied, label="")
    assert Path(f"/proc/{pid}/cwd").readlink().is_relative_to(varied.layout.state / "cpu-1")


def test_a_site_s_settings_and_jars_are_where_the_daemons_look(varied: Sandbox) -> None:
    text = varied.run("curl", "-s", f"{varied.rm_url}/conf").stdout
    assert "<name>yarn.cluster.max-application-priority</name><value>7</value>" in text
    queues = varied.get("scheduler")["scheduler"]["schedulerInfo"]["queues"]["queue"]
    assert sorted(queue["queueName"] for queue in queues) == ["default", "research", "teaching"]
    assert varied.layout.lib.joinpath("site.jar").is_file()
    assert f"{varied.layout.lib}/*" in varied.run("yarn", "classpath").stdout


def test_a_cluster_that_does_not_come_up_says_why_and_leaves_nothing(java: None, folder: Path) -> None:
    settings = {"yarn.nodemanager.container-state-transition-listener.classes": "org.example.Missing"}
    plan = ClusterPlan(nodes=ONE_NODE.nodes, site_settings=settings)
    with pytest.raises(RequestError, match=r"v100-1 ended: .*org\.example\.Missing"):
        start_sandbox(plan, folder=folder / "s")
    assert running(folder) == []
    assert list(folder.iterdir()) == []


def test_down_leaves_no_process_and_no_file(new_cluster: NewCluster) -> None:
    sandbox = new_cluster(ONE_NODE)
    before = {path.name for path in Path(tempfile.gettempdir()).iterdir()}
    label = {"app-node-label-expression": "v100"}
    apps.submit(sandbox, "trap '' TERM; sleep 1000; sleep 1000", **label)
    apps.submit(sandbox, "setsid -f env -i sleep 1000; exec sleep 1000", **label)
    apps.wait_until(sandbox, lambda: len(sleeps(sandbox)) >= 3, "all sleep")
    open_sandbox(sandbox.layout.folder).down()
    sandbox.down()  # lets the guard of this owner go
    assert running(sandbox.layout.folder) == []
    assert not sandbox.layout.folder.exists()
    left = {path.name for path in Path(tempfile.gettempdir()).iterdir()} - before
    assert [name for name in left if name.startswith(("hadoop", "jetty", "libleveldb"))] == []


def test_down_takes_a_stopped_cluster_down_too(new_cluster: NewCluster) -> None:
    sandbox = new_cluster(ONE_NODE)
    start_sleep(sandbox)
    for daemon in (RESOURCE_MANAGER, "v100-1"):
        pid = sandbox.pid(daemon)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    sandbox.down()
    assert running(sandbox.layout.folder) == []
    assert not sandbox.layout.folder.exists()


def test_a_killed_owner_s_sandbox_is_taken_down(java: None, folder: Path) -> None:
    program = (
        "import sys, pathlib; from gpusage_sandboxes.yarn import *\n"
        "plan = ClusterPlan(nodes=parse_nodes('1xv100:2'))\n"
        "with start_sandbox(plan, folder=pathlib.Path(sys.argv[1])):\n"
        "    print('up', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(folder / "s")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        owner.kill()
    deadline_s = time.monotonic() + apps.PATIENCE_S
    while running(folder / "s") or (folder / "s").exists():
        assert time.monotonic() < deadline_s, "it is still there"
        time.sleep(0.05)


def test_an_ordinary_user_can_do_all_of_it(cluster: Sandbox, folder: Path) -> None:
    assert cluster.hadoop.folder.is_dir()  # fetched already: what is tried here is to run it
    reached = subprocess.run(
        ["setpriv", f"--reuid={NOBODY}", "--clear-groups", "ls", cluster.hadoop.folder], check=False
    )
    if os.geteuid() == 0 and reached.returncode != 0:
        pytest.skip("an ordinary user cannot read the cache of this checkout")
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    codecs.lookup("ascii")  # the interpreter's own modules may be out of that user's reach
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=live_there, args=(folder, sender))
    child.start()
    sender.close()
    child.join()
    assert child.exitcode == 0
    uid, seen = receiver.recv()
    assert uid == (os.geteuid() or NOBODY)
    assert seen == ["shared\n", "shared\n"]
    assert running(folder) == []
    assert not (folder / "sandbox").exists()


def live_there(home: Path, answer: Connection) -> None:
    """Be the ordinary user whose *home* it is: start, run two shares, stop."""
    os.environ.update(GPUSAGE_CACHE=str(cache_folder().absolute()), HOME=str(home))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    with start_sandbox(ONE_NODE, folder=home / "sandbox") as sandbox:
        options = ["-num_containers", "2", "-container_resources", "memory-mb=64,vcores=1,gpusage.io/share=50"]
        answer.send((os.geteuid(), apps.run_distributed_shell(sandbox, "echo shared", *options)))


def test_a_host_without_java_gets_one_from_its_own_mirror() -> None:
    java = prepare_jdk()
    environment = {"JAVA_HOME": str(java.home), "PATH": "/usr/bin:/bin"}
    for command in ([java.maven, "-version"], [java.home / "bin" / "javac", "-version"]):
        printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        assert re.search(r"Apache Maven 3|javac \d\d", printed)
    listed = [java.home / "bin" / "keytool", "-list", "-cacerts", "-storepass", "changeit"]
    printed = subprocess.run(listed, env=environment, check=True, capture_output=True, text=True).stdout
    assert printed.count("trustedCertEntry") > 10


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder whose path is short enough for sockets, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="gpusage-test-"))
    yield path
    shutil.rmtree(path)
