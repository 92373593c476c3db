"""Applications under our own master, and what our classes say of themselves on a sandbox's YARN."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests

import yarn_applications as apps
from gpusage_sandboxes.yarn import Sandbox
from gpusage_sandboxes.yarn.layout import RESOURCE_MANAGER

PACKAGE = "org.gpusage.yarn"
JAVA_OPTIONS = "-Xmx96m -XX:-UsePerfData -XX:TieredStopAtLevel=1 --add-opens=java.base/java.lang=ALL-UNNAMED"


def encoded(value: str | Mapping[str, str]) -> str:
    """Return what our variables hold: base64 of a text, or of a flat JSON object."""
    text = value if isinstance(value, str) else json.dumps(value)
    return base64.b64encode(text.encode()).decode()


def plan(**changes: str) -> str:
    """Return a plan as its variable holds it."""
    return encoded({"v": "1", "id": "test", "share": "50", "memory_mib": "64", **changes})


def master_command(sandbox: Sandbox) -> str:
    """Return the command of our application master."""
    hadoop = "{{HADOOP_COMMON_HOME}}/share/hadoop/common/lib/*"
    classpath = f"{{{{HADOOP_CONF_DIR}}}}:{sandbox.layout.lib}/*:{hadoop}"
    java = f"{{{{JAVA_HOME}}}}/bin/java {JAVA_OPTIONS} -cp {classpath}"
    return f"{java} {PACKAGE}.GpuShareApplicationMaster 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr"


def submit(
    sandbox: Sandbox,
    command: str = "env",
    *,
    plan: str | None = None,
    environment: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    **fields: object,
) -> str:
    """Submit *command* under our master, and return the application's id."""
    ours = {"GPUSAGE_COMMAND": encoded(command), "GPUSAGE_ENV": encoded(variables or {})}
    if plan is not None:
        ours["GPUSAGE_PLAN"] = plan
    return apps.submit(sandbox, master_command(sandbox), environment={**ours, **(environment or {})}, **fields)


def wait_for_end(sandbox: Sandbox, *identities: str) -> list[dict[str, Any]]:
    """Wait until applications have ended, and return what the ResourceManager says of each."""
    return [apps.wait_for_state(sandbox, identity, *apps.ENDED) for identity in identities]


def outputs(sandbox: Sandbox, identity: str) -> dict[str, str]:
    """Return what each container of an application wrote, its masters left out, by the container's id."""
    actual = sorted(sandbox.logs.glob(f"containers/*/{identity}/*/stdout"))
    return {path.parent.name: path.read_text() for path in actual if runs_a_command(path.parent)}


def places(sandbox: Sandbox, identity: str) -> set[str]:
    """Return the nodes on which an application's containers ran, its masters left out."""
    actual = sandbox.logs.glob(f"containers/*/{identity}/*/stdout")
    return {path.parts[-4] for path in actual if runs_a_command(path.parent)}


def runs_a_command(container: Path) -> bool:
    """Return whether a container runs a user's command, by the script that YARN wrote for it; a master's does not."""
    script = container / "launch_container.sh"
    return script.exists() and "export GPUSAGE_CONTAINER=" in script.read_text()


def wait_for_output(sandbox: Sandbox, identity: str, count: int = 1) -> list[str]:
    """Wait until *count* containers of an application have written something, and return it."""

    def written() -> list[str]:
        return [output for output in outputs(sandbox, identity).values() if output]

    apps.wait_until(sandbox, lambda: len(written()) >= count, f"{identity} runs in {count} containers")
    return written()


def wait_for_running(sandbox: Sandbox, identity: str, count: int) -> None:
    """Wait until the ResourceManager has noted that *count* containers of an application run, its master left out.

    Their nodes tell it with their next heartbeats. Until then it kills them if their master dies. Its log shows it.
    """
    mark = identity.removeprefix("application_")
    noted = re.compile(
        rf"container_(?:e\d+_)?{mark}_\d\d_(?!000001)\d+ Container Transitioned from ACQUIRED to RUNNING"
    )
    log = sandbox.layout.log_file(RESOURCE_MANAGER)
    apps.wait_until(sandbox, lambda: len(noted.findall(log.read_text())) >= count, f"{identity} is known to run")


def variable(output: str, name: str) -> str:
    """Return one variable of what `env` wrote, empty where it is not set."""
    return next((line.partition("=")[2] for line in output.splitlines() if line.startswith(f"{name}=")), "")


def bindings(sandbox: Sandbox, node: str) -> dict[str, tuple[str, int]]:
    """Return GPU and share of each container that a node runs, as the scripts that started them have it."""
    answer = requests.get(f"{node_url(sandbox, node)}/ws/v1/node/containers", timeout=30).json()
    running = [
        each["id"] for each in (answer["containers"] or {"container": []})["container"] if each["state"] != "DONE"
    ]
    known = {}
    for script in (sandbox.layout.state / node).glob("local/nmPrivate/*/*/launch_container.sh"):
        exported = dict(
            re.findall(r'^export (CUDA_VISIBLE_DEVICES|GPUSAGE_SHARE)="([^"]*)"$', script.read_text(), re.MULTILINE)
        )
        if script.parent.name in running and "GPUSAGE_SHARE" in exported:
            known[script.parent.name] = (exported["CUDA_VISIBLE_DEVICES"], int(exported["GPUSAGE_SHARE"]))
    return known


def has_all_gpus(sandbox: Sandbox, node: str) -> bool:
    """Return whether a node has nothing of its GPUs bound."""
    free = bean(node_url(sandbox, node))["Free"].split(",")
    return all(part.endswith("=100") for part in free if part)


def used_share(sandbox: Sandbox, node: str) -> int:
    """Return how much of a node's shares the scheduler has given out."""
    identity = sandbox.node_id(node)
    (actual,) = [each for each in sandbox.get("nodes")["nodes"]["node"] if each["id"] == identity]
    if "usedResource" not in actual:  # the ResourceManager has only just started
        return 0
    resources = actual["usedResource"]["resourceInformations"]["resourceInformation"]
    return next(int(each["value"]) for each in resources if each["name"] == "gpusage.io/share")


def kill_all(sandbox: Sandbox) -> None:
    """Kill every application, and wait until all have ended."""

    def alive() -> list[str]:
        return [app["id"] for app in apps.applications(sandbox) if app["state"] not in apps.ENDED]

    for identity in alive():
        url = f"{sandbox.rm_url}/ws/v1/cluster/apps/{identity}/state?user.name=alice"
        requests.put(url, json={"state": "KILLED"}, timeout=30)
    apps.wait_until(sandbox, lambda: not alive(), "every application has ended")


def bean(url: str) -> dict[str, Any]:
    """Return what our classes say of themselves in the daemon whose web address is *url*."""
    answer = requests.get(f"{url}/jmx?qry=org.gpusage:type=Metrics", timeout=30)
    (actual,) = answer.json()["beans"]
    return dict(actual)


def metrics(url: str) -> dict[str, int]:
    """Return our counters in the daemon whose web address is *url*."""
    return {count["key"]: count["value"] for count in bean(url)["Counts"]}


def node_url(sandbox: Sandbox, node: str) -> str:
    """Return the web address of a NodeManager."""
    identity = sandbox.node_id(node)
    (actual,) = [each for each in sandbox.get("nodes")["nodes"]["node"] if each["id"] == identity]
    return f"http://{actual['nodeHTTPAddress']}"


def node_metrics(sandbox: Sandbox, node: str) -> dict[str, int]:
    """Return our counters in a NodeManager."""
    return metrics(node_url(sandbox, node))
