"""Masters that nobody here wrote, on nodes that offer shares alone, with no gpusaged: Hadoop's distributed shell."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import yarn_applications as apps
import yarn_masters as masters
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.settings import SCHEDULER_SETTINGS, SITE_SETTINGS
from yarn_nodes import relabel

pytestmark = pytest.mark.yarn

QUEUE = "yarn.scheduler.capacity.root.small"
HOLD = "env; until test -e {file}; do sleep 0.1; done"
ONE = ("-num_containers", "1", "-master_memory", "128")


@pytest.fixture(scope="module")
def cluster(jar: Path) -> Iterator[Sandbox]:
    """Return a cluster of one node with two V100, and one without a GPU; a queue allows half a GPU at most."""
    plan = ClusterPlan(
        nodes=parse_nodes("1xv100:2,1xcpu:0"),
        jar=jar,
        queues=("default", "small"),
        site_settings={**SITE_SETTINGS, "yarn.resourcemanager.placement-constraints.handler": "scheduler"},
        scheduler_settings={
            **SCHEDULER_SETTINGS,
            f"{QUEUE}.maximum-allocation": "memory-mb=16384,vcores=4,yarn.io/gpu=8,gpusage.io/share=50",
        },
    )
    with start_sandbox(plan) as sandbox:
        yield sandbox


def container_options(resources: str) -> tuple[str, ...]:
    """Return the options for one container with *resources*, on whatever node."""
    return (*ONE, "-container_resources", f"memory-mb=64,vcores=1,{resources}")


def devices(printed: object) -> list[str]:
    """Return the GPUs that containers saw."""
    return [masters.variable(text, "CUDA_VISIBLE_DEVICES") for text in printed if "GPUSAGE_SHARE" in text]  # type: ignore[attr-defined]


def test_distributed_shell_waits_where_the_room_is_spread_over_two_gpus(cluster: Sandbox, tmp_path: Path) -> None:
    """Held 60 and 60, asked 50: YARN counts 80, no GPU has more than 40."""
    plan = masters.plan(share="60", labels="v100")
    held = []
    try:
        for name in ("one", "two"):  # one after the other, so that the second has GPU 1
            held.append(masters.submit(cluster, HOLD.format(file=tmp_path / name), plan=plan))
            masters.wait_for_output(cluster, held[-1])
        before = masters.node_metrics(cluster, "v100-1")
        with ThreadPoolExecutor(1) as executor:
            printed = executor.submit(
                apps.run_distributed_shell,
                cluster,
                "env",
                *container_options("gpusage.io/share=50"),
                "-node_label_expression",
                "v100",
            )
            try:
                apps.wait_until(
                    cluster,
                    lambda: any(app.get("reservedMB") for app in apps.applications(cluster)),
                    "the node is reserved",
                )
            finally:
                (tmp_path / "two").touch()
            assert devices(printed.result()) == ["1"]
        after = masters.node_metrics(cluster, "v100-1")
        assert after["CONTAINERS_REFUSED"] == before["CONTAINERS_REFUSED"]
    finally:  # whatever fails, the next test finds both GPUs free
        for name in ("one", "two"):
            (tmp_path / name).touch()
        masters.wait_for_end(cluster, *held)


def test_whole_gpus_are_whole_gpus_without_a_plan_without_gpusaged_and_with_the_switch(cluster: Sandbox) -> None:
    assert devices(apps.run_distributed_shell(cluster, "env", *container_options("yarn.io/gpu=1"))) == ["0"]
    (cluster.layout.etc / "off").touch()
    try:
        (text,) = [
            text
            for text in apps.run_distributed_shell(cluster, "env", *container_options("yarn.io/gpu=2"))
            if "GPUSAGE_SHARE" in text
        ]
    finally:
        (cluster.layout.etc / "off").unlink()
    assert masters.variable(text, "CUDA_VISIBLE_DEVICES") == "0,1"
    assert masters.variable(text, "CUDA_MPS_PIPE_DIRECTORY") == ""


def test_requests_with_placement_constraints_keep_their_gpus(cluster: Sandbox) -> None:
    """YARN sends what names no partition to nodes without a label; so the node with GPUs has none here."""
    relabel(cluster, "v100-1", "")
    try:
        options = ("-master_memory", "128", "-placement_spec", "train(2),NOTIN,NODE,else")
        resources = ("-container_resources", "memory-mb=64,vcores=1,yarn.io/gpu=1")
        printed = apps.run_distributed_shell(cluster, "env", *options, *resources)
    finally:
        relabel(cluster, "v100-1", "v100")
    assert sorted(devices(printed)) == ["0", "1"]


def test_one_gpu_type_needs_no_label(cluster: Sandbox, tmp_path: Path) -> None:
    config = tmp_path / "gpusage.toml"
    config.write_text((cluster.layout.etc / "gpusage.toml").read_text() + '[yarn]\ngpu_type = "v100"\n')
    model = str(Path(__file__).resolve().parents[2] / "examples" / "models" / "dlrm.onnx")
    command = (sys.executable, "-m", "gpusage.cli", "yarn", "submit", "--model", f"{model},batch=8,mode=infer")
    relabel(cluster, "v100-1", "")
    try:
        words = (*command, "--memory-mib", "64", "--json", "--", "env")
        environment = {**cluster.environment, "GPUSAGE_CONFIG": str(config)}
        done = cluster.run(*words, timeout_s=apps.PATIENCE_S, environment=environment)
    finally:
        relabel(cluster, "v100-1", "v100")
    document = json.loads(done.stdout)
    assert (document["plan"]["labels"], document["end"]["state"]) == (["v100"], "SUCCEEDED")
    (output,) = masters.outputs(cluster, document["application"]).values()
    assert masters.variable(output, "GPUSAGE_SHARE") == str(document["plan"]["share"])
    assert document["plan"]["share"] < 100


def test_a_master_may_ask_for_a_gpu_itself(cluster: Sandbox) -> None:
    resources = ("-master_resources", "memory-mb=128,vcores=1,yarn.io/gpu=1")
    known = {app["id"] for app in apps.applications(cluster)}
    assert apps.run_distributed_shell(cluster, "echo run", *ONE, *resources) == ["run\n"]
    (mine,) = {app["id"] for app in apps.applications(cluster)} - known
    scripts = [*cluster.layout.state.glob(f"v100-1/**/{mine}/*_01_000001/launch_container.sh")]
    assert scripts
    assert all('export CUDA_VISIBLE_DEVICES="0"' in script.read_text() for script in scripts)


def test_no_variable_raises_what_a_share_may_use(cluster: Sandbox) -> None:
    options = (*container_options("gpusage.io/share=25"), "-node_label_expression", "v100")
    printed = apps.run_distributed_shell(cluster, "env", *options, "-shell_env", "GPUSAGE_THREAD_PERCENT=100")
    (text,) = [text for text in printed if "GPUSAGE_SHARE" in text]
    assert masters.variable(text, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == "25"
    assert masters.variable(text, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") == "0=3911M"  # of 16144, less a reserve


def test_more_than_a_queue_allows_is_refused_by_yarn_and_never_made_less(cluster: Sandbox) -> None:
    app = masters.submit(cluster, plan=masters.plan(share="75", labels="v100"), queue="small")
    (report,) = masters.wait_for_end(cluster, app)
    assert report["finalStatus"] == "FAILED"
    assert "greater than maximum allowed allocation" in report["diagnostics"]
