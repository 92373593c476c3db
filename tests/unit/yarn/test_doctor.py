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

from gpusage.api import advisor
from gpusage.cli.doctor import OwnEvidence
from gpusage.cli.findings import Finding
from gpusage.configuration import DaemonSettings
from gpusage.configuration_file import default_configuration
from gpusage_yarn.cluster import cluster_of, read_view
from gpusage_yarn.doctor import examine
from gpusage_yarn.evidence import Evidence
from gpusage_yarn.install import CLASSES, PROCESSORS, RULES
from gpusage_yarn.jmx import JmxReport
from gpusage_yarn.manager_user import ManagerUser, listener_uid, manager_user
from gpusage_yarn.preflight import configured_classes
from gpusage_yarn.status import describe

RECORDED = json.loads((Path(__file__).parents[2] / "golden/yarn/3.4.2.json").read_text())
RUNNING = frozenset(name.rpartition(".")[2] for name in CLASSES.values())


@pytest.fixture
def healthy() -> Evidence:
    view = read_view(RECORDED.get)
    nodes = tuple(JmxReport(name=node.name, version="1", classes=RUNNING) for node in view.nodes)
    return Evidence(
        folder=Path("/etc/hadoop/conf"),
        own=OwnEvidence(configuration=default_configuration(), status={}),
        view=view,
        cluster=cluster_of(view, advisor().catalogue),
        manager=JmxReport(name="ResourceManager", version="1", classes=RUNNING),
        nodes=nodes,
        user=ManagerUser(name="yarn", allowed=True),
        loaded=dict.fromkeys(CLASSES.values(), ""),
        sampler="/bin/sh -m sampler",
    )


def with_own(evidence: Evidence, **changes: Any) -> Evidence:  # noqa: ANN401 - any field of what gpusage tells
    return replace(evidence, own=replace(evidence.own, **changes))


def finding(evidence: Evidence, check: str) -> Finding:
    return next(found for found in examine(evidence) if found.check == check)


def changed_view(evidence: Evidence, **changes: Any) -> Evidence:  # noqa: ANN401 - any field of a view
    assert evidence.view is not None
    view = replace(evidence.view, **changes)
    return replace(evidence, view=view, cluster=cluster_of(view, advisor().catalogue))


def test_everything_passes_where_all_is_well(healthy: Evidence) -> None:
    assert [found for found in examine(healthy) if found.verdict != "pass"] == []


def test_without_a_resource_manager_the_rest_of_the_cluster_is_skipped(healthy: Evidence) -> None:
    silent = replace(healthy, view=None, trouble="nobody there")
    assert finding(silent, "ResourceManager").verdict == "fail"
    assert finding(silent, "placement rule").verdict == "skip"
    assert finding(silent, "classes").verdict == "pass"


@pytest.mark.parametrize("check", ["placement rule", "processor"])
def test_a_class_that_does_not_run_is_told_with_the_command(healthy: Evidence, check: str) -> None:
    key = RULES if check == "placement rule" else PROCESSORS
    evidence = replace(healthy, manager=JmxReport(name="rm"), settings={key: "user-group"})
    found = finding(evidence, check)
    assert (found.verdict, found.found) == ("fail", f"{key}=user-group")
    assert found.todo.startswith("gpusage yarn install --yes")


@pytest.mark.parametrize("check", ["placement rule", "processor", "node listener"])
def test_where_jmx_may_not_be_read_nothing_is_said_to_be_missing(healthy: Evidence, check: str) -> None:
    """With hadoop.security.instrumentation.requires.admin, for example."""
    silent = JmxReport(name="x", trouble="/jmx answers with status 403")
    found = finding(replace(healthy, manager=silent, nodes=(silent,)), check)
    assert (found.verdict, found.found.endswith(": /jmx answers with status 403")) == ("warn", True)


def test_a_class_that_would_not_load_is_told_before_a_daemon_finds_out(healthy: Evidence) -> None:
    found = finding(replace(healthy, loaded={CLASSES[RULES]: "ClassNotFoundException"}), "classes")
    assert found.verdict == "fail"
    assert "BEFORE a daemon restarts" in found.todo


def test_nodes_without_our_listener_are_named(healthy: Evidence) -> None:
    nodes = (replace(healthy.nodes[0], classes=frozenset()), *healthy.nodes[1:])
    found = finding(replace(healthy, nodes=nodes), "node listener")
    assert (found.verdict, healthy.nodes[0].name in found.found) == ("fail", True)


def test_a_listener_that_failed_to_start_says_why_itself(healthy: Evidence) -> None:
    line = "listener: gpusage.node.gpus must name GPUs; got 'GPU 0'."
    nodes = (replace(healthy.nodes[0], classes=frozenset(), free=(), troubles=(line,)), *healthy.nodes[1:])
    found = finding(replace(healthy, nodes=nodes), "node listener")
    assert (found.verdict, found.found.endswith(line)) == ("fail", True)
    assert found.todo == "mend what it says, then restart the NodeManager"


def test_what_a_daemon_says_of_itself_is_told(healthy: Evidence) -> None:
    line = "mps: Cannot run program /nope/gpusage-mps"
    nodes = (replace(healthy.nodes[0], troubles=(line,)), *healthy.nodes[1:])
    found = finding(replace(healthy, nodes=nodes), "troubles")
    assert (found.verdict, found.found) == ("fail", f"{nodes[0].name}: {line}")
    failing = replace(healthy, manager=replace(healthy.manager, failures=3))  # type: ignore[type-var]
    found = finding(failing, "troubles")
    assert (found.verdict, found.found.endswith("ResourceManager: 3")) == ("warn", True)


def test_a_node_whose_share_is_not_that_of_its_gpus_is_told(healthy: Evidence) -> None:
    two = next(node.name for node in healthy.view.nodes if node.total.share == 200)  # type: ignore[union-attr]
    right = tuple(replace(node, free=(100, 100)) if node.name == two else node for node in healthy.nodes)
    assert finding(replace(healthy, nodes=right), "shares of nodes").verdict == "pass"
    wrong = tuple(replace(node, free=(100,)) if node.name == two else node for node in healthy.nodes)
    found = finding(replace(healthy, nodes=wrong), "shares of nodes")
    assert (found.verdict, found.found) == ("fail", f"{two} offers 200, and its listener has 1 GPUs")


def test_a_node_that_offers_its_gpus_twice_is_told(healthy: Evidence) -> None:
    nodes = tuple(replace(node, gpus=1) for node in healthy.view.nodes)  # type: ignore[union-attr]
    assert finding(changed_view(healthy, nodes=nodes), "shares of nodes").verdict == "warn"


def test_a_limit_that_lets_few_masters_run_is_told_by_their_number(healthy: Evidence) -> None:
    queue = healthy.view.queues[0]  # type: ignore[union-attr]
    narrow = replace(queue, masters=dict.fromkeys(queue.masters, 10.0))
    found = finding(changed_view(healthy, queues=(narrow,)), "masters")
    assert found.verdict == "warn"
    assert found.found == "root.default runs few applications at once for its 4 GPUs: 1 on a100, 1 on h100, 1 on v100"


def test_two_versions_side_by_side_are_a_warning(healthy: Evidence) -> None:
    nodes = (replace(healthy.nodes[0], version="2"), *healthy.nodes[1:])
    assert finding(replace(healthy, nodes=nodes), "node listener").verdict == "warn"


def test_a_cluster_without_our_resource_type_is_told_so(healthy: Evidence) -> None:
    assert finding(changed_view(healthy, resource_types={"vcores": 4}), "resource type").verdict == "fail"
    wide = changed_view(healthy, resource_types={"gpusage.io/share": 400})
    assert finding(wide, "resource type").found == "a container could have 400 of gpusage.io/share"


def test_nodes_without_labels_get_the_commands_that_label_them(healthy: Evidence) -> None:
    assert healthy.view is not None
    nodes = tuple(replace(node, label="") for node in healthy.view.nodes)
    found = finding(changed_view(healthy, nodes=nodes), "node labels")
    assert found.verdict == "fail"
    assert f"yarn rmadmin -replaceLabelsOnNode '{nodes[0].name}=" in found.todo


def test_a_label_that_no_queue_reaches_gets_the_lines_to_add(healthy: Evidence) -> None:
    assert healthy.view is not None
    queues = tuple(replace(queue, labels=frozenset({"a100", "v100"})) for queue in healthy.view.queues)
    found = finding(changed_view(healthy, queues=queues), "queues")
    assert (found.verdict, found.found) == ("fail", "no queue has capacity in h100")
    assert "accessible-node-labels.h100.capacity=100" in found.todo


def test_two_kill_switches_are_one_too_many(healthy: Evidence) -> None:
    assert finding(replace(healthy, settings={"gpusage.switch-file": "/else"}), "kill switch").verdict == "warn"
    assert finding(with_own(healthy, killed=True), "kill switch").verdict == "warn"


def test_a_daemon_that_is_not_there_is_a_warning_for_submit_needs_none(healthy: Evidence) -> None:
    assert finding(with_own(healthy, status=None, status_trouble="none"), "gpusaged").verdict == "warn"


def test_a_manager_that_gpusaged_would_not_answer_is_told_with_the_line_to_write(healthy: Evidence) -> None:
    barred = replace(healthy, user=ManagerUser(name="yarn", allowed=False))
    found = finding(barred, "allowed users")
    assert (found.verdict, found.todo) == (
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


def test_status_tells_what_is_free(healthy: Evidence) -> None:
    assert healthy.view is not None
    assert healthy.cluster is not None
    lines = describe(healthy.view, healthy.cluster, None, "not there").splitlines()
    assert lines[0] == "YARN 3.4.2: 3 nodes, queues root.default"
    assert lines[1].endswith("2 of 2 GPUs free, room for a share of 100 at most, by sums over GPUs")
    assert lines[-1] == "gpusaged: not there"


@pytest.mark.parametrize(
    ("command", "verdict"), [(None, "skip"), ("", "warn"), ("/nowhere -m x", "warn"), ("/bin/sh -m x", "pass")]
)
def test_a_node_that_samples_nothing_is_warned_of(healthy: Evidence, command: str | None, verdict: str) -> None:
    assert finding(replace(healthy, sampler=command), "sampler").verdict == verdict
