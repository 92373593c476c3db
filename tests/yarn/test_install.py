"""gpusage installed on a plain YARN as an admin would, and taken out again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import yarn_masters as masters
from gpusage_hooks.errors import RequestError
from gpusage_yarn.sandbox import ClusterPlan, Sandbox, parse_nodes

pytestmark = pytest.mark.yarn

HOSTS = {"rm": "rm", "v100-1": "node", "client": "client"}


def gpusage(sandbox: Sandbox, *words: str, check: bool = True) -> Any:  # noqa: ANN401 - JSON
    done = sandbox.run(sys.executable, "-m", "gpusage.cli", "yarn", *words, "--json", check=check, timeout_s=180)
    return json.loads(done.stdout)


def checks(sandbox: Sandbox) -> dict[str, str]:
    folder = str(sandbox.layout.conf("rm"))
    found = gpusage(sandbox, "doctor", "--conf-dir", folder, check=False)["checks"]
    print(*found, sep="\n")  # noqa: T201 - what pytest shows of a failure
    return {finding["check"]: finding["verdict"] for finding in found}


def files(sandbox: Sandbox) -> dict[Path, bytes]:
    return {path: path.read_bytes() for host in HOSTS for path in sandbox.layout.conf(host).iterdir()}


def on_each_host(sandbox: Sandbox, command: str) -> list[int]:
    """Run an installer on each host, and return how many files each has changed."""
    folders = {host: str(sandbox.layout.conf(host)) for host in HOSTS}
    answers = [
        gpusage(sandbox, command, "--conf-dir", folders[host], "--role", role, "--yes") for host, role in HOSTS.items()
    ]
    return [len(answer["files"]) for answer in answers]


def test_an_installation_works_and_leaves_no_trace(jar: Path, new_cluster: Any) -> None:  # noqa: ANN401 - NewCluster
    sandbox = new_cluster(ClusterPlan(nodes=parse_nodes("1xv100:1"), jar=jar))
    original = files(sandbox)
    toml = (sandbox.layout.etc / "gpusage.toml").read_bytes()
    before = checks(sandbox)
    assert (before["placement rule"], before["processor"], before["node listener"]) == ("fail", "fail", "fail")

    whole = (sys.executable, "-m", "gpusage.cli", "yarn", "submit", "--memory-mib", "128", "--", "true")
    refused = sandbox.run(*whole, check=False).stderr
    assert "Nodes with the label v100 must run gpusage's listener, which binds containers to GPUs" in refused

    on_each_host(sandbox, "install")
    assert on_each_host(sandbox, "install") == [0, 0, 0]
    sandbox.restart()
    after = checks(sandbox)
    assert after.pop("gpusaged") == "warn"  # it does not run here
    assert set(after.values()) == {"pass"}
    submit = ("--memory-mib", "128", "--gpu", "v100", "--", "env")
    identity = sandbox.run(sys.executable, "-m", "gpusage.cli", "yarn", "submit", *submit, timeout_s=90).stdout.strip()
    (output,) = masters.outputs(sandbox, identity).values()
    assert masters.variable(output, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == "100"

    on_each_host(sandbox, "uninstall")
    assert files(sandbox) == original
    assert (sandbox.layout.etc / "gpusage.toml").read_bytes() == toml

    for path in sandbox.layout.lib.iterdir():
        path.unlink()
    with pytest.raises(RequestError, match=r"Our classes must load .*ClassNotFoundException"):
        on_each_host(sandbox, "install")
    assert files(sandbox) == original
