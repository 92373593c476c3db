"""Our jar on a real ResourceManager and real NodeManagers: shares, generations, GPUs, and every kind of death."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import yarn_applications as apps
import yarn_masters as masters
from gpusage.node.dividing import PROGRAM
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.settings import SCHEDULER_SETTINGS, SITE_SETTINGS
from mps import control_in

pytestmark = pytest.mark.yarn

OURS = masters.PACKAGE
NODES = parse_nodes("1xv100:1,1xa100:1,1xh100:2,1xcpu:0")
SITE = {
    **SITE_SETTINGS,
    "yarn.nodemanager.aux-services": "gpusage_mps",
    "yarn.nodemanager.aux-services.gpusage_mps.class": f"{OURS}.MpsAuxiliaryService",
    "gpusage.node.gpu-memory-mib": "16000",
    "gpusage.node.mps-check-s": "1",
}
HOLD = "env; echo begun; until test -e {file}; do sleep 0.1; done"


@pytest.fixture(scope="module")
def plugged(jar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Return a cluster with all our classes: nodes of one V100, one A100 and two H100."""
    folder = tmp_path_factory.mktemp("plugged")
    command = folder / "gpusage-mps"
    control = control_in(folder)  # the device alone has a stand-in; the program is the one that nodes run
    command.write_text(f'#!/bin/sh\nexport GPUSAGE_MPS_CONTROL={control}\nexec {PROGRAM} "$@"\n')
    command.chmod(0o755)
    settings = {
        **SITE,
        "gpusage.switch-file": str(folder / "off"),
        "gpusage.node.mps-command": str(command),
        "gpusage.node.across-users": "true",
        "gpusage.node.mps-directory": str(folder / "mps"),
    }
    plan = ClusterPlan(nodes=NODES, jar=jar, site_settings=settings, scheduler_settings=SCHEDULER_SETTINGS)
    with start_sandbox(plan) as sandbox:
        yield sandbox


@pytest.fixture
def cluster(plugged: Sandbox) -> Iterator[Sandbox]:
    """Return that cluster, idle before and after; no GPU stays bound, no share stays given out."""
    yield plugged
    masters.kill_all(plugged)
    for node in plugged.nodes():
        apps.wait_until(plugged, partial(is_idle, plugged, node), f"{node} has its GPUs and its share back")


def is_idle(sandbox: Sandbox, node: str) -> bool:
    """Return whether nothing of a node's GPUs is bound or given out."""
    return masters.has_all_gpus(sandbox, node) and masters.used_share(sandbox, node) == 0


def holding(sandbox: Sandbox, file: Path, count: int = 1, **plan: str) -> str:
    """Submit an application whose containers run until *file* exists, and wait for them."""
    app = masters.submit(sandbox, HOLD.format(file=file), plan=masters.plan(containers=str(count), **plan))
    masters.wait_for_output(sandbox, app, count)
    return app


def test_share_and_label_arrive_in_the_allocation(cluster: Sandbox, tmp_path: Path) -> None:
    app = holding(cluster, tmp_path / "go", share="42", labels="a100,v100", priority="1")

    (output,) = masters.outputs(cluster, app).values()
    assert list(cluster.logs.glob(f"containers/cpu-1/{app}/*_01_000001"))  # its master takes no place there
    assert masters.used_share(cluster, "a100-1") == 45  # the next step of the site's after 42
    assert masters.variable(output, "CUDA_VISIBLE_DEVICES") == "0"
    assert masters.variable(output, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == "45"
    assert masters.variable(output, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") == "0=6976M"  # 45 % of 16000, less a reserve
    assert masters.variable(output, "CUDA_MPS_CLIENT_PRIORITY") == "1"
    daemon = Path(masters.variable(output, "CUDA_MPS_PIPE_DIRECTORY"), "running")
    assert daemon.read_text() == "-d -multiuser-server device=0\n"

    (tmp_path / "go").touch()
    (report,) = masters.wait_for_end(cluster, app)
    assert (report["finalStatus"], report["diagnostics"]) == ("SUCCEEDED", "gpusage: exit status 0")


def test_the_command_arrives_as_typed_and_its_exit_status_comes_back(cluster: Sandbox) -> None:
    command = "echo \"a 'b' \\$HOME\" '$HOME' | tr a-z A-Z\nprintf '%s\\n' \"$X\" `echo tick` {{ }} <LOG_DIR>\nexit 7"
    command = command.replace(" <LOG_DIR>", "")
    app = masters.submit(cluster, command, plan=masters.plan(labels="a100"), variables={"X": 'it\'s "$y" `z` {{q}}\n2'})
    (report,) = masters.wait_for_end(cluster, app)
    (output,) = masters.outputs(cluster, app).values()
    assert output == "A 'B' $HOME $HOME\nit's \"$y\" `z` {{q}}\n2\ntick\n{{\n}}\n"
    assert report["finalStatus"] == "FAILED"
    assert report["diagnostics"].startswith("gpusage: exit status 7. ")


def test_a_user_cannot_raise_the_share_through_the_environment(cluster: Sandbox) -> None:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY")
    greedy = dict.fromkeys([*names, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_CLIENT_PRIORITY"], "100")
    app = masters.submit(
        cluster,
        plan=masters.plan(share="20", labels="h100", threads="100"),
        environment=greedy,
        variables={**greedy, "GPUSAGE_THREAD_PERCENT": "100"},
    )
    masters.wait_for_end(cluster, app)
    (output,) = masters.outputs(cluster, app).values()
    assert masters.variable(output, "CUDA_VISIBLE_DEVICES") == "0"
    assert masters.variable(output, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == "20"
    assert masters.variable(output, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") == "0=3100M"  # 20 % of 16000, less a reserve
    assert masters.variable(output, "CUDA_MPS_PIPE_DIRECTORY").endswith("/mps/0/pipe")
    assert masters.variable(output, "CUDA_MPS_CLIENT_PRIORITY") == ""


def test_50_and_50_share_a_gpu_and_60_and_50_never_do(cluster: Sandbox, tmp_path: Path) -> None:
    first = holding(cluster, tmp_path / "go", share="50", labels="h100")
    second = holding(cluster, tmp_path / "go", share="50", labels="h100")
    third = holding(cluster, tmp_path / "go", share="60", labels="h100")
    seen = {app: {gpu for name, (gpu, _) in bound(cluster, "h100-1", app)} for app in (first, second, third)}
    assert seen == {first: {"0"}, second: {"0"}, third: {"1"}}
    (tmp_path / "go").touch()
    masters.wait_for_end(cluster, first, second, third)


def test_containers_of_one_training_have_a_gpu_each_and_another_joins_them(cluster: Sandbox, tmp_path: Path) -> None:
    training = holding(cluster, tmp_path / "go", 2, share="25", labels="h100", apart="1")
    assert sorted(gpu for _, (gpu, _) in bound(cluster, "h100-1", training)) == ["0", "1"]
    other = holding(cluster, tmp_path / "go", 2, share="25", labels="h100")
    assert {gpu for _, (gpu, _) in bound(cluster, "h100-1", other)} == {"0"}  # the fullest, as ever
    third = masters.submit(cluster, plan=masters.plan(share="25", labels="h100", apart="1", containers="3"))
    apps.wait_until(cluster, lambda: len(masters.outputs(cluster, third)) == 2, "two of it run")
    (tmp_path / "go").touch()
    reports = masters.wait_for_end(cluster, training, other, third)
    assert [report["finalStatus"] for report in reports] == ["SUCCEEDED"] * 3


def bound(sandbox: Sandbox, node: str, app: str) -> list[tuple[str, tuple[str, int]]]:
    """Return the bindings of an application's containers on a node."""
    mark = app.removeprefix("application_")
    return [(name, binding) for name, binding in masters.bindings(sandbox, node).items() if mark in name]


def test_what_fits_a_node_but_no_gpu_waits_in_the_resource_manager(cluster: Sandbox, tmp_path: Path) -> None:
    first = holding(cluster, tmp_path / "one", share="75", labels="h100")
    second = holding(cluster, tmp_path / "two", share="75", labels="h100")
    before = unwelcome(cluster)
    late = masters.submit(cluster, plan=masters.plan(share="50", labels="h100"))  # 75 + 75 + 50 = 200, but 50 > 25
    apps.wait_until(cluster, lambda: reserved(cluster, late), "the node is reserved for it")
    assert masters.bean(masters.node_url(cluster, "h100-1"))["Free"] == "0=25,1=25"
    (tmp_path / "one").touch()
    reports = masters.wait_for_end(cluster, first, late)
    (output,) = masters.outputs(cluster, late).values()
    assert masters.variable(output, "CUDA_VISIBLE_DEVICES") == "0"  # it ran where the first did
    assert [report["finalStatus"] for report in reports] == ["SUCCEEDED", "SUCCEEDED"]
    assert unwelcome(cluster) == before
    (tmp_path / "two").touch()
    masters.wait_for_end(cluster, second)


def reserved(sandbox: Sandbox, app: str) -> bool:
    """Return whether YARN keeps a place for an application until there is room."""
    return bool(apps.application(sandbox, app).get("reservedMB"))


def unwelcome(sandbox: Sandbox) -> int:
    """Return how many containers were sent to the node with two GPUs for which none had room."""
    return masters.node_metrics(sandbox, "h100-1")["CONTAINERS_REFUSED"]


def test_what_no_gpu_has_room_for_goes_to_the_next_generation(cluster: Sandbox, tmp_path: Path) -> None:
    held = [holding(cluster, tmp_path / "go", share="75", labels="h100") for _ in range(2)]
    filling = holding(cluster, tmp_path / "free", share="100", labels="a100")
    before = unwelcome(cluster)
    late = masters.submit(cluster, plan=masters.plan(share="50", labels="h100,a100", fallback_after_s="3"))
    apps.wait_until(cluster, lambda: reserved(cluster, late), "it waits")
    (tmp_path / "free").touch()
    (report,) = masters.wait_for_end(cluster, late)
    assert report["finalStatus"] == "SUCCEEDED"
    assert unwelcome(cluster) == before
    assert masters.places(cluster, late) == {"a100-1"}
    (tmp_path / "go").touch()
    masters.wait_for_end(cluster, *held, filling)


def test_files_come_along(cluster: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "data.txt"
    file.write_text("forty-two")
    facts = file.stat()
    files = {"input": f"file://{file} {facts.st_size} {int(facts.st_mtime * 1000)}"}
    environment = {"GPUSAGE_FILES": masters.encoded(files)}
    app = masters.submit(cluster, "cat input", plan=masters.plan(labels="a100"), environment=environment)
    (report,) = masters.wait_for_end(cluster, app)
    assert report["finalStatus"] == "SUCCEEDED"
    assert list(masters.outputs(cluster, app).values()) == ["forty-two"]


def test_a_kill_ends_every_container(cluster: Sandbox, tmp_path: Path) -> None:
    app = holding(cluster, tmp_path / "never", 2, share="50", labels="h100")
    apps.kill(cluster, app)
    apps.wait_until(cluster, lambda: is_idle(cluster, "h100-1"), "both have ended")


def test_each_daemon_says_which_of_our_classes_it_runs(cluster: Sandbox) -> None:
    assert masters.bean(cluster.rm_url)["Classes"] == (
        "GpuSharePlacementRule,GpuShareProcessor,GpuShareResourceCalculator"
    )
    node = masters.bean(masters.node_url(cluster, "a100-1"))
    assert (node["Classes"], node["Version"]) == ("GpuShareNodeListener,MpsAuxiliaryService", "0.1.0")


def test_a_request_that_waits_goes_to_the_next_generation(cluster: Sandbox, tmp_path: Path) -> None:
    first = holding(cluster, tmp_path / "go", share="100", labels="a100")
    before = masters.metrics(cluster.rm_url)["FALLBACKS"]
    plan = masters.plan(share="100", labels="a100,h100", fallback_after_s="2")
    second = masters.submit(cluster, plan=plan, **{"app-node-label-expression": "a100"})
    (report,) = masters.wait_for_end(cluster, second)
    assert report["finalStatus"] == "SUCCEEDED"
    assert masters.metrics(cluster.rm_url)["FALLBACKS"] == before + 1
    assert masters.places(cluster, second) == {"h100-1"}
    (tmp_path / "go").touch()
    masters.wait_for_end(cluster, first)


def test_a_generation_with_gpus_and_no_memory_is_not_begun_on(cluster: Sandbox) -> None:
    fields = {"app-node-label-expression": "v100", "resource": {"memory": 16 * 1024, "vCores": 1}}
    hoarder = apps.submit(cluster, "sleep 600", **fields)
    apps.wait_until(cluster, lambda: apps.application(cluster, hoarder).get("allocatedMB") == 16 * 1024, "it is there")
    app = masters.submit(cluster, plan=masters.plan(labels="v100,a100"))
    (report,) = masters.wait_for_end(cluster, app)
    assert (report["finalStatus"], masters.places(cluster, app)) == ("SUCCEEDED", {"a100-1"})


def test_without_fallback_a_request_waits_for_its_generation(cluster: Sandbox, tmp_path: Path) -> None:
    first = holding(cluster, tmp_path / "go", share="60", labels="v100")
    second = masters.submit(cluster, plan=masters.plan(share="50", labels="v100"))
    apps.wait_for_state(cluster, second, "RUNNING")
    assert masters.outputs(cluster, second) == {}
    (tmp_path / "go").touch()
    reports = masters.wait_for_end(cluster, first, second)
    assert [report["finalStatus"] for report in reports] == ["SUCCEEDED", "SUCCEEDED"]


def test_a_killed_resource_manager_costs_no_container(cluster: Sandbox, tmp_path: Path) -> None:
    running = holding(cluster, tmp_path / "go", 2, share="50", labels="v100")
    waiting = masters.submit(cluster, plan=masters.plan(share="50", labels="v100"))
    apps.wait_for_state(cluster, waiting, "RUNNING")
    before = masters.bindings(cluster, "v100-1")
    cluster.kill_rm()
    cluster.start_rm()
    assert masters.bindings(cluster, "v100-1") == before
    apps.wait_until(cluster, lambda: masters.used_share(cluster, "v100-1") == 100, "shares are accounted for")
    assert masters.outputs(cluster, waiting) == {}
    (tmp_path / "go").touch()
    reports = masters.wait_for_end(cluster, running, waiting)
    assert [report["finalStatus"] for report in reports] == ["SUCCEEDED", "SUCCEEDED"]
    assert len(masters.outputs(cluster, running)) == 2
    (output,) = masters.outputs(cluster, waiting).values()
    assert masters.variable(output, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == "50"


def test_a_killed_node_manager_knows_its_gpus_again(cluster: Sandbox, tmp_path: Path) -> None:
    first = holding(cluster, tmp_path / "go", share="60", labels="h100")
    before = masters.bindings(cluster, "h100-1")
    cluster.kill_nm("h100-1")
    cluster.start_nm("h100-1")
    second = holding(cluster, tmp_path / "go", share="60", labels="h100")
    bindings = masters.bindings(cluster, "h100-1")
    assert masters.bean(masters.node_url(cluster, "h100-1"))["Free"] == "0=40,1=40"
    assert masters.node_metrics(cluster, "h100-1")["GPUS_UNKNOWN"] == 0
    assert before.items() <= bindings.items()
    assert Counter(gpu for gpu, _ in bindings.values()) == {"0": 1, "1": 1}
    (output,) = masters.outputs(cluster, second).values()
    assert masters.variable(output, "CUDA_VISIBLE_DEVICES") == "1"
    (tmp_path / "go").touch()
    reports = masters.wait_for_end(cluster, first, second)
    assert [report["finalStatus"] for report in reports] == ["SUCCEEDED", "SUCCEEDED"]


def test_a_container_that_ends_while_its_node_manager_is_dead_leaves_no_binding(
    cluster: Sandbox, tmp_path: Path
) -> None:
    app = holding(cluster, tmp_path / "go", share="60", labels="v100")
    cluster.kill_nm("v100-1")
    (tmp_path / "go").touch()
    cluster.start_nm("v100-1")
    (report,) = masters.wait_for_end(cluster, app)
    assert report["finalStatus"] == "SUCCEEDED"


def test_a_killed_master_finds_its_containers_again(cluster: Sandbox, tmp_path: Path) -> None:
    fields = {"max-app-attempts": 2, "keep-containers-across-application-attempts": True}
    command = HOLD.format(file=tmp_path / "go")
    app = masters.submit(cluster, command, plan=masters.plan(labels="h100", containers="2"), **fields)
    masters.wait_for_output(cluster, app, 2)
    masters.wait_for_running(cluster, app, 2)
    for process in master_processes(app):
        os.kill(process, signal.SIGKILL)
    apps.wait_until(cluster, lambda: second_master(cluster, app).count("goes on in") == 2, "both are found again")
    (tmp_path / "go").touch()
    (report,) = masters.wait_for_end(cluster, app)
    assert report["finalStatus"] == "SUCCEEDED"
    begun = [output for output in masters.outputs(cluster, app).values() if "begun" in output]
    assert len(begun) == 2


def master_processes(app: str) -> list[int]:
    """Return the Java processes of an application's masters."""
    actual = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        except OSError:
            continue
        if b"GpuShareApplicationMaster" in command and app.removeprefix("application_").encode() in environment:
            actual.append(int(path.name))
    return actual


def second_master(sandbox: Sandbox, app: str) -> str:
    """Return what the master of the second attempt wrote."""
    actual = sandbox.logs.glob(f"containers/*/{app}/container_*_02_000001/stdout")
    return "".join(path.read_text() for path in actual)


HOSTILE = {
    "too much": masters.plan(share="1000000000"),
    "negative": masters.plan(share="-1"),
    "not a number": masters.plan(share="NaN"),
    "control characters": masters.plan(labels="a\x00b\x1b[2J"),
    "broken JSON": masters.encoded('{"v":"1","share":"50"'),
    "no base64": "$(echo it is)`id`",
    "100 KB": "A" * 100_000,
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_plan_is_one_sentence_and_no_more(cluster: Sandbox, hostile: str) -> None:
    before = masters.metrics(cluster.rm_url)
    app = masters.submit(cluster, plan=HOSTILE[hostile])
    (report,) = masters.wait_for_end(cluster, app)
    after = masters.metrics(cluster.rm_url)
    assert after["PLANS_REFUSED"] == before["PLANS_REFUSED"] + 1
    assert after["FAILURES"] == before["FAILURES"]
    assert report["finalStatus"] == "FAILED"
    assert "exit status 2. Plan's" in report["diagnostics"]
    assert masters.outputs(cluster, app) == {}


def test_a_plan_of_a_megabyte_harms_nobody(cluster: Sandbox) -> None:
    app = apps.submit(cluster, "exit 3", environment={"GPUSAGE_PLAN": "A" * (1 << 20)})
    masters.wait_for_end(cluster, app)
    assert masters.metrics(cluster.rm_url)["FAILURES"] == 0


def test_a_label_that_does_not_exist_is_left_out(cluster: Sandbox) -> None:
    app = masters.submit(cluster, plan=masters.plan(labels="k80,a100"))
    (report,) = masters.wait_for_end(cluster, app)
    assert (report["finalStatus"], masters.places(cluster, app)) == ("SUCCEEDED", {"a100-1"})


def test_an_application_without_a_plan_is_untouched(cluster: Sandbox) -> None:
    app = masters.submit(cluster, environment={"CUDA_VISIBLE_DEVICES": "3"})
    (report,) = masters.wait_for_end(cluster, app)
    assert report["diagnostics"].startswith("gpusage: exit status 2. Plan's text must ")
    plain = apps.submit(cluster, "env 1><LOG_DIR>/stdout", environment={"CUDA_VISIBLE_DEVICES": "3"})
    masters.wait_for_end(cluster, plain)
    (path,) = cluster.logs.glob(f"containers/*/{plain}/*/stdout")
    assert masters.variable(path.read_text(), "CUDA_VISIBLE_DEVICES") == "3"


def test_two_hundred_submissions_at_once_are_all_there(cluster: Sandbox) -> None:
    plan, taken = masters.plan(labels="h100,a100"), masters.metrics(cluster.rm_url)["PLANS_TAKEN"]
    with ThreadPoolExecutor(16) as pool:
        known = list(
            pool.map(lambda _: apps.submit(cluster, "sleep 60", environment={"GPUSAGE_PLAN": plan}), range(200))
        )
    assert set(known) <= {app["id"] for app in apps.applications(cluster)}
    assert len(set(known)) == 200
    assert masters.metrics(cluster.rm_url)["PLANS_TAKEN"] == taken + 200


def test_what_is_submitted_at_once_runs_to_its_end_once(cluster: Sandbox) -> None:
    """Each has a master of its own, a second or two of a core."""
    labels = ("v100,a100,h100", "a100,h100,v100", "h100,v100,a100")
    plans = [masters.plan(share=share, labels=each) for share in ("20", "50", "60", "100") for each in labels]
    known = [masters.submit(cluster, "env; sleep 0.3", plan=plan) for plan in plans]
    reports = masters.wait_for_end(cluster, *known)
    assert [report["finalStatus"] for report in reports] == ["SUCCEEDED"] * len(plans)
    assert [len(masters.outputs(cluster, app)) for app in known] == [1] * len(plans)
