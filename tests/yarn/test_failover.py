"""Two real ResourceManagers and a real ZooKeeper, which keeps their state and says who is active; one of them dies."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

import yarn_applications as apps
import yarn_masters as masters
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.service import client
from gpusage_hooks.managers import Context
from gpusage_sandboxes import processes
from gpusage_sandboxes.gpusaged import start_gpusaged
from gpusage_sandboxes.host import free_ports
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.cluster import get_document
from gpusage_sandboxes.yarn.layout import CLIENT, RESOURCE_MANAGER, STANDBY
from gpusage_sandboxes.yarn.settings import RM_PORTS, SCHEDULER_SETTINGS, SITE_SETTINGS
from gpusage_yarn.cluster.configuration import CALCULATOR, CLASSES, PROCESSORS, RULES, addresses_of, read_settings
from gpusage_yarn.observation import observe_cluster
from gpusage_yarn.settings import YarnSettings

pytestmark = pytest.mark.yarn

RM = "yarn.resourcemanager"
MODEL = Path(__file__).resolve().parents[2] / "examples" / "models" / "dlrm.onnx"
SHARED = ("--model", f"{MODEL},batch=8,mode=infer")
IDENTITIES = {"rm1": RESOURCE_MANAGER, "rm2": STANDBY}
OF_MANAGER = {CLASSES[key].rpartition(".")[2] for key in (RULES, PROCESSORS, CALCULATOR)}
FRESH_S = 5.0
"""gpusaged looks once a second here."""


class Pair:
    """A sandbox whose ResourceManager has become the first of two; ZooKeeper has made one of them active."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        (self._zookeeper,) = free_ports(1)
        self._ports = {identity: dict(zip(RM_PORTS, free_ports(len(RM_PORTS)), strict=True)) for identity in IDENTITIES}
        for node in sandbox.nodes():
            sandbox.stop_nm(node)
        sandbox.stop_rm()
        self._write()
        self._start_zookeeper()
        for daemon in (*IDENTITIES.values(), *sandbox.nodes()):
            sandbox.launch(daemon)
        sandbox.wait_for(self.active, "one is active")
        sandbox.wait_for(lambda: self.nodes(self.active()), "the node has registered")

    def active(self) -> str:
        """Return the one that is active, empty where none is."""
        return next((identity for identity in IDENTITIES if self.state(identity) == "ACTIVE"), "")

    def kill_active(self) -> str:
        """End the active one as a power cut would, and return the other one."""
        identity = self.active()
        pid = self.sandbox.pid(IDENTITIES[identity])
        assert pid is not None
        processes.kill([pid])
        return next(other for other in IDENTITIES if other != identity)

    def url(self, identity: str) -> str:
        """Return the web address of one."""
        return f"http://127.0.0.1:{self._ports[identity]['.webapp']}"

    def snapshot_age_s(self) -> float:
        """Return when gpusaged has last seen the cluster."""
        return float(client.status(str(self.sandbox.layout.socket))["clusters"]["yarn"]["age_s"])

    def state(self, identity: str) -> str:
        """Return what one says of itself, empty where it does not answer."""
        return str(((self.get(identity, "info") or {}).get("clusterInfo") or {}).get("haState", ""))

    def get(self, identity: str, path: str) -> Any:  # JSON
        """Return one's document at *path*."""
        return get_document(self._ports[identity][".webapp"], path)

    def applications(self, identity: str) -> list[dict[str, Any]]:
        """Return all applications that one knows."""
        return list(((self.get(identity, "apps") or {}).get("apps") or {}).get("app") or [])

    def nodes(self, identity: str) -> list[dict[str, Any]]:
        """Return all nodes that have registered with one."""
        return list(((self.get(identity, "nodes") or {}).get("nodes") or {}).get("node") or [])

    def _start_zookeeper(self) -> None:
        """Start it as one process of the sandbox's, with which it ends."""
        sandbox = self.sandbox
        command = (str(sandbox.hadoop.java.program), "-Xmx64m", "-XX:+UseSerialGC", "-XX:-UsePerfData")
        command += ("-Dzookeeper.admin.enableServer=false", "-classpath", sandbox.hadoop.classpath)
        command += ("org.apache.zookeeper.server.ZooKeeperServerMain", str(self._zookeeper))
        command += (str(sandbox.layout.state / "zookeeper"), "500")
        sandbox.run(
            "sh", "-c", 'setsid "$@" >>"$0" 2>&1 </dev/null &', str(sandbox.layout.log_file("zookeeper")), *command
        )

    def _write(self) -> None:
        """Tell every daemon and client of both."""
        layout = self.sandbox.layout
        shared = {
            f"{RM}.cluster-id": "pair",
            f"{RM}.ha.enabled": "true",
            f"{RM}.ha.rm-ids": ",".join(IDENTITIES),
            f"{RM}.zk-timeout-ms": "1000",
            "hadoop.zk.timeout-ms": "1000",
            "hadoop.zk.address": f"127.0.0.1:{self._zookeeper}",
            f"{RM}.store.class": "org.apache.hadoop.yarn.server.resourcemanager.recovery.ZKRMStateStore",
            "yarn.client.failover-sleep-base-ms": "100",
            "yarn.client.failover-sleep-max-ms": "500",
            **{
                f"{RM}{kind}.address.{identity}": f"127.0.0.1:{port}"
                for identity, ports in self._ports.items()
                for kind, port in ports.items()
            },
        }
        for name in (RESOURCE_MANAGER, CLIENT, *self.sandbox.nodes()):
            _add(layout.conf(name), shared)
        shutil.copytree(layout.conf(RESOURCE_MANAGER), layout.conf(STANDBY))
        (layout.temporary / STANDBY).mkdir()
        for identity, daemon in IDENTITIES.items():
            _add(layout.conf(daemon), {f"{RM}.ha.id": identity})


def _add(conf: Path, settings: Mapping[str, str]) -> None:
    file = conf / "yarn-site.xml"
    lines = [f"<property><name>{name}</name><value>{value}</value></property>\n" for name, value in settings.items()]
    file.write_text(file.read_text().replace("</configuration>", "".join(lines) + "</configuration>"))


@pytest.fixture
def pair(jar: Path) -> Iterator[Pair]:
    plan = ClusterPlan(
        nodes=parse_nodes("1xv100:2"), jar=jar, site_settings=SITE_SETTINGS, scheduler_settings=SCHEDULER_SETTINGS
    )
    with start_sandbox(plan) as sandbox:
        yield Pair(sandbox)


def begin(stack: ExitStack, sandbox: Sandbox, name: str, command: str, *options: str) -> subprocess.Popen[str]:
    """Start a submission that finds both by Hadoop's own configuration, as a user would."""
    words = ("--memory-mib", "128", "--name", name, *options, "--", command)
    line = [sys.executable, "-m", "gpusage.cli", "yarn", "submit", *words]
    pipe = subprocess.PIPE
    process = subprocess.Popen(line, env=sandbox.environment, stdout=pipe, stderr=pipe, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)  # comes first: whoever leaves a process's block waits for its end
    return process


def test_a_failover_costs_no_application_and_doubles_none(pair: Pair) -> None:
    """Some run, some wait for a GPU, one is being submitted and one begins when nobody is active: all end well."""
    sandbox, go = pair.sandbox, pair.sandbox.layout.jobs / "go"
    assert len(addresses_of(read_settings(sandbox.layout.conf(CLIENT) / "yarn-site.xml"))) == len(IDENTITIES)
    start_gpusaged(sandbox)
    for each in IDENTITIES:
        sandbox.wait_for(lambda name=each: classes(pair.url(name)) >= OF_MANAGER, f"{each} has our classes")
    with ExitStack() as stack:
        whole = begin(stack, sandbox, "whole", f"env; until test -e {go}; do sleep 0.1; done", "--containers", "2")
        sandbox.wait_for(lambda: running(pair) == {"whole": 3}, "both GPUs are taken")
        queued = begin(stack, sandbox, "queued", "env", *SHARED)
        sandbox.wait_for(lambda: running(pair) == {"whole": 3, "queued": 1}, "it waits for a GPU")
        submitted = begin(stack, sandbox, "submitted", "env", *SHARED)
        time.sleep(0.3)  # its start-up takes about so long: the questions begin
        other = pair.kill_active()
        late = begin(stack, sandbox, "late", "env", *SHARED)
        sandbox.wait_for(lambda: pair.active() == other, "the other one takes over")
        assert masters.metrics(pair.url(other))["FAILURES"] == 0
        sandbox.wait_for(lambda: running(pair).get("whole") == 3, "what ran runs on")
        go.touch()
        ends = [process.communicate(timeout=apps.PATIENCE_S)[1] for process in (whole, queued, submitted, late)]
        assert [process.returncode for process in (whole, queued, submitted, late)] == [0, 0, 0, 0], ends
    known = pair.applications(other)
    assert Counter(app["name"] for app in known) == dict.fromkeys(("whole", "queued", "submitted", "late"), 1)
    assert {(app["finalStatus"], app["appNodeLabelExpression"]) for app in known} == {("SUCCEEDED", "v100")}
    shares = {match[1] for text in ends if (match := re.search(r"-> gpusage.io/share: (\d+) on v100", text))}
    outputs = [output for app in known for output in masters.outputs(sandbox, app["id"]).values()]
    assert len(outputs) == len(known) + 1
    assert {masters.variable(output, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") for output in outputs} == {"100", *shares}
    sandbox.wait_for(lambda: pair.snapshot_age_s() < FRESH_S, "gpusaged sees the cluster again")
    context = Context(settings=YarnSettings(), catalogue=builtin_catalogue())
    assert observe_cluster((pair.url(other),), context).name == "pair"


def classes(url: str) -> set[str]:
    """Return which of our classes have started in the daemon at *url*, be it on standby; none before it answers."""
    with suppress(requests.ConnectionError):
        return set(masters.bean(url)["Classes"].split(","))
    return set()


def running(pair: Pair) -> dict[str, int]:
    """Return in how many containers each application runs, its master counted."""
    return {
        app["name"]: app["runningContainers"]
        for app in pair.applications(pair.active())
        if app["runningContainers"] > 0
    }
