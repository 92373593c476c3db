"""Places where a share can never start, in the words of each version of Slurm."""

from __future__ import annotations

import pytest

from gpusage_slurm.places import joined, whole_node_partitions

OLDER = "PartitionName={} AllowGroups=ALL Default=NO QoS=N/A ExclusiveUser={} OverSubscribe={} State=UP TRES=cpu=48"


@pytest.mark.parametrize(
    ("line", "setting"),
    [
        (OLDER.format("whole", "NO", "EXCLUSIVE"), "OverSubscribe=EXCLUSIVE"),
        ("PartitionName=whole DisableRootJobs=NO Exclusive=NODE OverSubscribe=NO State=UP", "Exclusive=NODE"),
        ("PartitionName=whole ExclusiveUser=NO ExclusiveTopo=YES OverSubscribe=NO", "ExclusiveTopo=YES"),
        ("PartitionName=whole Exclusive=TOPO OverSubscribe=NO", "Exclusive=TOPO"),
    ],
)
def test_a_partition_that_gives_whole_nodes_shares_no_gpu(line: str, setting: str) -> None:
    found = whole_node_partitions(f"{OLDER.format('gpu', 'NO', 'NO')}\n{line}\n\n")
    assert found == {"whole": f"partition whole gives whole nodes ({setting}), where a share may never start"}


@pytest.mark.parametrize(
    "line",
    [
        OLDER.format("gpu", "YES", "NO"),
        OLDER.format("gpu", "NO", "FORCE:4"),
        "PartitionName=gpu Exclusive=USER OverSubscribe=NO",
        "PartitionName=gpu Exclusive=NO ExclusiveTopo=NO OverSubscribe=YES:2",
        "",
    ],
)
def test_other_partitions_share(line: str) -> None:
    assert whole_node_partitions(line) == {}


def test_all_reasons_of_a_place_are_told() -> None:
    assert joined({"a": "one"}, {"b": "two", "a": "three"}) == {"a": "one; three", "b": "two"}
