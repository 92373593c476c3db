"""The sandbox's plan, configuration, and what it makes of Java's and Maven's words."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.sandboxes.nodes import Node
from gpusage_hooks.errors import RequestError
from gpusage_yarn.sandbox.class_archive import class_names
from gpusage_yarn.sandbox.daemons import complaint
from gpusage_yarn.sandbox.java import find_java, java_version
from gpusage_yarn.sandbox.jdk import prepare_java, tie_links
from gpusage_yarn.sandbox.layout import ClusterPlan, Layout, parse_nodes
from gpusage_yarn.sandbox.settings import (
    client_files,
    equal_parts,
    node_files,
    render_configuration,
    rm_files,
)

LAYOUT = Layout(folder=Path("/tmp/s"))  # noqa: S108 - nothing is written there
RM_PORTS = (1, 2, 3, 4, 5)


def read_configuration(text: str) -> dict[str, str]:
    """Return the settings of a Hadoop configuration file."""
    pairs = ET.fromstring(text).iter("property")  # noqa: S314 - our own text
    return {pair.findtext("name", ""): pair.findtext("value", "") for pair in pairs}


def test_nodes_are_numbered_within_their_type() -> None:
    assert parse_nodes("2xv100:4, cpu:0") == (
        Node(name="v100-1", gpu_type="v100", gpu_count=4),
        Node(name="v100-2", gpu_type="v100", gpu_count=4),
        Node(name="cpu-1", gpu_type="cpu", gpu_count=0),
    )


@pytest.mark.parametrize("text", ["", "v100", "0xv100:1", "33xv100:1", "v100:65", "V100:1", "v100:1;h100:1", "v100:-1"])
def test_other_words_for_nodes_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="Nodes must be COUNTxTYPE:GPUS"):
        parse_nodes(text)


def test_a_sandbox_has_a_limit() -> None:
    with pytest.raises(RequestError, match="at most 32 nodes; got 40"):
        parse_nodes("20xv100:1,20xh100:1")


def test_who_names_no_label_goes_where_there_is_none_or_to_the_first() -> None:
    assert ClusterPlan(nodes=parse_nodes("h100:1,v100:1")).default_label == "h100"
    assert ClusterPlan(nodes=parse_nodes("h100:1,cpu:0")).default_label == ""
    assert ClusterPlan(nodes=parse_nodes("h100:1"), labelled=False).default_label == ""


@given(st.dictionaries(st.text("abc.-", min_size=1), st.text(st.characters(categories=["L", "N", "P", "S"]))))
def test_settings_come_back_from_the_file_that_holds_them(settings: dict[str, str]) -> None:
    assert read_configuration(render_configuration(settings)) == settings


@given(st.integers(1, 1000))
def test_equal_parts_make_a_hundred(count: int) -> None:
    parts = [Decimal(part) for part in equal_parts(count)]
    assert sum(parts) == 100
    assert max(parts) - min(parts) < Decimal("1.1")


def test_a_site_s_settings_win_over_the_sandbox_s_own() -> None:
    memory = "yarn.nodemanager.resource.memory-mb"
    plan = ClusterPlan(
        nodes=parse_nodes("v100:2"),
        site_settings={memory: "1", "yarn.resourcemanager.recovery.enabled": "false"},
        node_settings={memory: "2"},
        scheduler_settings={"yarn.scheduler.capacity.resource-calculator": "ours"},
    )
    rm = rm_files(plan, LAYOUT, RM_PORTS)
    node = node_files(plan, LAYOUT, plan.nodes[0], (6, 7, 8, 9), RM_PORTS)
    assert read_configuration(rm["yarn-site.xml"])["yarn.resourcemanager.recovery.enabled"] == "false"
    assert read_configuration(rm["capacity-scheduler.xml"])["yarn.scheduler.capacity.resource-calculator"] == "ours"
    assert read_configuration(node["yarn-site.xml"])[memory] == "2"
    assert read_configuration(client_files(plan, LAYOUT, RM_PORTS)["yarn-site.xml"])[memory] == "1"


@pytest.mark.parametrize(("share_per_gpu", "types"), [(100, "yarn.io/gpu,gpusage.io/share"), (0, "yarn.io/gpu")])
def test_a_share_is_at_most_one_gpu_even_on_a_node_of_two(share_per_gpu: int, types: str) -> None:
    plan = ClusterPlan(nodes=parse_nodes("v100:2"), share_per_gpu=share_per_gpu)
    files = node_files(plan, LAYOUT, plan.nodes[0], (6, 7, 8, 9), RM_PORTS)
    offered = read_configuration(files["yarn-site.xml"]).get("yarn.nodemanager.resource-type.gpusage.io/share")
    known = read_configuration(files["resource-types.xml"])
    largest = known.get("yarn.resource-types.gpusage.io/share.maximum-allocation")
    assert known["yarn.resource-types"] == types
    assert (offered, largest) == (("200", "100") if share_per_gpu else (None, None))


def test_the_last_exception_of_a_log_is_what_it_died_of() -> None:
    log = (
        "2026-11-21 08:31:02 INFO all is well\n"
        "java.io.IOException: an old story\n"
        "Caused by: java.lang.ClassNotFoundException: org.example.Missing\n"
        "\tat java.base/java.lang.Class.forName\n"
    )
    assert complaint(log) == "java.lang.ClassNotFoundException: org.example.Missing"
    assert complaint("2026-11-21 08:31:02 INFO all is well\n") == "no word of why"


def test_only_classes_that_can_be_found_again_are_archived() -> None:
    text = (
        "# a comment\njava/lang/Object id: 0\n@lambda-proxy java/lang/String run\norg/A\n"
        "org/B source: file:/b.jar id: 7 super: 0\n"
    )
    assert list(class_names(text)) == ["java/lang/Object", "org/A"]


@pytest.mark.parametrize(("text", "version"), [('JAVA_VERSION="17.0.15"\n', 17), ('JAVA_VERSION="1.8.0_402"\n', 8)])
def test_the_version_of_a_jdk_is_read(tmp_path: Path, text: str, version: int) -> None:
    (tmp_path / "release").write_text(text)
    assert java_version(tmp_path) == version


def test_a_host_without_java_and_without_apt_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(RequestError, match=r"needs a JDK of version 11 to 22 and Maven; javac and mvn not found"):
        prepare_java()


def test_a_jdk_that_hadoop_does_not_run_on_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("javac", "mvn"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.touch(mode=0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="25"\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/nowhere")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(RequestError, match=r"must be of version 11 to 22 for Hadoop; .* has 25"):
        find_java()


def test_links_from_the_top_stay_inside_an_unpacked_file_system(tmp_path: Path) -> None:
    (tmp_path / "etc/java").mkdir(parents=True)
    (tmp_path / "etc/java/security").write_text("kept")
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/conf").symlink_to("/etc/java")
    (tmp_path / "usr/lib/near").symlink_to("conf/security")
    tie_links(tmp_path)
    assert (tmp_path / "usr/lib/conf").readlink() == Path("../../etc/java")
    assert (tmp_path / "usr/lib/near").read_text() == "kept"
