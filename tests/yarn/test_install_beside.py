"""gpusage installed on some nodes of a YARN whose others give whole GPUs by `yarn.io/gpu`, while these are in use."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import yarn_applications as apps
import yarn_masters as masters
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes

pytestmark = [pytest.mark.yarn, pytest.mark.nightly]

WHOLE, SHARED = "v100-1", "a100-1"
ROLES = {"rm": ("rm",), SHARED: ("node", "--gpus", "1"), "client": ("client",)}
OFFER = b"  <property><name>yarn.nodemanager.resource-type.yarn.io/gpu</name><value>2</value></property>\n"
COMMAND = (sys.executable, "-m", "gpusage.cli", "yarn")
GPU = ("-num_containers", "1", "-master_memory", "128", "-container_resources", "memory-mb=64,vcores=1,yarn.io/gpu=1")


def files(sandbox: Sandbox) -> dict[Path, bytes]:
    hosts = ("rm", WHOLE, SHARED, "client")
    return {path: path.read_bytes() for host in hosts for path in sandbox.layout.conf(host).iterdir()}


def restart(sandbox: Sandbox) -> None:
    """Restart what an admin would: the ResourceManager, and the node that is to share."""
    sandbox.stop_nm(SHARED)
    sandbox.stop_rm()
    sandbox.start_rm()
    sandbox.start_nm(SHARED)


def test_whole_gpus_in_use_stay_in_use(jar: Path, new_cluster: Any, tmp_path: Path) -> None:  # NewCluster
    sandbox = new_cluster(ClusterPlan(nodes=parse_nodes("1xv100:2,1xa100:2"), jar=jar, whole_gpus=2, share_per_gpu=0))
    original = files(sandbox)
    go = tmp_path / "go"
    hold = f"{{ echo begun; until test -e {go}; do sleep 0.1; done; echo ended; }}"
    client = next(sandbox.hadoop.jars.glob("hadoop-yarn-applications-distributedshell-*.jar"))
    words = (apps.DISTRIBUTED_SHELL, "-jar", str(client), "-shell_command", hold, *GPU)
    with ThreadPoolExecutor() as threads:
        in_use = threads.submit(sandbox.java_client, *words, timeout_s=apps.PATIENCE_S)
        try:
            sandbox.wait_for(lambda: masters_and_workers(sandbox) == 2, "a container has a whole GPU")
            site = sandbox.layout.conf(SHARED) / "yarn-site.xml"
            assert OFFER in site.read_bytes()
            site.write_bytes(site.read_bytes().replace(OFFER, b""))  # as `install` demands where it is to share
            for host, role in ROLES.items():
                folder = str(sandbox.layout.conf(host))
                sandbox.run(*COMMAND, "install", "--conf-dir", folder, "--role", *role, "--yes")
            restart(sandbox)

            shared = sandbox.run(*COMMAND, "submit", "--gpu", "a100", "--memory-mib", "128", "--", "env").stdout.strip()
            (output,) = masters.outputs(sandbox, shared).values()
            assert masters.variable(output, "GPUSAGE_SHARE") == "100"
            whole = apps.run_distributed_shell(sandbox, "env", *GPU)
            assert not any("GPUSAGE_SHARE" in text for text in whole), "the other GPU of the node that gives whole ones"
            assert masters_and_workers(sandbox) == 2
        finally:
            go.touch()
        in_use.result()
    first = min(apps.applications(sandbox), key=lambda app: str(app["id"]))
    assert first["finalStatus"] == "SUCCEEDED", first["diagnostics"]
    printed = sandbox.logs.glob(f"containers/{WHOLE}/{first['id']}/*_000002/stdout")
    assert [path.read_text() for path in printed] == ["begun\nended\n"]

    for host, role in ROLES.items():
        sandbox.run(*COMMAND, "uninstall", "--conf-dir", str(sandbox.layout.conf(host)), "--role", role[0], "--yes")
    assert files(sandbox) == {**original, site: original[site].replace(OFFER, b"")}
    site.write_bytes(original[site])
    restart(sandbox)
    assert apps.run_distributed_shell(sandbox, "echo plain", *GPU) == ["plain\n"]


def masters_and_workers(sandbox: Sandbox) -> int:
    """Return how many containers run."""
    return sum(int(app["runningContainers"]) for app in apps.applications(sandbox) if app["state"] == "RUNNING")
