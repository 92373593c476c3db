"""Clients of YARN that nobody here wrote: how each is run, and how a run ended.

Each runs the same work as the clients of Slurm: a small training that does well on a share, and a large one that
runs out of memory on any share.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import yarn_applications as apps
from client_installations import install_from_pypi
from gpusage_sandboxes.yarn import Sandbox
from java_programs import compile_java
from slurm_clients import LIMIT_S, copy_work, shares

SMALL = "model=small.onnx,batch=8,mode=infer"
LARGE = "model=large.onnx,batch=52,mode=train,utilization=20"
TRAINING = "model=small.onnx,batch=8,mode=train,utilization=20,processes=1"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that lives for seconds: half of the processor time that Spark's driver and executor take to start."""
DISCOVERY = """#!/bin/sh
echo '{"name": "gpu", "addresses": ["0"]}'
"""
MIG = "nvidia/miggpu"
_DEVICES = re.compile(r'^export CUDA_VISIBLE_DEVICES="([^"]*)"$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A program that asks YARN for GPUs.

    Attributes:
        command: What its user types, from the folder with the work and the card of its model.
        comment: What the user says of the model.
        training: The training's name, ``small`` or ``large``.
        unlabelled: Whether it names no label and YARN gives it none, so that the node with GPUs must have none.
    """

    name: str
    command: Callable[[Sandbox, Path, Client, str], list[str]]
    comment: str = SMALL
    training: str = "small"
    unlabelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an application ended.

    Attributes:
        output: What the training has written where its client shows it.
        application: What the ResourceManager said.
        containers: How many there were, the master's left out.
        runs: How often the training ran.
        master_node: Where the master ran; of Spark in cluster mode, the driver.
        shares: The part of a GPU that each run had, in percent.
        devices: The GPUs that each container was told to use, the master's left out.
    """

    exit_status: int
    output: list[str]
    application: str
    containers: int
    runs: int
    master_node: str = field(compare=False)
    shares: list[int] = field(compare=False)
    devices: list[str] = field(compare=False)
    printed: str = field(compare=False)


def distributed_shell(
    sandbox: Sandbox, folder: Path, client: Client, card: str, *, program: str = "training.py", **options: str
) -> list[str]:
    """Return the command that runs containers of Hadoop's distributed shell, by default one with a GPU."""
    jar = next(sandbox.hadoop.jars.glob("hadoop-yarn-applications-distributedshell-*.jar"))
    chosen = {"container_resources": "memory-mb=256,vcores=1,yarn.io/gpu=1", **options}
    if "placement_spec" not in chosen:
        chosen.setdefault("num_containers", "1")
    return [
        *("yarn", apps.DISTRIBUTED_SHELL, "-jar", str(jar), "-master_memory", "256"),
        *("-shell_command", f"{sys.executable} {folder}/{program} {client.training}"),
        *("-shell_env", f"GPUSAGE_CARD={card}", "-shell_env", f"GPUSAGE_COMMENT={client.comment}"),
        *(word for key, value in chosen.items() for word in (f"-{key}", value)),
    ]


def sliced_shell(sandbox: Sandbox, folder: Path, client: Client, card: str) -> list[str]:
    """Return the command that runs a container of Hadoop's distributed shell with a slice of another plugin's."""
    options = {"container_resources": f"memory-mb=256,vcores=1,{MIG}=1", "shell_env": "CUDA_VISIBLE_DEVICES=MIG-1"}
    if sandbox.record.node_ports.keys() > {"v100-1"}:  # on the node with GPUs
        options["node_label_expression"] = "v100"
    return distributed_shell(sandbox, folder, client, card, **options)


def spark(
    sandbox: Sandbox,
    folder: Path,
    client: Client,
    card: str,
    *,
    program: str = "with_spark.py NAME",
    settings: Mapping[str, str | None] = MappingProxyType({}),
) -> list[str]:
    """Return the command that runs *program* by Spark; by default one executor with one GPU, one task at a time."""
    programs = install_spark()
    (jars,) = programs.parent.glob("lib/python*/site-packages/pyspark/jars")
    discovery = folder / "one-gpu"
    discovery.write_text(DISCOVERY)
    discovery.chmod(0o755)
    defaults = {
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": str(programs / "python"),
        "spark.yarn.appMasterEnv.PYTHONPATH": str(folder),
        "spark.yarn.appMasterEnv.GPUSAGE_CARD": card,
        "spark.yarn.appMasterEnv.GPUSAGE_COMMENT": client.comment,
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
    chosen = {key: value for key, value in {**defaults, **settings}.items() if value is not None}
    options = [word for key, value in chosen.items() for word in ("--conf", f"{key}={value}")]
    python = {"PYSPARK_PYTHON": programs / "python", "SPARK_HOME": jars.parent, "PYTHONPATH": folder}
    variables = [f"{key}={value}" for key, value in python.items()] + [f"SPARK_SUBMIT_OPTS={QUICK}"]
    typed = program.replace("NAME", client.training).replace("DISCOVERY", str(discovery)).split()
    return ["env", *variables, str(programs / "spark-submit"), "--master", "yarn", *options, *typed]


def install_spark() -> Path:
    """Return the folder of Spark's programs; skip where it cannot be had."""
    return install_from_pypi("pyspark", "pyspark==4.3.0")


def flink(sandbox: Sandbox, folder: Path, client: Client, card: str) -> list[str]:
    """Return the command that runs a program of Flink's in application mode: its one TaskManager has a GPU."""
    (home,) = install_flink().parent.glob("lib/python*/site-packages/pyflink")
    java = sandbox.hadoop.java
    built = folder / "flink"
    for part in ("classes", "conf", "lib"):
        (built / part).mkdir(parents=True)
    for jar in (*home.glob("lib/flink-dist-*.jar"), *home.glob("lib/log4j-*.jar")):
        (built / "lib" / jar.name).hardlink_to(jar) if same_device(jar, built) else shutil.copy(jar, built / "lib")
    program = compile_java(java, folder / "WithFlink.java", f"{built}/lib/*", built / "classes")
    opened = " ".join(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "util", "time"))
    settings = {
        "execution.target": "yarn-application",
        "env.java.opts.all": f"{QUICK} {opened}",
        "jobmanager.memory.process.size": "768m",
        "taskmanager.memory.process.size": "1024m",
        "taskmanager.memory.managed.size": "0m",
        "restart-strategy.type": "none",
        "external-resources": "gpu",
        "external-resource.gpu.amount": "1",
        "external-resource.gpu.yarn.config-key": "yarn.io/gpu",
        "containerized.master.env.GPUSAGE_CARD": card,
        "containerized.master.env.GPUSAGE_COMMENT": client.comment,
        "yarn.staging-directory": f"file://{folder}",
        "yarn.application-attempts": "1",
    }
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in settings.items()]
    (built / "conf" / "config.yaml").write_text("".join(lines))
    classpath = f"{built}/lib/*:{sandbox.layout.conf('client')}:{sandbox.hadoop.jars}/*"
    return [
        *("env", f"FLINK_CONF_DIR={built}/conf", f"FLINK_LIB_DIR={built}/lib", str(java.program)),
        *(*QUICK.split(), *opened.split(), "-cp", classpath, "org.apache.flink.client.cli.CliFrontend"),
        *("run-application", "-t", "yarn-application", "-c", "WithFlink", str(program)),
        *(sys.executable, f"{folder}/training.py", client.training),
    ]


def install_flink() -> Path:
    """Return the folder beside Flink's distribution; skip where it cannot be had."""
    return install_from_pypi("flink", "apache-flink-libraries==1.20.5")


def same_device(path: Path, other: Path) -> bool:
    """Return whether a file can have a second name in another folder."""
    return path.stat().st_dev == other.stat().st_dev


DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.executor.instances": None,
}
NONE_BY_DEFAULT = {
    f"spark.{part}": None
    for part in ("executor.resource.gpu.amount", "task.resource.gpu.amount", "executor.resource.gpu.discoveryScript")
}
CLUSTER = {"spark.submit.deployMode": "cluster"}
FRACTIONS = {"spark.executor.cores": "4", "spark.task.resource.gpu.amount": "0.25"}
SHELL = Client(name="distributed_shell", command=distributed_shell)
SPARK = Client(name="spark", command=spark)
CLIENTS = (
    SHELL,
    SPARK,
    Client(name="spark-cluster", command=partial(spark, settings=CLUSTER)),
    Client(name="spark-dynamic", command=partial(spark, program="with_spark_modes.py NAME 2", settings=DYNAMIC)),
    Client(
        name="spark-stages",
        command=partial(
            spark,
            program="with_spark_modes.py NAME 1 DISCOVERY",
            settings={**CLUSTER, **DYNAMIC, **NONE_BY_DEFAULT},
        ),
    ),
    Client(name="spark-fractions", command=partial(spark, program="with_spark_modes.py NAME 4", settings=FRACTIONS)),
    Client(name="flink", command=flink),
)
LARGE_CLIENTS = tuple(replace(CLIENTS[index], comment=LARGE, training="large") for index in (0, 2))
CONSTRAINED = Client(
    name="constrained",
    command=partial(distributed_shell, placement_spec="train(2),NOTIN,NODE,else"),
    unlabelled=True,
)
SLICED = Client(name="sliced", command=sliced_shell)
RANKS = Client(
    name="ranks",
    command=partial(distributed_shell, program="together.py 2", num_containers="2"),
    comment=TRAINING,
)


def run_client(sandbox: Sandbox, client: Client) -> Ending:
    """Run the training of *client* inside *sandbox*, and return how it ended."""
    folder = sandbox.layout.jobs / client.name
    copy_work(folder)
    gpusage = (sys.executable, "-m", "gpusage.cli")
    card = sandbox.run("env", "-C", str(folder), *gpusage, "job-card", client.comment).stdout.strip()
    known = {app["id"] for app in apps.applications(sandbox)}
    words = ("env", "-C", str(folder), *client.command(sandbox, folder, client, card))
    done = sandbox.run(*words, check=False, timeout_s=LIMIT_S)
    [new] = [app["id"] for app in apps.applications(sandbox) if app["id"] not in known]
    app = apps.wait_for_state(sandbox, new, *apps.ENDED)  # Spark's client may end before the ResourceManager knows
    containers = sorted(sandbox.logs.glob(f"containers/*/{app['id']}/*"))
    [master] = [path for path in containers if path.name.endswith("_000001")]
    workers = [path for path in containers if path != master]
    texts = [done.stdout, *(path.read_text() for each in containers for path in each.glob("*out"))]
    percents = shares(folder / "runs.log")[client.training]
    return Ending(
        exit_status=done.returncode,
        output=[line for text in texts for line in text.splitlines() if ": slope " in line],
        application=f"{app['state']} {app['finalStatus']}",
        containers=len(workers),
        runs=len(percents),
        master_node=master.parents[1].name,
        shares=percents,
        devices=[gpus for each in workers for gpus in _DEVICES.findall(launch_script(each))],
        printed="\n".join([shlex.join(words), done.stdout, done.stderr, app["diagnostics"]]),
    )


def launch_script(container: Path) -> str:
    """Return the script by which YARN started a container, as its log folder has it."""
    script = container / "launch_container.sh"
    return script.read_text() if script.exists() else ""
