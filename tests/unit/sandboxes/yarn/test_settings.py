"""The configuration files of a sandbox of YARN."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage_sandboxes.yarn.layout import ClusterPlan, Layout, parse_nodes
from gpusage_sandboxes.yarn.settings import (
    client_files,
    equal_parts,
    node_files,
    render_configuration,
    rm_files,
)

LAYOUT = Layout(folder=Path("/tmp/s"))
RM_PORTS = (1, 2, 3, 4, 5)


def read_configuration(text: str) -> dict[str, str]:
    """Return the settings of a Hadoop configuration file."""
    pairs = ET.fromstring(text).iter("property")
    return {pair.findtext("name", ""): pair.findtext("value", "") for pair in pairs}


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
def test_a_container_may_have_whole_gpus_and_a_node_offers_what_it_has(share_per_gpu: int, types: str) -> None:
    plan = ClusterPlan(nodes=parse_nodes("v100:2"), share_per_gpu=share_per_gpu)
    files = node_files(plan, LAYOUT, plan.nodes[0], (6, 7, 8, 9), RM_PORTS)
    offered = read_configuration(files["yarn-site.xml"]).get("yarn.nodemanager.resource-type.gpusage.io/share")
    known = read_configuration(files["resource-types.xml"])
    largest = known.get("yarn.resource-types.gpusage.io/share.maximum-allocation")
    assert known["yarn.resource-types"] == types
    assert (offered, largest) == (("200", "1600") if share_per_gpu else (None, None))
