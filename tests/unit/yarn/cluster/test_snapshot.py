"""What a ResourceManager's documents say of its GPUs; recorded from Hadoop 3.4.2 in a sandbox of three generations."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpusage.decisions.advisor import advisor
from gpusage_hooks.types import Cluster, Room
from gpusage_hooks.units import MIB
from gpusage_yarn.cluster.snapshot import build_cluster, parse_node, read_snapshot
from gpusage_yarn.settings import YarnSettings

Documents = dict[str, Any]
RECORDED = json.loads((Path(__file__).parents[3] / "golden/yarn/3.4.2.json").read_text())


@pytest.fixture
def documents() -> Documents:
    return copy.deepcopy(RECORDED)


def cluster(documents: Documents) -> Cluster:
    return build_cluster(read_snapshot(documents.get), advisor().catalogue)


def node(documents: Documents, label: str) -> dict[str, Any]:
    expected: dict[str, Any] = next(
        each for each in documents["nodes"]["nodes"]["node"] if each["nodeLabels"] == [label]
    )
    return expected


def set_amount(resource: Mapping[str, Any], name: str, value: int) -> None:
    entries = resource["resourceInformations"]["resourceInformation"]
    next(entry for entry in entries if entry["name"] == name)["value"] = value


def leaf(documents: Documents) -> dict[str, Any]:
    expected: dict[str, Any] = documents["scheduler"]["scheduler"]["schedulerInfo"]["queues"]["queue"][0]
    return expected


def test_each_label_is_a_pool(documents: Documents) -> None:
    actual = cluster(documents)
    assert [
        (pool.site_type, pool.gpu_count, pool.free_gpu_count, pool.mps_per_gpu, pool.feature, pool.partitions)
        for pool in actual.pools
    ] == [
        (label, count, count, 100, label, ("default", "root.default"))
        for label, count in (("a100", 2), ("h100", 1), ("v100", 1))
    ]
    assert all(pool.gpu and pool.gpu.startswith(pool.site_type) for pool in actual.pools)
    assert (actual.version, actual.default_partition, actual.notes) == ("3.4.2", "default", ())


def test_the_resource_types_are_those_that_a_container_can_have(documents: Documents) -> None:
    assert read_snapshot(documents.get).resource_types["gpusage.io/share"] == 100


def test_a_share_that_is_given_out_is_not_free(documents: Documents) -> None:
    set_amount(node(documents, "a100")["availableResource"], "gpusage.io/share", 140)
    snapshot = read_snapshot(documents.get)
    assert snapshot.room("a100") == 100  # 140 on two GPUs: one of them may be free
    assert cluster(documents).pools[0].free_gpu_count == 1


def test_what_a_container_could_have_on_a_node_is_known_of_each_kind(documents: Documents) -> None:
    (pool,) = (pool for pool in cluster(documents).pools if pool.site_type == "v100")
    state = parse_node(node(documents, "v100"))
    (kind,) = pool.node_kinds
    assert (kind.cpu_count, kind.host_memory_bytes) == (state.total.vcores, state.total.memory_mib * MIB)
    memory_bytes = state.free.memory_mib * MIB
    room = Room(share_percent=100, cpu_count=32, host_memory_bytes=memory_bytes, node=state.name)
    assert (kind.room, kind.rooms) == (None, (room,))
    assert (pool.exact_feature, pool.free_share_percent) == ("v100", 100)


def test_a_node_that_is_lost_has_no_room(documents: Documents) -> None:
    node(documents, "v100")["state"] = "LOST"
    assert read_snapshot(documents.get).room("v100") == 0
    assert cluster(documents).pools[2].free_gpu_count == 0


def test_nodes_of_hadoop_3_2_which_tell_no_total_are_read_by_what_is_used_and_free(documents: Documents) -> None:
    whole = read_snapshot(documents.get)
    for each in documents["nodes"]["nodes"]["node"]:
        del each["totalResource"]
    assert read_snapshot(documents.get).nodes == whole.nodes


def test_whole_gpus_make_a_pool_that_cannot_be_shared(documents: Documents) -> None:
    v100 = node(documents, "v100")
    for resource in (v100["totalResource"], v100["availableResource"]):
        set_amount(resource, "gpusage.io/share", 0)
        set_amount(resource, "yarn.io/gpu", 4)
    pool = cluster(documents).pools[2]
    assert (pool.gpu_count, pool.free_gpu_count, pool.mps_per_gpu) == (4, 4, None)


def test_gpus_without_a_label_are_told_of(documents: Documents) -> None:
    del node(documents, "a100")["nodeLabels"]
    actual = cluster(documents)
    assert [pool.site_type for pool in actual.pools] == ["h100", "v100"]
    assert actual.notes == ("2 GPUs are on nodes without a label, and are not used",)


def test_the_type_of_all_gpus_stands_for_a_label_where_no_node_has_one(documents: Documents) -> None:
    settings = YarnSettings(gpu_type="v100")
    assert read_snapshot(documents.get, settings) == read_snapshot(documents.get)  # where there are labels, they count
    for each in documents["nodes"]["nodes"]["node"]:
        each["nodeLabels"] = [""]
    part = next(
        each for each in leaf(documents)["capacities"]["queueCapacitiesByPartition"] if not each.get("partitionName")
    )
    snapshot = read_snapshot(documents.get, settings)
    actual = build_cluster(snapshot, advisor().catalogue)
    assert [(pool.site_type, pool.gpu_count, pool.mps_per_gpu) for pool in actual.pools] == [("v100", 4, 100)]
    assert (actual.pools[0].gpu, actual.notes, snapshot.assumed_type) == ("v100-sxm2-16gb", (), "v100")
    assert "default" in actual.pools[0].partitions
    assert (snapshot.queues[0].capacity["v100"], snapshot.queues[0].missing) == (part["absoluteCapacity"], {})

    part["absoluteMaxCapacity"] = 0
    assert not read_snapshot(documents.get, settings).queues[0].is_accessible("v100")


def test_a_queue_reaches_only_its_labels(documents: Documents) -> None:
    leaf(documents)["nodeLabels"] = ["a100", "v100"]
    part = next(
        each for each in leaf(documents)["capacities"]["queueCapacitiesByPartition"] if each["partitionName"] == "v100"
    )
    part["absoluteMaxCapacity"] = 0
    actual = cluster(documents)
    assert [pool.site_type for pool in actual.within(("default",)).pools] == ["a100"]


def test_a_label_that_is_not_in_the_catalogue_is_a_pool_all_the_same(documents: Documents) -> None:
    node(documents, "v100")["nodeLabels"] = ["blue"]
    assert [(pool.site_type, pool.gpu is None) for pool in cluster(documents).pools][1] == ("blue", True)


def test_an_empty_cluster_is_one() -> None:
    actual = cluster({"info": {}, "nodes": {"nodes": None}, "get-node-labels": {}, "scheduler": {}})
    assert actual.pools == ()


def test_vcores_that_are_given_out_more_than_once_do_not_count(documents: Documents) -> None:
    """With YARN's default calculator, and the one of ours that stands in for it, a node's free vcores fall below 0."""
    v100 = node(documents, "v100")
    set_amount(v100["availableResource"], "vcores", -3)
    parsed = parse_node(v100)
    assert parsed.free.vcores == parsed.total.vcores


def test_of_nodes_with_one_label_those_count_that_offer_shares(documents: Documents) -> None:
    """A plan asks for shares, which the nodes of YARN's own plugin do not have."""
    v100 = node(documents, "v100")
    whole = copy.deepcopy(v100) | {"id": "whole:1"}
    for resource in (whole["totalResource"], whole["availableResource"]):
        set_amount(resource, "gpusage.io/share", 0)
        set_amount(resource, "yarn.io/gpu", 8)
    documents["nodes"]["nodes"]["node"].insert(0, whole)
    pool = cluster(documents).pools[2]
    assert (pool.site_type, pool.gpu_count, pool.mps_per_gpu) == ("v100", 1, 100)
    assert not any(room.node == "whole:1" for kind in pool.node_kinds for room in kind.rooms)
