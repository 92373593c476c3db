"""A site's first step: some nodes offer shares, the others give out whole GPUs by YARN's own means, as before."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import yarn_applications as apps
import yarn_masters as masters
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox

pytestmark = [pytest.mark.yarn, pytest.mark.nightly]

MODEL = str(Path(__file__).resolve().parents[2] / "examples" / "models" / "dlrm.onnx")
WHOLE = "yarn.nodemanager.resource-type.yarn.io/gpu"
SHARED = {"a100-1": 1, "v100-1": 2}
"""The share nodes, with their GPUs; the whole node has one."""


def gpusage(sandbox: Sandbox, *words: str) -> Any:  # JSON
    command = (sys.executable, "-m", "gpusage.cli", "yarn", words[0], "--json", *words[1:])
    return json.loads(sandbox.run(*command, check=False, timeout_s=180).stdout)


@pytest.fixture(scope="module")
def site(jar: Path) -> Iterator[Sandbox]:
    """Return a cluster of whole GPUs on which two of three nodes were turned into share nodes, as docs/yarn.md says."""
    plan = ClusterPlan(nodes=parse_nodes("1xa100:1,2xv100:1,1xcpu:0"), jar=jar, whole_gpus=1, share_per_gpu=0)
    with start_sandbox(plan) as sandbox:
        install = (sys.executable, "-m", "gpusage.cli", "yarn", "install", "--yes", "--conf-dir")
        sandbox.run(*install, str(sandbox.layout.conf("rm")), "--role", "rm", timeout_s=180)
        for name, gpus in SHARED.items():
            folder = sandbox.layout.conf(name)
            node = (*install, str(folder), "--role", "node", "--gpus", str(gpus))
            refused = sandbox.run(*node, check=False, timeout_s=180).stderr
            assert "Node's GPUs must be offered once" in refused
            file = folder / "yarn-site.xml"
            own = f"  <property><name>{WHOLE}</name><value>1</value></property>\n"
            assert own in file.read_text()
            file.write_text(file.read_text().replace(own, ""))
            sandbox.run(*node, timeout_s=180)
        sandbox.restart()
        yield sandbox


def where_gpus_are(sandbox: Sandbox, *options: str, count: int = 1) -> tuple[str, str]:
    """Return the node on which a plain client's container with *count* GPUs ran, and its share, if it had one."""
    known = {app["id"] for app in apps.applications(sandbox)}
    words = ("-num_containers", "1", "-master_memory", "128")
    resources = ("-container_resources", f"memory-mb=64,vcores=1,yarn.io/gpu={count}")
    (output,) = apps.run_distributed_shell(sandbox, "env", *words, *resources, *options)
    (mine,) = {app["id"] for app in apps.applications(sandbox)} - known
    (path,) = sandbox.logs.glob(f"containers/*/{mine}/*/stdout")
    return path.parts[-4], masters.variable(output, "GPUSAGE_SHARE")


def test_a_plain_client_goes_to_whole_nodes_where_there_are_any(site: Sandbox) -> None:
    assert where_gpus_are(site) == ("v100-2", ""), "of no label: a100, the first label, has share nodes alone"
    assert where_gpus_are(site, "-node_label_expression", "v100") == ("v100-2", "")
    assert where_gpus_are(site, "-node_label_expression", "a100") == ("a100-1", "100")
    assert where_gpus_are(site, "-node_label_expression", "v100", count=2) == ("v100-1", "200"), "on no whole node"


def test_who_asks_for_no_gpu_sees_none_on_a_share_node_and_what_it_saw_before_elsewhere(site: Sandbox) -> None:
    words = ("-num_containers", "1", "-master_memory", "128", "-container_resources", "memory-mb=64,vcores=1")
    (shared,) = apps.run_distributed_shell(site, "env", *words, "-node_label_expression", "a100")
    assert "CUDA_VISIBLE_DEVICES=" in shared.splitlines()
    (other,) = apps.run_distributed_shell(site, "env", *words)
    assert "CUDA_VISIBLE_DEVICES" not in other


def test_shares_are_of_share_nodes_and_doctor_agrees(site: Sandbox) -> None:
    findings = {
        check["check"]: check for check in gpusage(site, "doctor", "--conf-dir", str(site.layout.conf("rm")))["checks"]
    }
    assert [name for name, check in findings.items() if check["verdict"] == "fail"] == []
    counted = "3 GPUs, each counted once; 1 of other nodes are whole, as yarn.io/gpu"
    assert findings["shares of nodes"]["observation"] == counted
    assert "v100: 2 GPUs" in findings["node labels"]["observation"]
    submit = ("submit", "--model", f"{MODEL},batch=8,mode=infer", "--gpu", "v100", "--memory-mib", "128")
    document = gpusage(site, *submit, "--", "env")
    assert (document["end"]["state"], document["plan"]["share"] < 100) == ("SUCCEEDED", True)
    assert masters.places(site, document["application"]) == {"v100-1"}


def test_a_masters_own_gpu_is_of_a_whole_node(site: Sandbox) -> None:
    known = {app["id"] for app in apps.applications(site)}
    options = ("-num_containers", "1", "-master_resources", "memory-mb=128,vcores=1,yarn.io/gpu=1")
    assert apps.run_distributed_shell(site, "echo run", *options) == ["run\n"]
    (mine,) = {app["id"] for app in apps.applications(site)} - known
    (path,) = site.logs.glob(f"containers/*/{mine}/*_01_000001")
    assert path.parts[-3] == "v100-2"


def test_what_yarn_serves_without_a_label_stays_its_own(site: Sandbox) -> None:
    admin = "org.apache.hadoop.yarn.client.cli.RMAdminCLI"
    site.java_client(admin, "-addToClusterNodeLabels", "open(exclusive=false)")
    site.java_client(admin, "-replaceLabelsOnNode", f"{site.node_id('v100-2')}=open")
    assert where_gpus_are(site) == ("v100-2", ""), "an idle node; its queue may not even name the label"
