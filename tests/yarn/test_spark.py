"""Spark from PyPI on our YARN: its masters know nothing of shares, and get them. Skipped where there is no Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import yarn_applications as apps
import yarn_masters as masters
from gpusage_yarn.sandbox import ClusterPlan, Sandbox, parse_nodes
from gpusage_yarn.sandbox.trial import SITE_SETTINGS

NewCluster = Callable[..., Sandbox]
SPARK_SUBMIT = shutil.which("spark-submit")
pytestmark = [
    pytest.mark.yarn,
    pytest.mark.skipif(SPARK_SUBMIT is None, reason="spark-submit must be on the PATH: uv pip install pyspark"),
]

JOB = """
import os
from pyspark import SparkContext, TaskContext
names = ("CONTAINER_ID", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
see = lambda _: [" ".join([os.environ[name] for name in names] + TaskContext.get().resources()["gpu"].addresses)]
for line in SparkContext().parallelize(range(8), 8).mapPartitions(see).distinct().collect():
    print("executor", line)
"""
DISCOVERY = """#!/bin/sh
echo '{"name": "gpu", "addresses": ["0"]}'
"""


@pytest.mark.parametrize("mode", ["cluster", "client"])
def test_sparks_executors_get_shares_for_gpus(new_cluster: NewCluster, jar: Path, tmp_path: Path, mode: str) -> None:
    cluster = new_cluster(ClusterPlan(nodes=parse_nodes("1xv100:1,1xa100:1"), jar=jar, site_settings=SITE_SETTINGS))
    plan = masters.plan(share="40", labels="a100,v100", memory_mib="0")
    said = run_spark(cluster, tmp_path, mode, plan)
    (report,) = apps.applications(cluster)
    assert report["finalStatus"] == "SUCCEEDED", report["diagnostics"]
    assert report["appNodeLabelExpression"] == "a100"
    outputs = [said, *(path.read_text() for path in cluster.logs.glob(f"containers/*/{report['id']}/*/stdout"))]
    seen = [line.split()[2:] for text in outputs for line in text.splitlines() if line.startswith("executor ")]
    assert seen == [["0", "40", "0"]] * 2  # both of them on the one A100


def run_spark(sandbox: Sandbox, folder: Path, mode: str, plan: str) -> str:
    """Run the job in two executors of one GPU each, as Spark counts; return what spark-submit printed."""
    job, discovery = folder / "job.py", folder / "discover"
    job.write_text(JOB)
    discovery.write_text(DISCOVERY)
    discovery.chmod(0o755)
    python = Path(str(SPARK_SUBMIT)).with_name("python")
    jars = sandbox.run(str(python), "-c", "import pyspark; print(pyspark.__path__[0])").stdout.strip() + "/jars"
    settings = {
        "spark.yarn.appMasterEnv.GPUSAGE_PLAN": plan,
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": str(python),
        "spark.yarn.jars": f"local:{jars}/*",
        "spark.yarn.stagingDir": f"file://{folder}",
        "spark.executor.instances": "2",
        "spark.executor.resource.gpu.amount": "1",
        "spark.executor.resource.gpu.discoveryScript": str(discovery),
        "spark.task.resource.gpu.amount": "1",
        "spark.scheduler.minRegisteredResourcesRatio": "1",  # both executors before the first task
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    environment = {"PYSPARK_PYTHON": str(python)}
    command = (str(SPARK_SUBMIT), "--master", "yarn", "--deploy-mode", mode, *words, str(job))
    return sandbox.run(*command, timeout_s=240, environment=environment).stdout
