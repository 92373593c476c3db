"""Two real clusters for clients: one with gpusage enforcing, one without gpusage."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from ends import give_training, sees_ends
from gpusage_hooks.errors import RequestError
from gpusage_sandboxes import slurm, yarn
from gpusage_sandboxes.gpusaged import start_gpusaged, stop_gpusaged
from gpusage_sandboxes.packages import require_apt
from gpusage_sandboxes.slurm.creation import install_plugin
from gpusage_sandboxes.yarn.hadoop import prepare_hadoop, prepare_java
from gpusage_sandboxes.yarn.jar import build_jar
from gpusage_sandboxes.yarn.settings import with_gpusage
from java_programs import compile_java
from slurm_clients import SlurmPair
from slurm_jobs import GENEROUS
from yarn_clients import MIG
from yarn_nodes import relabel
from yarn_pairs import GPU_NODE, YarnPair

MIG_PLUGIN = Path(__file__).parents[1] / "standins" / "java" / "MigPlugin.java"
DEFAULT_LABEL = "yarn.scheduler.capacity.root.default.default-node-label-expression"
DEVICES = "yarn.nodemanager.pluggable-device-framework"
SLURM = slurm.ClusterPlan(nodes=slurm.parse_nodes("1xv100:2"), accounting=True)
YARN = yarn.ClusterPlan(
    nodes=yarn.parse_nodes("1xv100:2"),
    resource_types=(MIG,),
    site_settings={"yarn.resourcemanager.placement-constraints.handler": "scheduler"},
    node_settings={f"{DEVICES}.enabled": "true", f"{DEVICES}.device-classes": "standins.MigPlugin"},
)
WITH_A_NODE_FOR_MASTERS = yarn.parse_nodes("1xv100:2,1xcpu:0")
YARN_SETTINGS = {**YARN.site_settings, "gpusage.daemon.limit-ms": "2000", "gpusage.daemon.rest-ms": "0"}


@pytest.fixture(scope="session")
def slurm_clusters(request: pytest.FixtureRequest) -> Iterator[SlurmPair]:
    """Return both clusters; a machine without apt has no Slurm to test on."""
    try:
        require_apt()
    except RequestError as error:
        pytest.skip(str(error))
    release = request.config.getoption("--slurm-release")
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        starts = [threads.submit(slurm.start_sandbox, SLURM, release=release) for _ in SlurmPair._fields]
        pair = SlurmPair(*(stack.enter_context(start.result()) for start in starts))
        install_plugin(pair.enforcing, "enforce", f"{GENEROUS}[learning]\nrefresh_s = 1\n")
        if sees_ends():
            give_training(pair.enforcing)
        yield pair


@pytest.fixture
def slurm_pair(slurm_clusters: SlurmPair) -> SlurmPair:
    """Return both clusters; gpusage remembers nothing of another test's jobs."""
    enforcing = slurm_clusters.enforcing
    stop_gpusaged(enforcing)
    for path in enforcing.layout.state.glob("decisions.db*"):
        path.unlink()
    start_gpusaged(enforcing)
    return slurm_clusters


@pytest.fixture(scope="session")
def yarn_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnPair]:
    """Return both clusters; a machine without Java has no YARN to test on."""
    try:
        java = prepare_java()
    except RequestError as error:
        pytest.skip(str(error))
    hadoop = prepare_hadoop()
    plugin = compile_java(java, MIG_PLUGIN, hadoop.classpath, tmp_path_factory.mktemp("mig"))
    both = replace(YARN, further_jars=(plugin,))
    plain = replace(both, whole_gpus=2, share_per_gpu=0, scheduler_settings={DEFAULT_LABEL: ""})
    with_shares = with_gpusage(
        replace(both, nodes=WITH_A_NODE_FOR_MASTERS, site_settings=YARN_SETTINGS), build_jar(), "enforce"
    )
    with ExitStack() as stack:
        pair = YarnPair(*(stack.enter_context(yarn.start_sandbox(plan)) for plan in (plain, with_shares)))
        relabel(pair.without, GPU_NODE, "")  # without gpusage nobody needs labels
        yield pair
