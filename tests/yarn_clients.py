"""Clients of YARN that nobody here wrote: how each is run, and how a run ended.

Each runs the same work as the clients of Slurm: a small training that does well on a share, and a large one that
runs out of memory on any share.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import yarn_applications as apps
from client_installations import install_from_pypi
from gpusage_sandboxes.yarn import Sandbox
from slurm_clients import LIMIT_S, copy_work, shares

MODELS = {
    "small": "model=small.onnx,batch=8,mode=infer",
    "large": "model=large.onnx,batch=52,mode=train,utilization=20",
}
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that lives for seconds: half of the processor time that Spark's driver and executor take to start."""
DISCOVERY = """#!/bin/sh
echo '{"name": "gpu", "addresses": ["0"]}'
"""


class YarnPair(NamedTuple):
    """The same cluster twice."""

    without: Sandbox
    enforcing: Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an application ended.

    Attributes:
        output: What the training has written where its client shows it.
        application: What the ResourceManager said.
        containers: How many there were, the master's left out.
        master_node: Where the master ran; of Spark in cluster mode, the driver.
    """

    exit_status: int
    output: list[str]
    application: str
    containers: int
    master_node: str = field(compare=False)
    shares: list[int] = field(compare=False)
    printed: str = field(compare=False)


Command = Callable[[Sandbox, str, str], list[str]]
"""What its user types, from the training's name and the card of its model."""


def distributed_shell(sandbox: Sandbox, name: str, card: str) -> list[str]:
    """Return the command that runs one container of Hadoop's distributed shell."""
    jar = next(sandbox.hadoop.jars.glob("hadoop-yarn-applications-distributedshell-*.jar"))
    folder = sandbox.layout.jobs / "distributed_shell"
    return [
        *("yarn", apps.DISTRIBUTED_SHELL, "-jar", str(jar), "-num_containers", "1", "-master_memory", "256"),
        *("-shell_command", f"{sys.executable} {folder}/training.py {name}"),
        *("-shell_env", f"GPUSAGE_CARD={card}", "-shell_env", f"GPUSAGE_COMMENT={MODELS[name]}"),
        *("-container_resources", "memory-mb=256,vcores=1,yarn.io/gpu=1"),
    ]


def spark(sandbox: Sandbox, name: str, card: str) -> list[str]:
    """Return the command that runs one executor of Spark."""
    programs = install_spark()
    folder = sandbox.layout.jobs / "spark"
    (jars,) = programs.parent.glob("lib/python*/site-packages/pyspark/jars")
    discovery = folder / "one-gpu"
    discovery.write_text(DISCOVERY)
    discovery.chmod(0o755)
    settings = {
        "spark.submit.deployMode": "client" if name == "small" else "cluster",
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": str(programs / "python"),
        "spark.yarn.appMasterEnv.PYTHONPATH": str(folder),
        "spark.yarn.appMasterEnv.GPUSAGE_CARD": card,
        "spark.yarn.appMasterEnv.GPUSAGE_COMMENT": MODELS[name],
        "spark.executor.resource.gpu.amount": "1",
        "spark.task.resource.gpu.amount": "1",
        "spark.executor.resource.gpu.discoveryScript": str(discovery),
        "spark.executor.instances": "1",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.executor.extraJavaOptions": QUICK,
        "spark.yarn.am.extraJavaOptions": QUICK,
        "spark.executorEnv.PYTHONPATH": str(folder),
        "spark.yarn.jars": f"local:{jars}/*",
        "spark.yarn.stagingDir": f"file://{folder}",
        "spark.ui.enabled": "false",
    }
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    python = {"PYSPARK_PYTHON": programs / "python", "SPARK_HOME": jars.parent}
    variables = [f"{key}={value}" for key, value in python.items()] + [f"SPARK_SUBMIT_OPTS={QUICK}"]
    return ["env", *variables, str(programs / "spark-submit"), "--master", "yarn", *words, "with_spark.py", name]


def install_spark() -> Path:
    """Return the folder of Spark's programs; skip where it cannot be had."""
    return install_from_pypi("pyspark", "pyspark==4.3.0")


def run_client(sandbox: Sandbox, command: Command, name: str) -> Ending:
    """Run the training *name* by *command* inside *sandbox*, and return how it ended."""
    folder = sandbox.layout.jobs / command.__name__
    if not folder.exists():
        copy_work(folder)
    gpusage = (sys.executable, "-m", "gpusage.cli")
    card = sandbox.run("env", "-C", str(folder), *gpusage, "job-card", MODELS[name]).stdout.strip()
    (folder / "runs.log").unlink(missing_ok=True)  # of a first try that failed
    known = {app["id"] for app in apps.applications(sandbox)}
    words = ("env", "-C", str(folder), *command(sandbox, name, card))
    done = sandbox.run(*words, check=False, timeout_s=LIMIT_S)
    [new] = [app["id"] for app in apps.applications(sandbox) if app["id"] not in known]
    app = apps.wait_for_state(sandbox, new, *apps.ENDED)  # Spark's client may end before the ResourceManager knows
    outputs = list(sandbox.logs.glob(f"containers/*/{app['id']}/*/stdout"))
    [master] = sandbox.logs.glob(f"containers/*/{app['id']}/*_000001")
    workers = [path for path in outputs if not path.parent.name.endswith("_000001")]
    texts = [done.stdout, *(path.read_text() for path in outputs)]
    return Ending(
        exit_status=done.returncode,
        output=[line for text in texts for line in text.splitlines() if ": slope " in line],
        application=f"{app['state']} {app['finalStatus']}",
        containers=len(workers),
        master_node=master.parents[1].name,
        shares=shares(folder / "runs.log")[name],
        printed="\n".join([shlex.join(words), done.stdout, done.stderr, app["diagnostics"]]),
    )
