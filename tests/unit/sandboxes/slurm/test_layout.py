"""The plan of a sandbox of Slurm: its nodes, and the texts that depend on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.slurm import ClusterPlan, open_sandbox, parse_nodes
from gpusage_sandboxes.slurm.layout import Layout, render_cgroup_conf, render_gres_conf, render_node

LAYOUT = Layout(folder=Path("/s"))


def test_nodes_are_numbered_within_their_type() -> None:
    nodes = parse_nodes("2xv100:4, h100:8,1xv100:2")
    assert [(node.name, node.gpu_type, node.gpu_count) for node in nodes] == [
        ("v100-1", "v100", 4),
        ("v100-2", "v100", 4),
        ("h100-1", "h100", 8),
        ("v100-3", "v100", 2),
    ]


@pytest.mark.parametrize(
    "text", ["", "v100", "v100:0", "0xv100:1", "v100:4:4", "V100:4", "v100:4,,h100:1", "65xv100:1", "v100:65", "-x:1"]
)
def test_nodes_that_cannot_be_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(RequestError, match=r"Nodes must be .* Write, for example, 2xv100:4,1xh100:8"):
        parse_nodes(text)


def test_more_nodes_than_a_sandbox_holds_are_refused() -> None:
    with pytest.raises(RequestError, match="at most 64 nodes; got 65"):
        parse_nodes("64xv100:1,h100:1")


def test_gres_conf_shares_every_gpu_of_a_node() -> None:
    plan = ClusterPlan(nodes=parse_nodes("v100:2,h100:1"), mps_per_gpu=200)
    assert render_gres_conf(plan, LAYOUT).splitlines() == [
        "NodeName=v100-1 Name=gpu Type=v100 File=/s/gpus/v100-1/gpu[0-1]",
        "NodeName=v100-1 Name=mps Count=400 File=/s/gpus/v100-1/gpu[0-1] Flags=all_sharing",
        "NodeName=h100-1 Name=gpu Type=h100 File=/s/gpus/h100-1/gpu0",
        "NodeName=h100-1 Name=mps Count=200 File=/s/gpus/h100-1/gpu0 Flags=all_sharing",
    ]


def test_without_mps_no_configuration_mentions_it() -> None:
    plan = ClusterPlan(nodes=parse_nodes("v100:2"), mps_per_gpu=0)
    line = render_node(plan.nodes[0], plan, hostname="h", port=1)
    assert "mps" not in line + render_gres_conf(plan, LAYOUT)
    assert "Gres=gpu:v100:2 " in line


def test_cgroups_are_off_in_the_words_of_each_version() -> None:
    assert render_cgroup_conf((22, 5)) == "CgroupPlugin=cgroup/v1\n"
    assert render_cgroup_conf((23, 11)) == "CgroupPlugin=disabled\n"


def test_the_longest_folder_leaves_room_for_a_step_s_socket() -> None:
    plan = ClusterPlan(nodes=parse_nodes("10xrtx-6000-ada:1"))
    node = "rtx-6000-ada-10"
    assert plan.longest_folder + len(f"/spool/{node}/{node}_999999.4294967295") == 107


@pytest.mark.parametrize("record", ["", "{}", "[]", "null", '{"schema": "gpusage.slurm-sandbox/1"}'])
def test_a_folder_without_a_sandbox_cannot_be_opened(tmp_path: Path, record: str) -> None:
    (tmp_path / "sandbox.json").write_text(record)
    with pytest.raises(RequestError, match="must hold a sandbox; got none"):
        open_sandbox(tmp_path)
