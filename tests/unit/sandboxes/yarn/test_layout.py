"""The plan of a sandbox of YARN: its nodes and labels."""

from __future__ import annotations

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.layout import SandboxNode
from gpusage_sandboxes.yarn.layout import ClusterPlan, parse_nodes


def test_nodes_are_numbered_within_their_type() -> None:
    assert parse_nodes("2xv100:4, cpu:0") == (
        SandboxNode(name="v100-1", gpu_type="v100", gpu_count=4),
        SandboxNode(name="v100-2", gpu_type="v100", gpu_count=4),
        SandboxNode(name="cpu-1", gpu_type="cpu", gpu_count=0),
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
