"""Containers of several Unix users on one node: the LinuxContainerExecutor, with a stand-in for its native part."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import yarn_applications as apps
import yarn_masters as masters
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.settings import with_gpusage

pytestmark = [
    pytest.mark.yarn,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root starts containers as other users"),
]

USERS = ("daemon", "nobody")
MODEL = Path(__file__).resolve().parents[2] / "examples" / "models" / "dlrm.onnx"
EXECUTOR = Path(__file__).resolve().parents[1] / "standins" / "container-executor"
LINUX = "yarn.nodemanager.linux-container-executor"
SETTINGS = {
    "yarn.nodemanager.container-executor.class": "org.apache.hadoop.yarn.server.nodemanager.LinuxContainerExecutor",
    f"{LINUX}.path": str(EXECUTOR),
    f"{LINUX}.group": "root",
    f"{LINUX}.nonsecure-mode.limit-users": "false",
}


def begin(stack: ExitStack, sandbox: Sandbox, user: str, command: str) -> subprocess.Popen[str]:
    """Start a submission of *user*'s."""
    words = ("--model", f"{MODEL},batch=8,mode=infer", "--memory-mib", "128", "--name", user, "--", command)
    line = [sys.executable, "-m", "gpusage.cli", "yarn", "submit", *words]
    environment = {**sandbox.environment, "HADOOP_USER_NAME": user}
    pipe = subprocess.PIPE
    process = stack.enter_context(subprocess.Popen(line, env=environment, stdout=pipe, stderr=pipe, text=True))
    stack.callback(process.kill)
    return process


def test_two_users_share_a_gpu_and_a_starved_command_runs_again_as_its_user(jar: Path) -> None:
    plan = with_gpusage(ClusterPlan(nodes=parse_nodes("1xv100:2"), node_settings=SETTINGS), jar, "enforce")
    starve = 'test "$GPUSAGE_SHARE" = 100 || { echo "torch.OutOfMemoryError: CUDA out of memory." >&2; exit 1; }'
    with start_sandbox(plan) as sandbox, ExitStack() as stack:
        layout = sandbox.layout
        for folder in (layout.folder, layout.etc, layout.lib, layout.state, layout.logs):
            folder.chmod(0o755)  # users other than the sandbox's own go through these
        go = layout.jobs / "go"
        first = begin(stack, sandbox, USERS[0], f"id -un; env; until test -e {go}; do sleep 0.1; done; exit 3")
        second = begin(stack, sandbox, USERS[1], f"id -un; env; until test -e {go}; do sleep 0.1; done; {starve}")

        def bound() -> list[str]:
            return [gpu for gpu, _ in masters.bindings(sandbox, "v100-1").values()]

        sandbox.wait_for(lambda: bound() == ["0", "0"], "both run on one GPU")
        go.touch()
        ends = [process.communicate(timeout=apps.PATIENCE_S) for process in (first, second)]
        assert [first.returncode, second.returncode] == [3, 0], ends
        assert "ran out of GPU memory in its share of" in ends[1][1]
        for (identity, _), user in zip(ends, USERS, strict=True):
            outputs = list(masters.outputs(sandbox, identity.strip()).values())
            assert {output.partition("\n")[0] for output in outputs} == {user}
            shares = [masters.variable(output, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") for output in outputs]
            assert shares == (["25"] if user == USERS[0] else ["25", "100"])
        sandbox.wait_for(lambda: not bound(), "every share has come back")
