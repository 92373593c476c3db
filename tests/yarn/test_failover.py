"""Two real ResourceManagers, one of which dies: failed over by hand, with a state store in files that both see."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import yarn_applications as apps
import yarn_masters as masters
from gpusage.sandboxes.host import free_ports
from gpusage_yarn.address import addresses_of
from gpusage_yarn.hadoop_xml import read_settings
from gpusage_yarn.sandbox import ClusterPlan, Sandbox, parse_nodes, rest, start_sandbox
from gpusage_yarn.sandbox.layout import CLIENT, RESOURCE_MANAGER, STANDBY
from gpusage_yarn.sandbox.settings import RM_PORTS
from gpusage_yarn.sandbox.trial import SCHEDULER_SETTINGS, SITE_SETTINGS

pytestmark = pytest.mark.yarn

RM = "yarn.resourcemanager"
MODEL = Path(__file__).resolve().parents[2] / "examples" / "models" / "dlrm.onnx"
IDENTITIES = {"rm1": RESOURCE_MANAGER, "rm2": STANDBY}


class Pair:
    """A sandbox whose ResourceManager has become the first of two; none of them is active yet."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._ports = {identity: dict(zip(RM_PORTS, free_ports(len(RM_PORTS)), strict=True)) for identity in IDENTITIES}
        for node in sandbox.nodes():
            sandbox.stop_nm(node)
        sandbox.stop_rm()
        self._write()
        for daemon in (*IDENTITIES.values(), *sandbox.nodes()):
            sandbox.launch(daemon)
        for identity in IDENTITIES:
            sandbox.wait_for(lambda each=identity: self.state(each) == "STANDBY", f"{identity} stands by")

    def activate(self, identity: str) -> None:
        """Make one the active one, whatever has become of the other."""
        self.sandbox.run("yarn", "rmadmin", "-transitionToActive", "--forceactive", identity)
        assert self.state(identity) == "ACTIVE"

    def state(self, identity: str) -> str:
        """Return what one says of itself, empty where it does not answer."""
        return str(((self.get(identity, "info") or {}).get("clusterInfo") or {}).get("haState", ""))

    def get(self, identity: str, path: str) -> Any:  # noqa: ANN401 - JSON
        """Return one's document at *path*."""
        return rest.get(self._ports[identity][".webapp"], path)

    def applications(self, identity: str) -> list[dict[str, Any]]:
        """Return all applications that one knows."""
        return list(((self.get(identity, "apps") or {}).get("apps") or {}).get("app") or [])

    def nodes(self, identity: str) -> list[dict[str, Any]]:
        """Return all nodes that have registered with one."""
        return list(((self.get(identity, "nodes") or {}).get("nodes") or {}).get("node") or [])

    def _write(self) -> None:
        """Tell every daemon and client of both."""
        layout = self.sandbox.layout
        shared = {
            f"{RM}.cluster-id": "pair",
            f"{RM}.ha.enabled": "true",
            f"{RM}.ha.rm-ids": ",".join(IDENTITIES),
            f"{RM}.ha.automatic-failover.enabled": "false",
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


def begin(stack: ExitStack, sandbox: Sandbox, name: str, command: str) -> subprocess.Popen[str]:
    """Start a submission that finds both by Hadoop's own configuration, as a user would."""
    words = ("--model", f"{MODEL},batch=8,mode=infer", "--memory-mib", "128", "--name", name, "--", command)
    line = [sys.executable, "-m", "gpusage.cli", "yarn", "submit", *words]
    pipe = subprocess.PIPE
    process = subprocess.Popen(line, env=sandbox.environment, stdout=pipe, stderr=pipe, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)  # comes first: whoever leaves a process's block waits for its end
    return process


def test_a_failover_costs_no_application_and_doubles_none(pair: Pair) -> None:
    """One runs, one is being submitted and one begins when nobody is active: all end well under the other."""
    sandbox, go = pair.sandbox, pair.sandbox.layout.jobs / "go"
    assert len(addresses_of(read_settings(sandbox.layout.conf(CLIENT) / "yarn-site.xml"))) == len(IDENTITIES)
    pair.activate("rm1")
    sandbox.wait_for(lambda: pair.nodes("rm1"), "the node has registered")
    with ExitStack() as stack:
        running = begin(stack, sandbox, "running", f"env; until test -e {go}; do sleep 0.1; done")
        sandbox.wait_for(lambda: [app["runningContainers"] for app in pair.applications("rm1")] == [2], "it runs")
        (app,) = pair.applications("rm1")
        masters.wait_for_output(sandbox, app["id"])
        submitted = begin(stack, sandbox, "submitted", "env")
        time.sleep(0.3)  # its start-up takes about so long: the questions begin
        sandbox.kill_rm()
        late = begin(stack, sandbox, "late", "env")
        pair.activate("rm2")
        go.touch()
        said = [process.communicate(timeout=apps.PATIENCE_S)[1] for process in (running, submitted, late)]
    assert [running.returncode, submitted.returncode, late.returncode] == [0, 0, 0], said
    known = pair.applications("rm2")
    assert Counter(app["name"] for app in known) == {"running": 1, "submitted": 1, "late": 1}
    assert {(app["finalStatus"], app["appNodeLabelExpression"]) for app in known} == {("SUCCEEDED", "v100")}
    shares = {found[1] for text in said if (found := re.search(r"-> gpusage.io/share: (\d+) on v100", text))}
    outputs = [output for app in known for output in masters.outputs(sandbox, app["id"]).values()]
    assert len(outputs) == len(known)
    assert {masters.variable(output, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") for output in outputs} == shares, said
