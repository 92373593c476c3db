"""What the doctor says of an installation, and how to mend it."""

from __future__ import annotations

import json
import os
import pwd
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpusage.cli.admin import Finding, OwnEvidence
from gpusage.decisions.advisor import advisor
from gpusage.settings.configuration import DaemonSettings
from gpusage.settings.configuration_file import default_configuration
from gpusage_yarn.actions import describe
from gpusage_yarn.cluster.configuration import ALLOCATOR, CLASSES, PROCESSORS, RULES
from gpusage_yarn.cluster.jmx import JmxReport
from gpusage_yarn.cluster.snapshot import MASTER, build_cluster, read_snapshot
from gpusage_yarn.doctor.checks import run_checks
from gpusage_yarn.doctor.inspection import Inspection, ManagerUser, listener_uid, manager_user
from gpusage_yarn.install.classes import configured_classes

RECORDED = json.loads((Path(__file__).parents[3] / "golden/yarn/3.4.2.json").read_text())
RUNNING = frozenset(name.rpartition(".")[2] for name in CLASSES.values())


@pytest.fixture
def healthy() -> Inspection:
    snapshot = read_snapshot(RECORDED.get)
    nodes = tuple(JmxReport(name=node.name, version="1", classes=RUNNING) for node in snapshot.nodes)
    return Inspection(
        folder=Path("/etc/hadoop/conf"),
        own=OwnEvidence(configuration=default_configuration(), status={}, next_step="observe on"),
        snapshot=snapshot,
        cluster=build_cluster(snapshot, advisor().catalogue),
        manager=JmxReport(name="ResourceManager", version="1", classes=RUNNING),
        nodes=nodes,
        user=ManagerUser(name="yarn", allowed=True),
        loaded=dict.fromkeys(CLASSES.values(), ""),
        settings={ALLOCATOR: CLASSES[ALLOCATOR]},
        sampler="/bin/sh -m sampler",
    )


def with_own(inspection: Inspection, **changes: Any) -> Inspection:  # any field of what gpusage tells
    return replace(inspection, own=replace(inspection.own, **changes))


def finding(inspection: Inspection, check: str) -> Finding:
    return next(actual for actual in run_checks(inspection) if actual.check == check)


def changed_view(inspection: Inspection, **changes: Any) -> Inspection:  # any field of a view
    assert inspection.snapshot is not None
    snapshot = replace(inspection.snapshot, **changes)
    return replace(inspection, snapshot=snapshot, cluster=build_cluster(snapshot, advisor().catalogue))


def test_everything_passes_where_all_is_well(healthy: Inspection) -> None:
    assert [actual for actual in run_checks(healthy) if actual.verdict != "pass"] == []


def test_without_a_resource_manager_the_rest_of_the_cluster_is_skipped(healthy: Inspection) -> None:
    silent = replace(healthy, snapshot=None, trouble="nobody there")
    assert finding(silent, "ResourceManager").verdict == "fail"
    assert finding(silent, "placement rule").verdict == "skip"
    assert finding(silent, "classes").verdict == "pass"


@pytest.mark.parametrize("check", ["placement rule", "processor"])
def test_a_class_that_does_not_run_is_told_with_the_command(healthy: Inspection, check: str) -> None:
    key = RULES if check == "placement rule" else PROCESSORS
    inspection = replace(healthy, manager=JmxReport(name="rm"), settings={key: "user-group"})
    result = finding(inspection, check)
    assert (result.verdict, result.observation) == ("fail", f"{key}=user-group")
    assert result.todo.startswith("gpusage yarn install --yes")


@pytest.mark.parametrize("check", ["placement rule", "processor"])
def test_a_second_resource_manager_without_our_classes_is_named(healthy: Inspection, check: str) -> None:
    """It would take over, and nobody would notice that shares are given out no more."""
    silent = JmxReport(name="http://rm3:8088", trouble="Connection refused")
    bare = JmxReport(name="http://rm2:8088")
    assert finding(replace(healthy, others=(silent,)), check).verdict == "pass"
    result = finding(replace(healthy, others=(silent, bare)), check)
    assert (result.verdict, result.observation) == ("fail", "it does not run in http://rm2:8088, which may take over")


@pytest.mark.parametrize("check", ["placement rule", "processor", "node listener"])
def test_where_jmx_may_not_be_read_nothing_is_said_to_be_missing(healthy: Inspection, check: str) -> None:
    """With hadoop.security.instrumentation.requires.admin, for example."""
    silent = JmxReport(name="x", trouble="/jmx answers with status 403")
    result = finding(replace(healthy, manager=silent, nodes=(silent,)), check)
    assert (result.verdict, result.observation.endswith(": /jmx answers with status 403")) == ("warn", True)


def test_a_class_that_would_not_load_is_told_before_a_daemon_finds_out(healthy: Inspection) -> None:
    result = finding(replace(healthy, loaded={CLASSES[RULES]: "ClassNotFoundException"}), "classes")
    assert result.verdict == "fail"
    assert "BEFORE a daemon restarts" in result.todo


def test_nodes_without_our_listener_are_named(healthy: Inspection) -> None:
    nodes = (replace(healthy.nodes[0], classes=frozenset()), *healthy.nodes[1:])
    result = finding(replace(healthy, nodes=nodes), "node listener")
    assert (result.verdict, healthy.nodes[0].name in result.observation) == ("fail", True)


def test_a_listener_that_failed_to_start_says_why_itself(healthy: Inspection) -> None:
    line = "listener: gpusage.node.gpus must name GPUs; got 'GPU 0'."
    nodes = (replace(healthy.nodes[0], classes=frozenset(), free=(), troubles=(line,)), *healthy.nodes[1:])
    result = finding(replace(healthy, nodes=nodes), "node listener")
    assert (result.verdict, result.observation.endswith(line)) == ("fail", True)
    assert result.todo == "fix what it reports, then restart the NodeManager"


def test_what_a_daemon_says_of_itself_is_told(healthy: Inspection) -> None:
    line = "mps: Cannot run program /nope/gpusage-mps"
    nodes = (replace(healthy.nodes[0], troubles=(line,)), *healthy.nodes[1:])
    result = finding(replace(healthy, nodes=nodes), "troubles")
    assert (result.verdict, result.observation) == ("fail", f"{nodes[0].name}: {line}")
    failing = replace(healthy, manager=replace(healthy.manager, failures=3))  # type: ignore[type-var]
    result = finding(failing, "troubles")
    assert (result.verdict, result.observation.endswith("ResourceManager: 3")) == ("warn", True)


def test_a_node_whose_share_is_not_that_of_its_gpus_is_told(healthy: Inspection) -> None:
    two = next(node.name for node in healthy.snapshot.nodes if node.total.share == 200)  # type: ignore[union-attr]
    right = tuple(replace(node, free=(100, 100)) if node.name == two else node for node in healthy.nodes)
    assert finding(replace(healthy, nodes=right), "shares of nodes").verdict == "pass"
    wrong = tuple(replace(node, free=(100,)) if node.name == two else node for node in healthy.nodes)
    result = finding(replace(healthy, nodes=wrong), "shares of nodes")
    assert (result.verdict, result.observation) == ("fail", f"{two} offers 200, and its listener has 1 GPUs")


def test_a_node_that_offers_its_gpus_twice_is_told(healthy: Inspection) -> None:
    nodes = tuple(replace(node, gpus=1) for node in healthy.snapshot.nodes)  # type: ignore[union-attr]
    both = changed_view(healthy, nodes=nodes)
    assert finding(both, "shares of nodes").verdict == "warn"
    divided = replace(both, divided=frozenset(node.name for node in nodes))
    assert finding(divided, "shares of nodes").verdict == "pass"


def test_a_label_in_which_nobody_can_have_a_whole_gpu_is_told(healthy: Inspection) -> None:
    off = replace(healthy, settings={**healthy.settings, "gpusage.share.for-whole-gpus": "False"})
    result = finding(off, "shares of nodes")
    assert (result.verdict, "waits for ever in a100" in result.observation) == ("fail", True)
    bought = tuple(replace(node, name=f"{node.name}0", gpus=1, total=MASTER) for node in off.snapshot.nodes)  # type: ignore[union-attr]
    others = changed_view(off, nodes=(*off.snapshot.nodes, *bought))  # type: ignore[union-attr]
    assert finding(others, "shares of nodes").verdict == "pass"


def test_what_is_not_isolated_is_said_where_all_is_well(healthy: Inspection) -> None:
    observation = finding(healthy, "node listener").observation
    assert "one that asked for none no GPU (gpusage.node.hide-gpus); nvidia-smi shows all GPUs" in observation


def test_a_queue_with_absolute_resources_and_no_shares_is_told_with_the_lines_to_write(healthy: Inspection) -> None:
    queue = healthy.snapshot.queues[0]  # type: ignore[union-attr]
    bare = replace(queue, missing={"v100": ("NAME=[memory=1,gpusage.io/share=100]",)})
    result = finding(changed_view(healthy, queues=(bare,)), "queues")
    assert (result.verdict, result.observation) == (
        "fail",
        "root.default has absolute resources in v100, and no shares among them",
    )
    assert "NAME=[memory=1,gpusage.io/share=100]; then yarn rmadmin -refreshQueues" in result.todo


def test_a_limit_that_lets_few_masters_run_is_told_by_their_number(healthy: Inspection) -> None:
    queue = healthy.snapshot.queues[0]  # type: ignore[union-attr]
    narrow = replace(queue, masters=dict.fromkeys(queue.masters, 10.0))
    result = finding(changed_view(healthy, queues=(narrow,)), "masters")
    assert result.verdict == "warn"
    few = "root.default runs few applications at once for its 4 GPUs: 1 on a100, 1 on h100, 1 on v100"
    assert result.observation == few


def test_two_versions_side_by_side_are_a_warning(healthy: Inspection) -> None:
    nodes = (replace(healthy.nodes[0], version="2"), *healthy.nodes[1:])
    assert finding(replace(healthy, nodes=nodes), "node listener").verdict == "warn"
    bare = replace(healthy, manager=JmxReport(name="ResourceManager"))  # which has none
    assert finding(bare, "node listener").verdict == "pass"


def test_a_cluster_without_our_resource_type_is_told_so(healthy: Inspection) -> None:
    assert finding(changed_view(healthy, resource_types={"vcores": 4}), "resource type").verdict == "fail"
    narrow = changed_view(healthy, resource_types={"gpusage.io/share": 50})
    whole = "no container can have a whole GPU, only 50 of gpusage.io/share"
    assert finding(narrow, "resource type").observation == whole


def test_nodes_without_labels_get_the_commands_that_label_them(healthy: Inspection) -> None:
    assert healthy.snapshot is not None
    nodes = tuple(replace(node, label="") for node in healthy.snapshot.nodes)
    result = finding(changed_view(healthy, nodes=nodes), "node labels")
    assert result.verdict == "fail"
    assert f"yarn rmadmin -replaceLabelsOnNode '{nodes[0].name}=" in result.todo
    assert "-addToClusterNodeLabels 'v100(exclusive=false),a100(exclusive=false)' (an exclusive label, " in result.todo


def test_nodes_of_one_gpu_type_need_no_labels(healthy: Inspection) -> None:
    assert healthy.snapshot is not None
    without = replace(healthy, settings={**healthy.settings, "yarn.node-labels.enabled": "false"})
    assert "set gpu_type in [yarn]" in finding(without, "node labels").todo
    assert finding(changed_view(without, assumed_type="v100"), "node labels").verdict == "pass"


def test_a_label_that_no_queue_reaches_gets_the_lines_to_add(healthy: Inspection) -> None:
    assert healthy.snapshot is not None
    queues = tuple(replace(queue, labels=frozenset({"a100", "v100"})) for queue in healthy.snapshot.queues)
    result = finding(changed_view(healthy, queues=queues), "queues")
    assert (result.verdict, result.observation) == ("fail", "no queue has capacity in h100")
    assert "accessible-node-labels.h100.capacity=100" in result.todo


def test_two_kill_switches_are_one_too_many(healthy: Inspection) -> None:
    assert finding(replace(healthy, settings={"gpusage.switch-file": "/else"}), "kill switch").verdict == "warn"
    assert finding(with_own(healthy, killed=True), "kill switch").verdict == "warn"


def test_a_daemon_that_is_not_there_is_a_warning_for_submit_needs_none(healthy: Inspection) -> None:
    assert finding(with_own(healthy, status=None, status_trouble="none"), "gpusaged").verdict == "warn"


def test_a_manager_that_gpusaged_would_not_answer_is_told_with_the_line_to_write(healthy: Inspection) -> None:
    barred = replace(healthy, user=ManagerUser(name="yarn", allowed=False))
    result = finding(barred, "allowed users")
    assert (result.verdict, result.todo) == (
        "fail",
        'in gpusage.toml: [daemon] allowed_users = ["root", "slurm", "yarn"]',
    )
    assert finding(with_own(barred, status=None), "allowed users").verdict == "warn"
    assert finding(replace(healthy, user=None), "allowed users").verdict == "skip"


def test_the_user_of_a_manager_on_this_host_is_who_listens_at_its_address(tmp_path: Path) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://localhost:{server.getsockname()[1]}"
        barred = DaemonSettings(allowed_users=("no-such-user",), socket=str(tmp_path / "none"))
        assert manager_user(address, barred) == ManagerUser(name=me, allowed=False)
        assert manager_user(address, replace(barred, allowed_users=(me,))) == ManagerUser(name=me, allowed=True)
        (tmp_path / "none").touch()  # the daemon's own user may ask it anything
        assert manager_user(address, barred) == ManagerUser(name=me, allowed=True)
    assert manager_user(address, barred) is None
    assert manager_user("http://192.0.2.1:8088", barred) is None


def test_who_listens_is_read_from_the_kernel_s_table(tmp_path: Path) -> None:
    table = tmp_path / "tcp6"
    table.write_text(
        "  sl  local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout\n"
        "   0: 0100007F:1F98 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 7 1\n"
        "   1: 00000000:1F98 00000000:0000 0A 00000000:00000000 00:00000000 00000000   998        0 8 1\n"
    )
    assert listener_uid(8088, (tmp_path / "none", table)) == 998
    assert listener_uid(8089, (table,)) is None


def test_our_classes_are_found_in_a_configuration(tmp_path: Path) -> None:
    name, value = RULES, f"{CLASSES[RULES]},user-group"
    text = f"<configuration><property><name>{name}</name><value>{value}</value></property></configuration>"
    (tmp_path / "yarn-site.xml").write_text(text)
    assert configured_classes(tmp_path) == (CLASSES[RULES],)


def test_status_tells_what_is_free(healthy: Inspection) -> None:
    assert healthy.snapshot is not None
    assert healthy.cluster is not None
    lines = describe(healthy.snapshot, healthy.cluster, None, "not there").splitlines()
    assert lines[0] == "YARN 3.4.2: 3 nodes, queues root.default"
    assert lines[1].endswith("2 of 2 GPUs free, room for a share of 100 at most, by sums over GPUs")
    assert lines[-1] == "gpusaged: not there"


@pytest.mark.parametrize(
    ("command", "verdict"), [(None, "skip"), ("", "warn"), ("/nowhere -m x", "warn"), ("/bin/sh -m x", "pass")]
)
def test_a_node_that_samples_nothing_is_warned_of(healthy: Inspection, command: str | None, verdict: str) -> None:
    assert finding(replace(healthy, sampler=command), "sampler").verdict == verdict


def test_copies_of_another_gpusage_are_told(healthy: Inspection) -> None:
    result = finding(replace(healthy, old_copies=(Path("/usr/libexec/gpusage/gpusage-mps"),)), "sampler")
    assert (result.verdict, result.observation) == (
        "warn",
        "another gpusage has written /usr/libexec/gpusage/gpusage-mps",
    )
