"""Our jar in trouble: a fault inside each entry point, a switch turned off, and a gpusaged that is dead or mad."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import yarn_applications as apps
import yarn_masters as masters
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.settings import SCHEDULER_SETTINGS, SITE_SETTINGS

pytestmark = pytest.mark.yarn

OURS = masters.PACKAGE
LISTENERS = "yarn.nodemanager.container-state-transition-listener.classes"
FAULTS = f"{OURS}.Faults$"
ANSWER = {"v": "1", "code": "REWRITE", "message": "gpu -> share 40", "set.share": "40", "set.labels": "h100,v100"}
CARD = {"GPUSAGE_CARD": "QUJD", "GPUSAGE_COMMENT": "batch=64"}
MOST_S = 60
"""What two REST calls may take on two busy cores; without its limit of a second the rule would wait for good."""


@pytest.fixture(scope="module")
def faults_jar(jar: Path) -> Path:
    """Return the jar of classes with a fault in each entry point, which Maven builds beside ours."""
    return next((jar.parent / "faults").glob("*.jar"))


def names(*classes: str) -> str:
    """Return a list of faulty classes as Hadoop reads it."""
    return ",".join(FAULTS + name for name in classes)


def test_a_fault_inside_each_entry_point_leaves_plain_yarn(jar: Path, faults_jar: Path) -> None:
    aux = "yarn.nodemanager.aux-services"
    processors = names("ProcessorStart", "ProcessorRegister", "ProcessorAllocate", "ProcessorFinish")
    site = {
        "yarn.scheduler.queue-placement-rules": names("RuleStart", "RulePlace") + ",user-group",
        "yarn.resourcemanager.application-master-service.processors": processors,
        "yarn.scheduler.app-placement-allocator.class": f"{FAULTS}Allocator",
        LISTENERS: names("ListenerPost"),
        aux: "gpusage_mps",
        f"{aux}.gpusage_mps.class": f"{FAULTS}Mps",
        "gpusage.am.heartbeat-ms": "200",
    }
    plan = ClusterPlan(
        nodes=parse_nodes("1xv100:1,1xcpu:0"),
        jar=jar,
        further_jars=(faults_jar,),
        site_settings=site,
        scheduler_settings={"yarn.scheduler.capacity.resource-calculator": f"{FAULTS}Calculator"},
    )
    with start_sandbox(plan) as sandbox:
        plain = apps.submit(sandbox, "exit 3")
        planned = masters.submit(
            sandbox, plan=masters.plan(share="33", labels="v100"), **{"app-node-label-expression": "v100"}
        )
        reports = masters.wait_for_end(sandbox, plain, planned)
        assert [report["finalStatus"] for report in reports] == ["FAILED", "SUCCEEDED"]
        (output,) = masters.outputs(sandbox, planned).values()
        assert masters.variable(output, "CUDA_VISIBLE_DEVICES") == "0"  # the listener that fails only afterwards
        assert masters.metrics(sandbox.rm_url)["FAILURES"] > 10
        assert masters.node_metrics(sandbox, "v100-1")["FAILURES"] > 4
        sandbox.kill_rm()
        sandbox.start_rm()
        for broken in ("ListenerPre", "ListenerInit"):
            refuses_shares_and_runs_the_rest(sandbox, broken)


def refuses_shares_and_runs_the_rest(sandbox: Sandbox, broken: str) -> None:
    """Give the node with a GPU another listener: what cannot be bound is not run, and says why."""
    settings = sandbox.layout.conf("client") / "yarn-site.xml"  # in it what every daemon has, and it wins
    settings.write_text(re.sub(r"Faults\$Listener\w+", f"Faults${broken}", settings.read_text()))
    sandbox.kill_nm("v100-1")
    sandbox.start_nm("v100-1")
    fields = {"app-node-label-expression": "v100"}
    unbound = masters.submit(sandbox, plan=masters.plan(), **fields)
    plain = apps.submit(sandbox, "exit 3", **fields)
    (report,) = masters.wait_for_end(sandbox, plain)
    assert "exitCode: 3" in report["diagnostics"]
    logs = sandbox.layout.container_logs("v100-1") / unbound
    reason = "gpusage: no GPU of this node is given out"
    apps.wait_until(
        sandbox,
        lambda: any(reason in path.read_text() for path in logs.glob("*/prelaunch.err")),
        f"{unbound} is refused with {broken}",
    )
    assert not any(masters.outputs(sandbox, unbound).values())  # nothing of the command ran
    apps.kill(sandbox, unbound)
    bean = masters.bean(masters.node_url(sandbox, "v100-1"))
    assert ("listener: could not start" in bean["Troubles"]) == (broken == "ListenerInit")
    assert bean["Failures"] > 0


@pytest.fixture(scope="module")
def started(jar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Return a cluster whose placement rule asks the daemon at `daemon_socket`, and which soon misses a dead node."""
    folder = tmp_path_factory.mktemp("trouble")
    plan = ClusterPlan(
        nodes=parse_nodes("2xv100:1,1xh100:1,1xcpu:0"),
        jar=jar,
        site_settings={
            "yarn.scheduler.queue-placement-rules": f"{OURS}.GpuSharePlacementRule,user-group",
            "yarn.resourcemanager.application-master-service.processors": f"{OURS}.GpuShareProcessor",
            "yarn.nodemanager.container-state-transition-listener.classes": f"{OURS}.GpuShareNodeListener",
            "gpusage.switch-file": str(folder / "off"),
            "gpusage.daemon.socket": str(folder / "s"),
            "gpusage.daemon.limit-ms": "1000",
            "gpusage.daemon.rest-ms": "0",  # else a test's dead daemon keeps the next test's from being asked
            "gpusage.am.heartbeat-ms": "200",
            "gpusage.share.for-whole-gpus": "true",
            "gpusage.share.default-label": "h100",
            "yarn.nm.liveness-monitor.expiry-interval-ms": "10000",  # no node that lives is silent for so long
        },
        scheduler_settings={"yarn.scheduler.capacity.resource-calculator": f"{OURS}.GpuShareResourceCalculator"},
    )
    with start_sandbox(plan) as sandbox:
        yield sandbox


@pytest.fixture
def plugged(started: Sandbox) -> Iterator[Sandbox]:
    """Return that cluster; no application is left to the next test, nor to the second try of one that failed."""
    yield started
    masters.kill_all(started)


@pytest.fixture
def daemon_socket(plugged: Sandbox) -> Path:
    """Return where that cluster's rule looks for gpusaged."""
    text = (plugged.layout.etc / "rm" / "yarn-site.xml").read_text()
    return Path(text.partition("<name>gpusage.daemon.socket</name><value>")[2].partition("<")[0])


@contextmanager
def daemon(path: Path, answer: Callable[[bytes], bytes | None]) -> Iterator[list[bytes]]:
    """Answer each line at the socket *path* with what *answer* makes of it, ``None`` for silence; yield the lines."""
    heard: list[bytes] = []
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=serve, args=(server, answer, heard), daemon=True)
        thread.start()
        try:
            yield heard
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            path.unlink()


def serve(server: socket.socket, answer: Callable[[bytes], bytes | None], heard: list[bytes]) -> None:
    """Answer one client after the other until the server's socket is shut."""
    with suppress(OSError):
        while True:
            client, _ = server.accept()
            with client, suppress(OSError), client.makefile("rb") as lines:
                heard.append(lines.readline())
                printed = answer(heard[-1])
                if printed is None:
                    lines.readline()
                else:
                    client.sendall(printed)


def line(**changes: str) -> bytes:
    """Return a good answer, or a changed one."""
    return json.dumps({**ANSWER, **changes}).encode() + b"\n"


def test_a_card_alone_gets_share_and_label_from_the_daemon(plugged: Sandbox, daemon_socket: Path) -> None:
    answer = {"env.GPUSAGE_DECISION": "share:40", "env.PATH": "/evil", "env.GPUSAGE_X": "$(id)"}
    with daemon(daemon_socket, lambda _: line(**answer)) as heard:
        app = masters.submit(plugged, environment=CARD)
    (report,) = masters.wait_for_end(plugged, app)
    assert (report["finalStatus"], masters.places(plugged, app)) == ("SUCCEEDED", {"h100-1"})
    (output,) = masters.outputs(plugged, app).values()
    assert masters.variable(output, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == "40"
    (requested,) = [json.loads(each) for each in heard]
    assert requested["v"] == 1
    assert requested["manager"] == "yarn"
    fields = {"user": "alice", "queue": "default", "card": "QUJD", "comment": "batch=64", "id": app}
    assert fields.items() <= requested["fields"].items()


def test_distributed_shell_with_a_card_gets_its_share(plugged: Sandbox, daemon_socket: Path) -> None:
    with daemon(daemon_socket, lambda _: line()):
        printed = apps.run_distributed_shell(
            plugged,
            "env",
            *("-num_containers", "2", "-master_memory", "256", "-shell_env", "GPUSAGE_CARD=QUJD"),
            *("-container_resources", "memory-mb=64,vcores=1,yarn.io/gpu=1"),
        )
    percentages = [masters.variable(text, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") for text in printed]
    assert sorted(filter(None, percentages)) == ["40", "40"]


def test_a_whole_gpu_that_is_kept_is_all_of_one_where_nodes_offer_shares_only(
    plugged: Sandbox, daemon_socket: Path
) -> None:
    with daemon(daemon_socket, TROUBLE["keep"]) as heard:
        printed = apps.run_distributed_shell(
            plugged,
            "env",
            *("-num_containers", "1", "-master_memory", "256", "-shell_env", "GPUSAGE_CARD=QUJD"),
            *("-container_resources", "memory-mb=64,vcores=1,yarn.io/gpu=1"),
        )
    assert len(heard) == 1  # that was an answer
    assert [masters.variable(text, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") for text in printed if "CUDA" in text] == [
        "100"
    ]


TROUBLE: dict[str, Callable[[bytes], bytes | None]] = {
    "garbage": lambda _: b"\xff\x00 no JSON\n",
    "cut off": lambda _: b'{"v":"1","code":"REWRITE"',
    "endless": lambda _: b"x" * 300_000,
    "hung": lambda _: None,
    "nested": lambda _: b'{"v":"1","code":"REWRITE","set.share":{"a":1}}\n',
    "too large a share": lambda _: line(**{"set.share": "1000000000"}),
    "no share": lambda _: line(**{"set.share": "NaN"}),
    "keep": lambda _: b'{"v":"1","code":"KEEP","message":""}\n',
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_a_daemon_in_trouble_costs_a_submission_nothing(plugged: Sandbox, daemon_socket: Path, trouble: str) -> None:
    with daemon(daemon_socket, TROUBLE[trouble]):
        begun_s = time.monotonic()
        app = apps.submit(plugged, "exit 3", environment=CARD)
        took_s = time.monotonic() - begun_s
    assert took_s < MOST_S
    (report,) = masters.wait_for_end(plugged, app)
    assert not report["appNodeLabelExpression"]
    assert "exitCode: 3" in report["diagnostics"]
    assert masters.metrics(plugged.rm_url)["FAILURES"] == 0


def test_without_a_daemon_a_card_changes_nothing(plugged: Sandbox, daemon_socket: Path) -> None:
    daemon_socket.unlink(missing_ok=True)
    before = masters.metrics(plugged.rm_url)["DAEMON_SILENT"]
    app = apps.submit(plugged, "exit 3", environment=CARD)
    masters.wait_for_end(plugged, app)
    assert masters.metrics(plugged.rm_url)["DAEMON_SILENT"] == before + 1


def test_the_switch_file_ends_rewriting_and_never_binding(plugged: Sandbox, daemon_socket: Path) -> None:
    switch = daemon_socket.with_name("off")
    switch.touch()
    try:
        time.sleep(1.1)
        plan = masters.plan(share="36", labels="h100")
        off = masters.submit(plugged, plan=plan, **{"app-node-label-expression": "h100"})
        (report,) = masters.wait_for_end(plugged, off)
    finally:
        switch.unlink()
    time.sleep(1.1)
    on = masters.submit(plugged, plan=plan)
    masters.wait_for_end(plugged, on)
    seen = [
        masters.variable(output, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        for app in (off, on)
        for output in masters.outputs(plugged, app).values()
    ]
    assert report["finalStatus"] == "SUCCEEDED"
    assert seen == ["36", "40"]  # what is asked for is not put on the site's steps, and what is given out is bound


def test_a_container_lost_with_its_node_runs_again(plugged: Sandbox, tmp_path: Path) -> None:
    command = f"until test -e {tmp_path / 'go'}; do sleep 0.1; done; env"
    app = masters.submit(plugged, command, plan=masters.plan(share="60", labels="v100", containers="2"))
    masters.wait_for_running(plugged, app, 2)
    (container,) = masters.bindings(plugged, "v100-1")
    plugged.kill_nm("v100-1")
    try:
        kill_processes(container)
        apps.wait_until(plugged, lambda: "ended with -100" in master_output(plugged, app), "the loss is known")
        (tmp_path / "go").touch()
        (report,) = masters.wait_for_end(plugged, app)
    finally:
        plugged.start_nm("v100-1")
    assert report["finalStatus"] == "SUCCEEDED"
    ended = [output for output in masters.outputs(plugged, app).values() if output]
    assert sorted(masters.variable(output, "GPUSAGE_CONTAINER") for output in ended) == ["0", "1"]


def test_a_container_that_cannot_be_started_is_asked_for_again(plugged: Sandbox) -> None:
    settings = plugged.layout.conf("client") / "yarn-site.xml"  # in it what every master reads when it starts
    usual = settings.read_text()
    # Time enough to kill the node between its heartbeat and the master's.
    settings.write_text(usual.replace("heartbeat-ms</name><value>200<", "heartbeat-ms</name><value>3000<"))
    killed: list[str] = []
    try:
        app = masters.submit(plugged, plan=masters.plan(share="60", labels="v100"))
        nodes = ("v100-1", "v100-2")
        apps.wait_until(plugged, lambda: any(masters.used_share(plugged, node) for node in nodes), "one is allocated")
        killed.append(next(node for node in nodes if masters.used_share(plugged, node)))
        plugged.kill_nm(killed[0])
        (report,) = masters.wait_for_end(plugged, app)
    finally:
        settings.write_text(usual)
        for node in killed:
            plugged.start_nm(node)
    assert report["finalStatus"] == "SUCCEEDED"
    assert "could not be started" in master_output(plugged, app)
    assert len(masters.outputs(plugged, app)) == 1


def master_output(sandbox: Sandbox, app: str) -> str:
    """Return what an application's first master has written, empty before it has begun."""
    return "".join(path.read_text() for path in sandbox.logs.glob(f"containers/*/{app}/*_01_000001/stdout"))


def test_preemption_is_no_failure_however_often_it_happens(jar: Path, tmp_path: Path) -> None:
    """Queue b takes back its GPU six times from an application of queue a, which goes on with the other meanwhile."""
    preemption = "yarn.resourcemanager.monitor.capacity.preemption"
    site = {
        **SITE_SETTINGS,
        "yarn.resourcemanager.scheduler.monitor.enable": "true",
        f"{preemption}.monitoring_interval": "200",
        f"{preemption}.max_wait_before_kill": "200",
        f"{preemption}.total_preemption_per_round": "1.0",
        f"{preemption}.natural_termination_factor": "1.0",
    }
    plan = ClusterPlan(
        nodes=parse_nodes("1xv100:2,1xcpu:0"),
        jar=jar,
        queues=("a", "b"),
        site_settings=site,
        scheduler_settings=SCHEDULER_SETTINGS,
    )
    whole = {"share": "100", "labels": "v100"}
    with start_sandbox(plan) as sandbox:
        command = f"echo began; until test -e {tmp_path / 'go'}; do sleep 0.1; done"
        long = masters.submit(sandbox, command, plan=masters.plan(containers="2", **whole), queue="a")
        for taken in range(6):
            masters.wait_for_output(sandbox, long, 2 + taken)  # both run, and one for each that was taken
            apps.wait_until(sandbox, lambda: masters.used_share(sandbox, "v100-1") == 200, "both GPUs are given out")
            short = masters.submit(sandbox, "true", plan=masters.plan(**whole), queue="b")
            (report,) = masters.wait_for_end(sandbox, short)
            assert report["finalStatus"] == "SUCCEEDED"
        (tmp_path / "go").touch()
        (report,) = masters.wait_for_end(sandbox, long)
        assert (report["finalStatus"], report["preemptedResourceMB"] > 0) == ("SUCCEEDED", True), report["diagnostics"]
        assert len(masters.outputs(sandbox, long)) >= 8  # two, and one for each that was taken


def kill_processes(container: str) -> None:
    """Kill what runs in a container, as the end of its node would, and also what it starts in the meantime."""
    while processes := [path for path in Path("/proc").glob("[0-9]*") if runs_in(path, container)]:
        for path in processes:
            with suppress(ProcessLookupError):
                os.kill(int(path.name), signal.SIGKILL)


def runs_in(process: Path, container: str) -> bool:
    """Tell whether a process of /proc lives and belongs to a container; a dead one has no environment."""
    try:
        return f"CONTAINER_ID={container}".encode() in (process / "environ").read_bytes()
    except OSError:
        return False
