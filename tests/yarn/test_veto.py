"""Jobs that would hurt each other on one GPU are kept apart where another node has room, and no job waits for that."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import yarn_applications as apps
import yarn_masters as masters
from gpusage.devices.catalogue import builtin_catalogue
from gpusage_hooks.managers import Context
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.settings import SCHEDULER_SETTINGS, SITE_SETTINGS
from gpusage_yarn.observation import observe_cluster
from gpusage_yarn.settings import YarnSettings

pytestmark = pytest.mark.yarn

GPUSAGE = (sys.executable, "-m", "gpusage.cli")
MODELS = Path(__file__).parents[2] / "examples" / "models"
PROMISED = f"{MODELS}/dlrm.onnx,batch=8,mode=infer,slo=4ms"
"""Alone on a share, steps take up to 2.8 ms: beside training, where they may take twice as long, 4 might not hold."""
SERVING = f"{MODELS}/dlrm.onnx,batch=8,mode=infer"
TRAINING = f"{MODELS}/resnet18.onnx,batch=8,utilization=15"


@pytest.fixture(scope="module")
def cluster(jar: Path) -> Iterator[Sandbox]:
    """Return a cluster of two V100 on two nodes, and a node without a GPU for the masters."""
    nodes = parse_nodes("2xv100:1,1xcpu:0")
    plan = ClusterPlan(nodes=nodes, jar=jar, site_settings=SITE_SETTINGS, scheduler_settings=SCHEDULER_SETTINGS)
    with start_sandbox(plan) as sandbox:
        yield sandbox


def submitted(sandbox: Sandbox, model: str, hold: str, *options: str) -> tuple[str, str]:
    """Submit *model*, and return the node on which its container runs and what its user was told."""
    words = ("yarn", "submit", "--model", model, "--memory-mib", "128", "--detach", *options, "--", hold)
    done = sandbox.run(*GPUSAGE, *words, timeout_s=120)
    return place(sandbox, done.stdout.strip()), done.stderr


def place(sandbox: Sandbox, identity: str) -> str:
    """Return the node on which the one container of an application runs, once it does."""
    masters.wait_for_output(sandbox, identity)
    (node,) = masters.places(sandbox, identity)
    return node


def test_training_is_kept_off_a_promise_while_another_node_has_room_and_waits_for_none(
    cluster: Sandbox, tmp_path: Path
) -> None:
    masters.kill_all(cluster)  # what a first try that failed has left on the nodes
    hold = f"env; until test -e {tmp_path}/go; do sleep 0.1; done"
    promised, _ = submitted(cluster, PROMISED, hold)
    identity = cluster.node_id(promised)
    address = f"http://127.0.0.1:{cluster.record.rm_web_port}"
    context = Context(settings=YarnSettings(), catalogue=builtin_catalogue())
    (neighbour,) = observe_cluster((address,), context).neighbours  # as gpusaged sees it
    assert (neighbour.nodes, neighbour.workload.mode) == ((identity,), "infer")
    assert neighbour.workload.slo is not None
    assert neighbour.workload.slo.latency_s == 0.004

    ranked = cluster.run(*GPUSAGE, "colocate", TRAINING, "--running", "--gpu", "v100", "--json", check=False).stdout
    assert [partner["model"] for partner in json.loads(ranked)["partners"]] == [f"{MODELS}/dlrm.onnx"]

    partner = json.loads(ranked)["partners"][0]["job_id"]
    with ThreadPoolExecutor() as side_by_side:
        serving = side_by_side.submit(submitted, cluster, SERVING, hold, "--beside", partner)
        apart, printed = submitted(cluster, TRAINING, hold)
        near, _ = serving.result()
    assert near == promised  # one of two nodes with room
    assert apart != promised
    assert f"avoids {identity}, where a promised latency might not hold" in printed

    rest = str(100 - masters.used_share(cluster, apart))
    filling = masters.plan(share=rest, labels="v100", avoid=identity)
    assert place(cluster, masters.submit(cluster, hold, plan=filling)) == apart
    with ThreadPoolExecutor() as side_by_side:
        let_in = masters.plan(share="20", labels="v100", avoid=identity)
        executor = side_by_side.submit(place, cluster, masters.submit(cluster, hold, plan=let_in))
        late, printed = submitted(cluster, TRAINING, hold)
        assert executor.result() == promised  # no other node has room
    assert late == promised
    assert not re.search("avoids", printed)
    (tmp_path / "go").touch()
    apps.wait_until(cluster, lambda: all(app["state"] in apps.ENDED for app in apps.applications(cluster)), "all ended")
