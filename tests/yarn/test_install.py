"""gpusage installed on a plain YARN as an admin would, and taken out again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import yarn_masters as masters
from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, open_sandbox, parse_nodes

pytestmark = pytest.mark.yarn

MEMORY_LIMITS = {
    "yarn.nodemanager.vmem-check-enabled": "true",
    "yarn.nodemanager.resource.memory.enforced": "false",  # else only cgroups would limit it
    "yarn.nodemanager.container-monitor.interval-ms": "300",
}
"""YARN's own limit of address space, 2.1 bytes for each that is asked for: our master keeps to it."""
HOSTS = {"rm": "rm", "v100-1": "node", "client": "client"}


def gpusage(sandbox: Sandbox, *words: str, check: bool = True) -> Any:  # JSON
    done = sandbox.run(sys.executable, "-m", "gpusage.cli", "yarn", *words, "--json", check=check, timeout_s=180)
    return json.loads(done.stdout)


def checks(sandbox: Sandbox) -> dict[str, str]:
    folder = str(sandbox.layout.conf("rm"))
    actual = gpusage(sandbox, "doctor", "--conf-dir", folder, check=False)["checks"]
    print(*actual, sep="\n")
    return {finding["check"]: finding["verdict"] for finding in actual}


def files(sandbox: Sandbox) -> dict[Path, bytes]:
    return {path: path.read_bytes() for host in HOSTS for path in sandbox.layout.conf(host).iterdir()}


def on_each_host(sandbox: Sandbox, command: str) -> list[int]:
    """Run an installer on each host, and return how many files each has changed."""
    folders = {host: str(sandbox.layout.conf(host)) for host in HOSTS}
    answers = [
        gpusage(sandbox, command, "--conf-dir", folders[host], "--role", role, "--yes") for host, role in HOSTS.items()
    ]
    return [len(answer["files"]) for answer in answers]


def test_an_installation_works_and_leaves_no_trace(jar: Path, new_cluster: Any) -> None:  # NewCluster
    sandbox = new_cluster(ClusterPlan(nodes=parse_nodes("1xv100:1"), jar=jar, node_settings=MEMORY_LIMITS))
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
    assert (after.pop("gpusaged"), after.pop("store")) == ("warn", "warn")  # it does not run here
    assert after.pop("sampler") == "skip"  # the ResourceManager's host is no node
    assert after.pop("from observe to enforce") == "skip"  # no day was added up
    assert set(after.values()) == {"pass"}
    submit = ("--memory-mib", "128", "--gpu", "v100", "--", "sleep 2; env")
    identity = sandbox.run(sys.executable, "-m", "gpusage.cli", "yarn", "submit", *submit, timeout_s=180).stdout.strip()
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


def test_a_sandbox_is_switched_on_by_one_option_and_installed_in_like_a_site(jar: Path, tmp_path: Path) -> None:
    """Typed as a first-time admin would: up, look, change a setting that cannot work, restart, and be told."""
    folder = Path(tempfile.mkdtemp(prefix="gpusage-test-")) / "s"  # short enough for a socket, unlike pytest's own
    place = ("--folder", str(folder))
    typed("sandbox", "up", *place, "--gpusage", "enforce", "--nodes", "1xv100:1,1xcpu:0", "--jar", str(jar))
    inside = ("sandbox", "shell", *place, "--", sys.executable, "-m", "gpusage.cli", "yarn")
    try:
        before = json.loads(typed(*inside, "doctor", "--json"))["checks"]
        not_passed = {finding["check"] for finding in before if finding["verdict"] != "pass"}
        assert not_passed == {"sampler", "from observe to enforce"}  # neither a node nor a day yet
        typed(*inside, "install", "--mps-command", str(tmp_path / "gone"), "--yes")
        os.kill(int(open_sandbox(folder).layout.pid_file("gpusaged").read_text()), signal.SIGKILL)
        typed("sandbox", "restart", *place)  # brings back what has died, too
        after = json.loads(typed(*inside, "doctor", "--json", status=1))["checks"]
        (reported,) = [finding for finding in after if finding["verdict"] not in ("pass", "skip")]
        assert (reported["check"], reported["verdict"], "mps" in reported["observation"]) == ("troubles", "fail", True)
        (folder / "etc" / "gpusage.toml").write_text("mode = [broken")
        broken = {check["check"]: check for check in json.loads(typed(*inside, "doctor", "--json", status=1))["checks"]}
        assert (broken["gpusage.toml"]["verdict"], broken["allowed users"]["verdict"]) == ("fail", "skip")
        assert (broken["gpusaged"]["verdict"], "TOML" in broken["gpusaged"]["observation"]) == ("warn", True)
        assert "not usable, the last good one is in force" in typed(*inside, "status")
    finally:
        typed("sandbox", "down", *place)
        folder.parent.rmdir()


def typed(*words: str, status: int = 0) -> str:
    """Run a command as a user would; return what it says on standard output."""
    command = [sys.executable, "-m", "gpusage.cli", "yarn", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout
