"""A job of Spark's that lacks GPU memory in a share gets a whole GPU the next time, whatever YARN says of its end."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial

import pytest

import yarn_applications as apps
from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.gpusaged import DAEMON, start_gpusaged, stop_gpusaged, write_gpusage_toml
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.hadoop import prepare_java
from gpusage_sandboxes.yarn.jar import build_jar
from gpusage_sandboxes.yarn.settings import with_gpusage
from nvml import built_nvml
from yarn_clients import SMALL, Client, run_client, spark

pytestmark = [pytest.mark.yarn, pytest.mark.clients, pytest.mark.nightly]

NO_SAMPLER = "no-sampler"
TRIES = 3
"""The learner looks for new runs each second; on a busy machine Spark may be sooner."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Return a cluster whose sampler runs unless a file forbids it; a machine without Java has none."""
    try:
        prepare_java()
    except RequestError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("sampler")
    facts, command = folder / "facts", folder / "sampler"
    facts.write_text("utilization 40\nenergy 5000\nsm 30\ndram 20\n")
    command.write_text(
        f"#!/bin/sh\n[ -e $HADOOP_CONF_DIR/../{NO_SAMPLER} ] && exit\n"
        f"export LD_LIBRARY_PATH={built_nvml(folder)} NVML_STANDIN={facts}\n"
        f'exec {sys.executable} -m gpusage_yarn.usage.node "$@"\n'
    )
    command.chmod(0o755)
    settings = {
        "gpusage.daemon.limit-ms": "2000",
        "gpusage.daemon.rest-ms": "0",
        "gpusage.node.usage-command": str(command),
        "gpusage.node.usage-directory": str(folder / "usage"),
    }
    plan = with_gpusage(
        ClusterPlan(nodes=parse_nodes("1xv100:1,1xcpu:0"), site_settings=settings), build_jar(), "enforce"
    )
    with start_sandbox(plan) as sandbox:
        write_gpusage_toml(sandbox.layout, "enforce", "[learning]\nrefresh_s = 1\n")
        yield sandbox


@pytest.fixture
def fresh_cluster(cluster: Sandbox) -> Iterator[Sandbox]:
    """Return the cluster; gpusage remembers nothing of another test's jobs, or of this one's first try."""
    for path in cluster.layout.state.glob("decisions.db*"):
        path.unlink()
    start_gpusaged(cluster)
    yield cluster
    stop_gpusaged(cluster)


def newest_application(cluster: Sandbox) -> str:
    """Return the application that was submitted last."""
    return str(max(app["id"] for app in apps.applications(cluster)))


@pytest.mark.parametrize(
    ("mode", "comment", "end", "outcome"),
    [
        ("client", SMALL, "SUCCEEDED", "out_of_memory"),
        ("cluster", "model=large.onnx,batch=1,mode=infer", "FAILED", "failed"),  # of which the first case says nothing
    ],
)
def test_the_next_try_is_whole(fresh_cluster: Sandbox, mode: str, comment: str, end: str, outcome: str) -> None:
    """YARN counts Spark as succeeded where its driver is none of its containers; no sampler sees the other one."""
    cluster = fresh_cluster
    forbidden = cluster.layout.etc / NO_SAMPLER
    forbidden.touch() if outcome == "failed" else forbidden.unlink(missing_ok=True)
    settings = {"spark.submit.deployMode": mode, "spark.task.maxFailures": "1", "spark.yarn.maxAppAttempts": "1"}
    client = Client(name=f"misses-{mode}", command=partial(spark, settings=settings), comment=comment, training="large")
    first = run_client(cluster, client)
    assert first.exit_status != 0
    assert first.application == f"FINISHED {end}", first.printed
    assert max(first.shares) < 100

    # The nodes go on to show the usage of an earlier test's application.
    log, miss = cluster.layout.log_file(DAEMON), re.compile(rf"{newest_application(cluster)} of .*: {outcome} \|")
    cluster.wait_for(lambda: miss.search(log.read_text()), "gpusaged has recorded the miss")
    tries = [run_client(cluster, client)]
    while tries[-1].shares != [100] and len(tries) < TRIES:
        tries.append(run_client(cluster, client))
    assert (tries[-1].exit_status, tries[-1].shares) == (0, [100]), tries[-1].printed
