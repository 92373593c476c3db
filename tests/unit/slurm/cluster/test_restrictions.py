"""Where a share could never start or would lose defaults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage_hooks.types import Cluster, GpuPool, NodeKind
from gpusage_slurm.cluster.restrictions import (
    booked_twice,
    gpu_reservations,
    join_reasons,
    limiting_qos,
    partitions_with,
    per_gpu_default_partitions,
    preemptable_partitions,
    preemptable_qos,
    whole_node_partitions,
    without_backup,
)
from gpusage_slurm.scontrol import Line, parse_lines
from gpusage_slurm.submission.request import read_request
from gpusage_slurm.submission.script import read_script

OLDER = "PartitionName={} AllowGroups=ALL Default=NO QoS=N/A ExclusiveUser={} OverSubscribe={} State=UP TRES=cpu=48"

POOL = GpuPool(gpu="v100", site_type="v100", gpu_count=1, free_gpu_count=1, mps_per_gpu=100)
GPU = "PartitionName=gpu AllowGroups=ALL JobDefaults=DefCpuPerGPU=4,DefMemPerGPU=1000 DefMemPerNode=UNLIMITED"
PLAIN = "PartitionName=plain AllowGroups=ALL JobDefaults=(null) DefMemPerCPU=10"
PARTITIONS = parse_lines(f"{GPU}\n{PLAIN}", "PartitionName")


def lines(partitions: str) -> tuple[Line, ...]:
    return parse_lines(partitions, "PartitionName")


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
    actual = whole_node_partitions(lines(f"{OLDER.format('gpu', 'NO', 'NO')}\n{line}\n\n"))
    assert actual == {
        "partition=whole": f"partition whole gives whole nodes ({setting}), where a share may never start"
    }


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
    assert whole_node_partitions(lines(line)) == {}


def test_all_reasons_of_a_place_are_told() -> None:
    assert join_reasons({"a": "one"}, {"b": "two", "a": "three"}) == {"a": "one; three", "b": "two"}


RESERVATIONS = """\
ReservationName=course Nodes=v100-1 CoreCnt=4 TRES=cpu=4,gres/gpu:v100=2 Users=ada State=ACTIVE
ReservationName=repair Nodes=v100-1 CoreCnt=32 TRES=cpu=32 Users=root State=ACTIVE
"""
QOS = (
    {"Name": "normal", "MaxTRESPU": "gres/mps=50"},
    {"Name": "whole", "MaxTRES": "cpu=64,gres/gpu=8", "MinTRES": "gres/gpu=1"},
    {"Name": "small", "MaxTRES": "gres/gpu=1,gres/mps=20"},
    {"Name": "wide", "MaxTRES": "gres/mps=100"},
)


@pytest.mark.parametrize(
    ("version", "backup", "shared"),
    [("22.05.8", "b(10.0.0.2)", False), ("24.11.5", "b", False), ("26.05.5", "b", True), ("24.11.5", "", True)],
)
def test_before_26_05_a_backup_controller_leaves_every_gpu_whole(
    version: str,
    backup: str,
    shared: bool,  # a case
) -> None:
    settings = {"slurm_version": version, "slurmctldhost[0]": "a"} | ({"slurmctldhost[1]": backup} if backup else {})
    actual = without_backup(settings, lines(OLDER.format("gpu", "NO", "NO")))
    assert (actual == {}) == shared
    assert shared or "backup controller" in actual["partition=gpu"]


@pytest.mark.parametrize(("version", "shared"), [("22.05.8", False), ("23.11.4", False), ("23.11.5", True), ("", True)])
def test_where_slurm_books_gpus_twice_every_gpu_is_whole(version: str, *, shared: bool) -> None:
    assert (booked_twice({"slurm_version": version}, lines(OLDER.format("gpu", "NO", "NO"))) == {}) == shared


def test_a_reservation_of_gpus_shares_none_and_one_of_nodes_does() -> None:
    assert gpu_reservations(parse_lines(RESERVATIONS, "ReservationName")) == {
        "reservation=course": "reservation course holds whole GPUs (gres/gpu:v100=2), where no share starts"
    }
    assert parse_lines("No reservations in the system\n", "ReservationName") == ()


def test_a_qos_that_wants_a_gpu_or_allows_less_than_one_in_shares_stops_them() -> None:
    actual = limiting_qos(QOS, 100)
    assert actual == {
        "qos=whole": "quality of service whole stops shares (MinTRES=gres/gpu=1)",
        "qos=small": "quality of service small stops shares (MaxTRES=gres/mps=20)",
    }
    partitions = f"{OLDER.format('gpu', 'NO', 'NO')}\nPartitionName=big QoS=whole OverSubscribe=NO"
    assert partitions_with(lines(partitions), actual) == {"partition=big": f"partition big: {actual['qos=whole']}"}
    assert limiting_qos((), 100) == {}


def test_jobs_of_a_qos_that_another_may_preempt_keep_whole_gpus() -> None:
    rows = (
        {"Name": "urgent", "Preempt": "normal,spare", "PreemptMode": "cluster"},
        {"Name": "normal", "Preempt": "spare", "PreemptMode": "requeue"},
        {"Name": "spare", "Preempt": "", "PreemptMode": "cluster"},
        {"Name": "own", "Preempt": "", "PreemptMode": "cancel,within"},
    )
    actual = preemptable_qos(rows, {"preempttype": "preempt/qos", "preemptmode": "REQUEUE"})
    assert [*actual] == ["qos=normal", "qos=spare", "qos=own"]
    assert actual["qos=normal"] == (
        "jobs of quality of service urgent preempt those of quality of service normal, "
        "and each share would free only a part of a GPU"
    )
    assert preemptable_qos(rows, {"preempttype": "preempt/partition_prio"}) == {}
    within = {"preempttype": "preempt/qos", "preemptmode": "REQUEUE,WITHIN"}
    assert "qos=urgent" in preemptable_qos(rows, within)


def test_a_partition_keeps_whole_gpus_if_a_higher_one_on_its_gpus_may_preempt_its_jobs() -> None:
    text = "\n".join(
        f"PartitionName={name} PriorityTier={tier} PreemptMode={mode}"
        for name, tier, mode in [
            ("high", 9, "REQUEUE"),
            ("low", 1, "REQUEUE"),
            ("kept", 1, "OFF"),
            ("far", 2, "CANCEL"),
        ]
    )
    kinds = (NodeKind(partitions=("high", "kept", "low")), NodeKind(partitions=("far",)))
    pools = (replace(POOL, node_kinds=kinds),)
    actual = preemptable_partitions(lines(text), pools, {"preempttype": "preempt/partition_prio"})
    assert [*actual] == ["partition=low"]
    assert "jobs in partition high preempt those in partition low" in actual["partition=low"]
    assert preemptable_partitions(lines(text), pools, {"preempttype": "preempt/none"}) == {}


def test_a_script_says_where_it_will_run() -> None:
    """So that `gpusage validate` knows it too."""
    fields = read_script("#!/bin/sh\n#SBATCH --reservation=course -q short\n")
    assert read_request(fields).scopes == ("reservation=course", "qos=short", "account=")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"account": "lab", "default_account": "own", "qos": "short"},
            ("qos=short", "account=lab", "account=lab user=7"),
        ),
        ({"default_account": "own", "default_qos": "long"}, ("qos=long", "account=own", "account=own user=7")),
        ({}, ("qos=normal", "account=")),
    ],
)
def test_a_job_that_names_no_account_or_qos_runs_under_its_default(
    fields: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert read_request({"user_id": "7", **fields}).scopes == expected


def test_a_job_in_such_a_place_finds_nothing_to_share() -> None:
    cluster = Cluster(
        manager="slurm",
        version="24.11",
        pools=(GpuPool(gpu=None, site_type="v100", gpu_count=2, free_gpu_count=2, mps_per_gpu=100),),
        default_partition="gpu",
        unshared={"qos=whole": "why"},
    )
    for fields, shared in [({"qos": "whole"}, False), ({"default_qos": "whole"}, False), ({"reservation": "x"}, True),
                           ({"qos": "normal", "default_qos": "whole"}, True), ({}, True)]:  # fmt: skip
        request = read_request({"tres_per_node": "gres:gpu:1", **fields})
        seen = cluster.within(request.partitions, request.scopes)
        assert (seen.pools[0].mps_per_gpu is not None) == shared
        assert ("why" in seen.unshared.values()) != shared


def test_a_partitions_defaults_concern_that_partition_alone() -> None:
    assert per_gpu_default_partitions({"jobdefaults": ""}, PARTITIONS) == {
        "partition=gpu": "a share would lose what partition gpu gives for each GPU (DefCpuPerGPU=4, DefMemPerGPU=1000)"
    }


def test_slurm_confs_defaults_concern_every_partition_and_its_own_stand_in_their_place() -> None:
    actual = per_gpu_default_partitions({"jobdefaults": "DefMemPerGPU=2"}, PARTITIONS)
    assert "(DefCpuPerGPU=4, DefMemPerGPU=1000)" in actual["partition=gpu"]
    assert "(DefMemPerGPU=2)" in actual["partition=plain"]


def test_a_job_that_may_run_in_such_a_partition_sees_no_gpu_that_can_be_shared() -> None:
    cluster = Cluster(
        manager="slurm",
        version="",
        pools=(POOL,),
        default_partition="plain",
        unshared={"partition=gpu": "a", "partition=odd": "b"},
    )
    seen = cluster.within(("gpu", "plain"))
    assert ([pool.mps_per_gpu for pool in seen.pools], seen.unshared) == ([None], {"partition=gpu": "a"})
    elsewhere = cluster.within(())
    assert ([pool.mps_per_gpu for pool in elsewhere.pools], elsewhere.unshared) == ([100], {})
