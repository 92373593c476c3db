"""Clients of others beside shares that leave room on no single GPU, on a real YARN: they wait and succeed.

    .venv/bin/python bench/yarn_fragmentation.py [--runs 50] [--client distributed-shell|spark]

In each run the two GPUs of a node are held: with 60 and 60 for Hadoop's distributed shell, with 75 and 75 for Spark.
The client asks for 50, which YARN's own count of the node allows and no GPU has. When it waits, one holder ends. Told
are how many runs succeeded, how many containers the node refused or let wait, and for how long the client's container
waited after the holder had ended. Spark (pyspark from PyPI) must be on the PATH as spark-submit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests

from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.jar import build_jar
from gpusage_sandboxes.yarn.settings import SCHEDULER_SETTINGS, SITE_SETTINGS
from gpusage_yarn.cluster.resource_manager import ResourceManager
from gpusage_yarn.plan import Plan
from gpusage_yarn.submission.application import Application

SHELL = "org.apache.hadoop.yarn.applications.distributedshell.Client"
NOTE = "echo $CUDA_VISIBLE_DEVICES $GPUSAGE_SHARE $(date +%s.%N) >>{notes}"
JOB = """
import os, time
from pyspark import SparkContext
def note(_):
    with open({notes!r}, "a") as file:
        print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["GPUSAGE_SHARE"], time.time(), file=file)
    return [1]
SparkContext().parallelize(range(1), 1).mapPartitions(note).count()
"""
Client = Callable[[Sandbox, Path], bool]
PATIENCE_S = 300.0
CLIENT_S = 600.0
"""Bounds for a machine that does ten other things."""


def applications(sandbox: Sandbox) -> list[dict[str, Any]]:
    """Return all applications that the ResourceManager knows."""
    return list(((sandbox.get("apps") or {}).get("apps") or {}).get("app") or [])


def hold_share(sandbox: Sandbox, place: Path, share: int) -> None:
    """Hold *share* of a GPU until the file ``end`` is in *place*; return when it is held."""
    place.mkdir(parents=True)
    manager = ResourceManager((sandbox.rm_url,), user="alice")
    application = Application(
        command=f"touch {place}/begun; until test -e {place}/end; do sleep 0.1; done",
        plan=Plan(share=share, labels=("v100",), memory_mib=64, vcores=1),
        name="holder",
        classpath=manager.settings("yarn.application.classpath") or "",
    )
    manager.submit(application.document)
    wait_for((place / "begun").exists, "a GPU is held")


def run_shell(sandbox: Sandbox, command: str, share: int) -> bool:
    """Run *command* in one container of Hadoop's distributed shell with *share*; return whether that succeeded."""
    jar = next(sandbox.hadoop.jars.glob("hadoop-yarn-applications-distributedshell-*.jar"))
    options = ("-num_containers", "1", "-master_memory", "128", "-node_label_expression", "v100")
    resources = ("-container_resources", f"memory-mb=64,vcores=1,gpusage.io/share={share}")
    words = ("-jar", str(jar), "-shell_command", f"{{ {command}; }}", *options, *resources)
    done = sandbox.java_client(SHELL, *words, check=False, timeout_s=CLIENT_S)
    return done.returncode == 0


def run_spark(sandbox: Sandbox, folder: Path) -> bool:
    """Run a job in one executor with a GPU, which its plan makes a share of 50; return whether it succeeded."""
    program = str(shutil.which("spark-submit"))
    python = Path(program).resolve().with_name("python")
    python = python if python.exists() else Path(program).with_name("python")
    jars = sandbox.run(str(python), "-c", "import pyspark; print(pyspark.__path__[0])").stdout.strip() + "/jars"
    (folder / "job.py").write_text(JOB.format(notes=str(folder / "notes")))
    discovery = folder / "discover"
    discovery.write_text("#!/bin/sh\necho '" + json.dumps({"name": "gpu", "addresses": ["0"]}) + "'\n")
    discovery.chmod(0o755)
    settings = {
        "spark.yarn.appMasterEnv.GPUSAGE_PLAN": Plan(share=50, labels=("v100",)).encoded(),
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": str(python),
        "spark.yarn.jars": f"local:{jars}/*",
        "spark.yarn.stagingDir": f"file://{folder}",
        "spark.executor.instances": "1",
        "spark.executor.resource.gpu.amount": "1",
        "spark.executor.resource.gpu.discoveryScript": str(discovery),
        "spark.task.resource.gpu.amount": "1",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = (program, "--master", "yarn", "--deploy-mode", "client", *words, str(folder / "job.py"))
    environment = {"PYSPARK_PYTHON": str(python)}
    return sandbox.run(*command, timeout_s=CLIENT_S, environment=environment, check=False).returncode == 0


def run_distributed_shell(sandbox: Sandbox, folder: Path) -> bool:
    """Run one container of 50; return whether that succeeded."""
    return run_shell(sandbox, NOTE.format(notes=folder / "notes"), 50)


CLIENTS: dict[str, tuple[int, Client]] = {"distributed-shell": (60, run_distributed_shell), "spark": (75, run_spark)}


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until *condition* holds.

    Raises:
        RuntimeError: It does not within five minutes.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            message = f"Run must reach {what!r} within {PATIENCE_S:.0f} s; it did not. Look into the sandbox's logs."
            raise RuntimeError(message)
        time.sleep(0.1)


def one_run(sandbox: Sandbox, folder: Path, held: int, client: Client) -> tuple[bool, float]:
    """Return whether the client succeeded, and how many seconds after a holder's end its container began."""
    hold_share(sandbox, folder / "holder", held)
    with ThreadPoolExecutor(1) as executor:
        done = executor.submit(client, sandbox, folder)
        wait_for(lambda: any(app.get("reservedMB") for app in applications(sandbox)) or done.done(), "the client waits")
        (folder / "holder" / "end").touch()
        ended_s = time.time()
        succeeded = done.result()
    notes = (folder / "notes").read_text().split() if (folder / "notes").exists() else []
    return succeeded and notes[1:2] == ["50"], float(notes[2]) - ended_s if notes else float("nan")


def turned_away(sandbox: Sandbox) -> dict[str, int]:
    """Return how many containers the node with GPUs has refused, and how many it has let wait."""
    (node,) = [each for each in sandbox.get("nodes")["nodes"]["node"] if each.get("nodeLabels")]
    url = f"http://{node['nodeHTTPAddress']}/jmx?qry=org.gpusage:type=Metrics"
    (bean,) = requests.get(url, timeout=30).json()["beans"]
    return {name: bean[name] for name in ("CONTAINERS_REFUSED", "CONTAINERS_WAITED")}


def main() -> int:
    """Print what came of all runs; exit with 1 if one did not succeed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--client", choices=sorted(CLIENTS), default="distributed-shell")
    parser.add_argument("--limit-s", type=float, default=3600, help="begin no run after this time")
    options = parser.parse_args()
    held, client = CLIENTS[options.client]
    plan = ClusterPlan(
        nodes=parse_nodes("1xv100:2,1xcpu:0"),
        jar=build_jar(),
        site_settings=SITE_SETTINGS,
        scheduler_settings=SCHEDULER_SETTINGS,
    )
    outcomes: list[tuple[bool, float]] = []
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, start_sandbox(plan) as sandbox:
        hold_share(sandbox, Path(folder) / "other", held)
        for number in range(options.runs):
            if time.monotonic() - begun_s > options.limit_s:
                break
            outcomes.append(one_run(sandbox, Path(folder) / str(number), held, client))
            print(f"run {number + 1}: {'succeeded' if outcomes[-1][0] else 'FAILED'}", file=sys.stderr)
            if not outcomes[-1][0]:
                print(*applications(sandbox)[-3:], turned_away(sandbox), sep="\n", file=sys.stderr)
        away = turned_away(sandbox)
    good = sum(succeeded for succeeded, _ in outcomes)
    waits_s = sorted(wait_s for succeeded, wait_s in outcomes if succeeded)
    print(f"{options.client}: asked 50 beside {held} and {held}: {good} of {len(outcomes)} runs succeeded")
    print(f"containers that a node refused: {away['CONTAINERS_REFUSED']}, let wait: {away['CONTAINERS_WAITED']}")
    if waits_s:
        median_s = statistics.median(waits_s)
        print(f"from a holder's end to the container's command: median {median_s:.1f} s, most {waits_s[-1]:.1f} s")
    return 0 if good == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
