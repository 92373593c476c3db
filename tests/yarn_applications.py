"""Applications on a sandbox's YARN, by plain REST as any client would send them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import requests

from gpusage_sandboxes.yarn import Sandbox

PATIENCE_S = 300.0
"""A bound for a machine that does ten other things; where all is well nothing takes a tenth of it."""
ENDED = ("FINISHED", "FAILED", "KILLED")
DISTRIBUTED_SHELL = "org.apache.hadoop.yarn.applications.distributedshell.Client"


def submit(sandbox: Sandbox, command: str, *, user: str = "alice", **fields: object) -> str:
    """Submit an application whose application master is *command*, and return its id."""
    response = send(sandbox, command, user=user, **fields)
    assert response.status_code == 202, response.text
    return str(response.request.headers["X-Application"])


def send(
    sandbox: Sandbox,
    command: str,
    *,
    user: str = "alice",
    environment: Mapping[str, str] | None = None,
    **fields: object,
) -> requests.Response:
    """Submit likewise, and return the ResourceManager's answer, whatever it is."""
    url = f"{sandbox.rm_url}/ws/v1/cluster/apps"
    new = requests.post(f"{url}/new-application?user.name={user}", timeout=30)
    assert new.status_code == 200, new.text
    application = str(new.json()["application-id"])
    entries = [{"key": key, "value": value} for key, value in (environment or {}).items()]
    document = {
        "application-id": application,
        "application-name": "test",
        "application-type": "YARN",
        "max-app-attempts": 1,
        "resource": {"memory": 64, "vCores": 1},
        "am-container-spec": {"commands": {"command": command}, "environment": {"entry": entries}},
        **fields,
    }
    headers = {"X-Application": application}
    return requests.post(f"{url}?user.name={user}", json=document, headers=headers, timeout=30)


def application(sandbox: Sandbox, identity: str) -> dict[str, Any]:
    """Return what the ResourceManager says of an application; empty while it does not answer."""
    document = sandbox.get(f"apps/{identity}") or {}
    return dict(document.get("app") or {})


def raw_document(sandbox: Sandbox, path: str) -> bytes:
    """Return what the ResourceManager answers, byte for byte."""
    return requests.get(f"{sandbox.rm_url}/ws/v1/cluster/{path}", timeout=30).content


def wait_for_state(sandbox: Sandbox, identity: str, *states: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
    """Wait until an application is in one of *states*, and return what the ResourceManager says of it."""
    wait_until(
        sandbox, lambda: application(sandbox, identity).get("state") in states, f"{identity} is {states}", timeout_s
    )
    return application(sandbox, identity)


def wait_until(sandbox: Sandbox, condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait until *condition* holds."""
    sandbox.wait_for(condition, what, timeout_s)


def kill(sandbox: Sandbox, identity: str) -> None:
    """Kill an application, and wait until it is gone."""
    url = f"{sandbox.rm_url}/ws/v1/cluster/apps/{identity}/state?user.name=alice"
    response = requests.put(url, json={"state": "KILLED"}, timeout=30)
    assert response.status_code in (200, 202), response.text
    wait_for_state(sandbox, identity, *ENDED)


def run_distributed_shell(sandbox: Sandbox, command: str, *options: str) -> Sequence[str]:
    """Run *command* in DistributedShell's containers, and return what each has said."""
    jar = next(sandbox.hadoop.jars.glob("hadoop-yarn-applications-distributedshell-*.jar"))
    known = {app["id"] for app in applications(sandbox)}
    words = ("-jar", str(jar), "-shell_command", f"{{ {command}; }}", *options)
    done = sandbox.java_client(DISTRIBUTED_SHELL, *words, check=False)
    mine = next((app for app in applications(sandbox) if app["id"] not in known), None)
    assert mine, done.stderr
    if mine["finalStatus"] != "SUCCEEDED":  # the cluster, and all that it knows, is soon gone
        logs = sorted(sandbox.logs.glob(f"containers/*/{mine['id']}/*/*"))
        ends = (f"{path.parts[-4:]}:\n{path.read_text(errors='replace')[-2000:]}" for path in logs)
        raise AssertionError("\n".join((mine["diagnostics"], done.stderr, *ends)))
    outputs = sorted(sandbox.logs.glob(f"containers/*/{mine['id']}/*/stdout"))
    return [path.read_text() for path in outputs]


def applications(sandbox: Sandbox) -> list[dict[str, Any]]:
    """Return all applications that the ResourceManager knows."""
    return list(((sandbox.get("apps") or {}).get("apps") or {}).get("app") or [])
