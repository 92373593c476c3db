import sys
import types
from pathlib import Path
from time import process_time

import pytest

from gpusage.decisions.advisor import advisor
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Cluster, NodeKind, Room
from gpusage_hooks.units import GIB
from gpusage_slurm import scontrol
from gpusage_slurm.cluster import nodes, pools
from gpusage_slurm.cluster.nodes import NodeState, free_share_percent, free_whole_gpus, parse_node
from gpusage_slurm.cluster.pools import how_to_share, naming_notes, pools_of, read_cluster
from gpusage_slurm.submission.request import read_request


def node(name: str, gres: str, used: str = "", **fields: object) -> NodeState:
    values: dict[str, object] = {"features": (), "usable": True} | fields
    return NodeState(name=name, gres=gres, gres_used=used, **values)  # type: ignore[arg-type] - test fields


def test_nodes_of_one_gpu_type_are_one_pool_whatever_their_names() -> None:
    nodes = [node("n1", "gpu:v100:2,mps:200"), node("n2", "gpu:v100:4,mps:400"), node("n3", "gpu:h100:1")]
    v100, h100 = pools_of(nodes, advisor().catalogue)
    assert (v100.gpu, v100.site_type, v100.gpu_count, v100.mps_per_gpu) == ("v100-sxm2-16gb", "v100", 6, 100)
    assert (h100.gpu_count, h100.mps_per_gpu) == (1, None)


@pytest.mark.parametrize(
    ("comments", "limited_by", "why"),
    [
        (("gpusage-limit:wall", "rack 7 gpusage-limit:wall gpusage:x"), "wall", ""),
        (("gpusage-limit:wall", "gpusage-limit:cap(no~cgroup~v2)"), "cap", "no cgroup v2"),
        (("gpusage-limit:cap(no~cgroup~v2)", "gpusage-limit:none(no~cgroup~v2)"), "none", "no cgroup v2"),
        (("gpusage-limit:wall", ""), "cap", "a node has not said yet what it has"),
        (("gpusage-limit:wallet", "gpusage-limit:wall"), "cap", "a node has not said yet what it has"),
    ],
)
def test_a_pool_is_limited_by_the_weakest_of_its_nodes(comments: tuple[str, str], limited_by: str, why: str) -> None:
    """A third one has no shares, and so does not count."""
    nodes = [
        parse_node({"name": f"n{place}", "gres": "gpu:v100:2,mps:200", "comment": comment})
        for place, comment in enumerate(comments)
    ]
    (pool,) = pools_of([*nodes, node("n3", "gpu:v100:2", limited_by="none")], advisor().catalogue)
    assert (pool.limited_by, pool.why_no_wall) == (limited_by, why)


@pytest.mark.parametrize(
    ("gres", "features", "expected"),
    [
        ("gpu:a100_3g.20gb:2", (), "a100-sxm4-40gb:3g.20gb"),
        ("gpu:nvidia_a100-sxm4-80gb_1g.10gb:7", (), "a100-sxm4-80gb:1g.10gb"),
        ("gpu:1g.10gb:7", ("h100", "ib"), "h100-sxm5-80gb:1g.10gb"),
        ("gpu:1g.10gb:7,gpu:a100-80gb:1", (), "a100-sxm4-80gb:1g.10gb"),
        ("gpu:3g.20gb:2", ("a100-pcie",), "a100-pcie-40gb:3g.20gb"),
        ("gpu:1g.5gb:7", (), "a100-sxm4-40gb:1g.5gb"),
        ("gpu:1g.10gb:7", (), None),
        ("gpu:6g.30gb:1", ("a100",), None),
        ("gpu:mig:7", ("a100",), None),  # of which profile, nobody says
        ("gpu:a100_mig:7", (), None),
        ("gpu:a100mig:7", ("a100",), None),
        ("gpu:a100_1g5gb:7", ("a100",), None),
        ("gpu:3g:1", ("a100",), None),
        ("gpu:7", ("a100", "mig"), None),
        ("gpu:7", ("a100", "migration"), "a100-sxm4-40gb"),
    ],
)
def test_a_slice_is_a_type_of_its_own_by_nvidia_s_and_by_the_site_s_names(
    gres: str, features: tuple[str, ...], expected: str | None
) -> None:
    pool, *_ = pools_of([node("n1", gres, features=features)], advisor().catalogue)
    assert pool.gpu == expected


@pytest.mark.parametrize("slices", ["", ",gpu:1g.10gb:7"])
def test_units_without_a_type_are_of_all_whole_gpus_of_a_node(slices: str) -> None:
    """A share of 75 % in the units of half of them would be more than a GPU has, and wait for good."""
    pools = pools_of([node("n1", f"gpu:v100:2,gpu:h100:2{slices},mps:400")], advisor().catalogue)
    assert [pool.mps_per_gpu for pool in pools[:2]] == [100, 100]


def test_gpus_that_jobs_do_not_use_up_have_their_type() -> None:
    (pool,) = pools_of([node("n1", "gpu:v100:no_consume:4")], advisor().catalogue)
    assert (pool.site_type, pool.gpu_count) == ("v100", 4)


def test_gpus_that_a_node_line_has_none_of_are_not_to_be_shared() -> None:
    assert not how_to_share(pools_of([node("n1", "gpu:v100:0")], advisor().catalogue), advisor().catalogue)


@pytest.mark.parametrize(
    "used",
    [
        "gpu:v100:1(IDX:0),mps:v100:2(IDX:1,3)",
        "gpu:v100:1(IDX:0),mps:v100:2(IDX:2-3)",
        "gpu:v100:1(IDX:0),mps:v100:120(0/100,80/100,40/100,0/100)",
        "gpu:v100:1,mps:v100:120",
    ],
)
def test_a_gpu_in_use_whole_or_shared_is_not_free(used: str) -> None:
    (pool,) = pools_of([node("n1", "gpu:v100:4,mps:v100:400", used)], advisor().catalogue)
    assert pool.free_gpu_count == 1


@pytest.mark.parametrize(
    "used", ["gpu:v100:0(IDX:N/A),mps:v100:0(IDX:N/A)", "gpu:v100:0(IDX:N/A),mps:v100:0(0/100,0/100)", ""]
)
def test_a_node_without_jobs_has_all_its_gpus_free(used: str) -> None:
    (pool,) = pools_of([node("n1", "gpu:v100:2,mps:v100:200", used)], advisor().catalogue)
    assert pool.free_gpu_count == 2


@pytest.mark.parametrize(
    ("used", "free_percent"),
    [
        ("gpu:v100:0", 0),
        ("gpu:v100:0,mps:v100:80(IDX:0-1)", 60),  # 40 of 100 units each, in the mean
        ("gpu:v100:0,mps:v100:80(70/100,10/100)", 90),
        ("gpu:v100:1,mps:v100:100(100/100,0/100)", 0),
    ],
)
def test_what_is_free_of_a_shared_gpu_is_known(used: str, free_percent: int) -> None:
    assert free_share_percent(used, "v100", 100) == free_percent


def test_what_nodes_have_beside_gpus_is_known_of_each_kind() -> None:
    nodes = [node("n1", "gpu:v100:2"), node("n2", "gpu:v100:2")]
    nodes.append(node("n3", "gpu:v100:2", memory_mib=64 * 1024, cpu_count=8, partitions=("long",)))
    (pool,) = pools_of(nodes, advisor().catalogue)
    small, large = pool.node_kinds
    assert (small.cpu_count, small.host_memory_bytes) == (0, 0)
    assert large == NodeKind(
        has_shares=False,
        partitions=("long",),
        features=small.features,
        cpu_count=8,
        host_memory_bytes=64 * GIB,
        room=Room(share_percent=100, cpu_count=8, host_memory_bytes=64 * GIB),
        free_gpu_count=2,
        rooms=(Room(share_percent=100, cpu_count=8, host_memory_bytes=64 * GIB, node="n3"),),
        gpu_count=2,
        node_names=("n3",),
    )
    assert [room.node for room in small.rooms] == ["n1", "n2"]
    assert small.free_gpu_count == 4


def test_the_room_of_a_kind_is_that_of_one_node_on_which_a_job_could_start_now() -> None:
    def at(name: str, used: str, **fields: object) -> NodeState:
        values = {"cpu_count": 8, "memory_mib": 1024, "partitions": ("gpu",)} | fields
        return node(name, "gpu:v100:2,mps:200", used, **values)

    full = at("n1", "gpu:v100:2", used_cpu_count=2)
    shared = at("n2", "gpu:v100:1,mps:v100:40(IDX:1)", used_cpu_count=6, used_memory_mib=512)
    stored = at("n3", "", open=False)
    rooms = [
        pools_of(nodes, advisor().catalogue)[0].node_kinds[0].room for nodes in ((full, shared, stored), (stored,))
    ]
    assert rooms == [Room(share_percent=60, cpu_count=2, host_memory_bytes=GIB // 2), Room()]
    (kind,) = pools_of((full, shared, stored), advisor().catalogue)[0].node_kinds
    assert [(room.node, room.share_percent) for room in kind.rooms] == [("n2", 60)]


@pytest.mark.parametrize("state", ["MAINT", "MAINTENANCE", "RESERVED", "PLANNED", "DRAIN", "DOWN", "REBOOT_ISSUED"])
def test_a_node_from_which_something_keeps_jobs_away_has_no_room(state: str) -> None:
    assert not parse_node({"name": "n1", "state": ["IDLE", state]}).open
    assert parse_node({"name": "n1", "state": ["MIXED"]}).open


def test_gpus_of_a_node_that_is_down_count_but_are_not_free() -> None:
    (pool,) = pools_of([node("n1", "gpu:v100:4,mps:400", usable=False)], advisor().catalogue)
    assert (pool.gpu_count, pool.free_gpu_count) == (4, 0)


def test_shards_are_no_shares_of_ours_and_a_gpu_with_one_is_not_free() -> None:
    (pool,) = pools_of([node("a", "gpu:t4:2,shard:t4:16", "gpu:t4:0,shard:t4:3(3/8,0/8)")], advisor().catalogue)
    assert (pool.shards_per_gpu, pool.mps_per_gpu, pool.may_hold_shares) == (8, None, False)
    assert pool.free_gpu_count == 1


def test_nodes_that_divide_their_gpus_differently_are_not_shared() -> None:
    nodes = [node("n1", "gpu:v100:1,mps:100"), node("n2", "gpu:v100:1,mps:50")]
    assert pools_of(nodes, advisor().catalogue)[0].mps_per_gpu is None


def test_a_feature_named_after_the_type_leads_to_its_pool_only_where_every_node_has_it() -> None:
    both = [node("n1", "gpu:v100:1", features=("v100", "ib")), node("n2", "gpu:v100:1", features=("v100",))]
    one = [both[0], node("n2", "gpu:v100:1", features=("ib",))]
    assert pools_of(both, advisor().catalogue)[0].feature == "v100"
    assert pools_of(one, advisor().catalogue)[0].feature == "ib"  # as true of exactly these nodes as a name


@pytest.mark.parametrize(
    ("other", "exact"),
    [
        (("n2", "gpu:h100:1", ("h100",)), "v100"),
        (("n2", "", ("v100",)), "ib"),  # by the other, a job held by the feature alone could land there, on no GPU
        (("n2", "gpu:h100:1", ("V100",)), "ib"),
        (("n2", "gpu:h100:1", ("V100", "ib")), None),
        (("n2", "gpu:v100:1,gpu:h100:1", ("v100",)), None),  # the feature does not tell which of the two
        (("n2", "gpu:v100:1", ()), None),
    ],
)
def test_a_feature_holds_a_job_to_a_type_where_it_is_on_exactly_that_types_nodes(
    other: tuple[str, str, tuple[str, ...]], exact: str | None
) -> None:
    name, gres, features = other
    nodes = [node("n1", "gpu:v100:2", features=("v100", "ib")), node(name, gres, features=features)]
    assert pools_of(nodes, advisor().catalogue)[0].exact_feature == exact


def test_a_type_of_which_some_nodes_are_shared_is_shared_there() -> None:
    """As on a site with a partition for tests, and one node that is cut into slices."""
    nodes = [
        node("g1", "gpu:a100:4,mps:400", features=("ampere", "80gb")),
        node("i1", "gpu:a100:2,gpu:a100_3g.40gb:2", features=("ampere", "80gb")),
        node("n1", "gpu:h100:8,mps:800", features=("hopper", "80gb")),
        node("n2", "gpu:h100:8", features=("hopper", "80gb")),
        node("v1", "gpu:v100:8", features=("volta",)),
    ]
    a100, slices, h100, v100 = pools_of(nodes, advisor().catalogue)
    assert (a100.mps_per_gpu, a100.exact_feature, a100.holding_feature) == (100, None, "ampere")
    assert (h100.mps_per_gpu, h100.exact_feature, h100.holding_feature) == (100, "hopper", "hopper")
    assert [kind.has_shares for kind in h100.node_kinds] == [True, False]
    assert not v100.may_hold_shares
    assert (slices.mps_per_gpu, slices.exact_feature) == (None, None)


def test_gpus_without_a_type_are_known_by_the_nodes_feature() -> None:
    (pool,) = pools_of([node("n1", "gpu:2", features=("a100",))], advisor().catalogue)
    assert pool.gpu is not None
    assert pool.gpu.startswith("a100")
    assert (pool.site_type, pool.feature, pool.exact_feature) == ("a100", "a100", "a100")


def test_gpus_without_a_type_are_one_pool_for_each_feature_that_tells_what_they_are() -> None:
    """A site whose `Gres` names no type has no empty name in any reason, and its GPU types are told apart."""
    nodes = [
        node("a1", "gpu:4,mps:400", "gpu:1(IDX:0),mps:50(IDX:1)", features=("a100", "ib")),
        node("v1", "gpu:2,mps:200", features=("ib", "v100")),
        node("x1", "gpu:8", features=("ib",)),
        node("s1", "gpu:8", features=("a100_3g.20gb",)),
    ]
    a100, v100, other = pools_of(nodes, advisor().catalogue)
    assert [pool.site_type for pool in (a100, v100, other)] == ["a100", "v100", ""]
    assert (a100.gpu_count, a100.free_gpu_count, a100.mps_per_gpu) == (4, 2, 100)
    assert (a100.exact_feature, v100.exact_feature, other.exact_feature) == ("a100", "v100", None)
    assert (other.gpu, other.gpu_count) == (None, 16)


def test_an_unknown_gpu_type_is_a_pool_without_a_catalogue_name() -> None:
    (pool,) = pools_of([node("n1", "gpu:gaudi3:8")], advisor().catalogue)
    assert (pool.gpu, pool.site_type, pool.gpu_count) == (None, "gaudi3", 8)


@pytest.mark.parametrize(
    ("document", "usable"),
    [
        ({"name": "n1", "state": "idle", "state_flags": [], "features": "v100,ib"}, True),
        ({"name": "n1", "state": ["IDLE", "DRAIN"], "features": ["v100", "ib"]}, False),
        ({"name": "n1", "state": "down*", "features": "v100,ib"}, False),
        ({"name": "n1", "state": "allocated", "state_flags": ["NOT_RESPONDING"], "features": ["v100", "ib"]}, False),
    ],
)
def test_a_node_is_read_in_the_json_of_every_release(document: dict[str, object], usable: bool) -> None:  # a parameter
    actual = parse_node({**document, "gres": "gpu:v100:1", "gres_used": "gpu:v100:0"})
    assert (actual.features, actual.usable) == (("v100", "ib"), usable)


def test_a_job_sees_only_the_pools_that_its_partition_reaches() -> None:
    nodes = [node("n1", "gpu:v100:1", partitions=("old", "all")), node("n2", "gpu:h100:1", partitions=("new", "all"))]
    seen = Cluster(manager="slurm", version="", pools=pools_of(nodes, advisor().catalogue), default_partition="old")
    assert [pool.site_type for pool in seen.within(("new",)).pools] == ["h100"]
    assert [pool.site_type for pool in seen.within(()).pools] == ["v100"]
    assert [pool.site_type for pool in seen.within(("new", "old")).pools] == ["v100", "h100"]


@pytest.mark.parametrize(
    ("constraint", "prefer", "kinds"),
    [
        ("h100", "", ["h100"]),
        (" v100 & ib ", "", ["v100", "h100"]),  # blanks: not plain, so nothing is known
        ("v100&ib", "", ["v100"]),
        ("ib", "", ["v100", "h100"]),
        ("big|ib", "", ["v100", "h100"]),
        ("v100&h100", "", []),
        ("mig", "", ["h100"]),  # after a restart
        ("[rack1|rack2]", "", ["v100", "h100"]),
        ("h100*1", "", ["v100", "h100"]),
        ("h100&(ib|big)", "", ["v100", "h100"]),
        ("|".join(["h100"] * 300), "", ["v100", "h100"]),  # longer than Slurm's own limit
        ("h100", "v100", ["v100", "h100"]),  # Slurm tries the preference in place of the constraint
        ("", "", ["v100", "h100"]),
    ],
)
def test_a_job_sees_only_the_pools_that_its_constraint_leaves(constraint: str, prefer: str, kinds: list[str]) -> None:
    nodes = [
        node("n1", "gpu:v100:1", features=("v100",)),
        node("n2", "gpu:v100:1", features=("v100", "ib")),
        node("n3", "gpu:h100:1", features=("h100", "ib", "big"), possible_features=("mig",)),
    ]
    seen = Cluster(manager="slurm", version="", pools=pools_of(nodes, advisor().catalogue))
    request = read_request({"tres_per_node": "gres:gpu:1", "features": constraint, "prefer": prefer})
    actual = seen.within(request.partitions, request.scopes, request.node_features)
    assert [pool.site_type for pool in actual.pools] == kinds


def test_what_a_node_may_have_after_a_restart_counts_as_its_own() -> None:
    actual = parse_node({"name": "n1", "active_features": ["h100"], "features": ["h100", "mig"], "gres": "gpu:h100:1"})
    assert pools_of([actual], advisor().catalogue)[0].node_features == (("h100", "mig"),)


class Table:
    """PySlurm's, as 22.5.3 gave it of a sandbox with one whole and one shared GPU in use."""

    def get(self) -> dict[str, dict[str, object]]:
        """Return its one node."""
        used = ["gpu:v100:1(IDX:1)", "mps:v100:1(IDX:0)"]
        fields = {"name": "n1", "gres": ["gpu:v100:3", "mps:v100:300"], "gres_used": used, "state": "MIXED"}
        return {"n1": {**fields, "features": "v100", "features_active": "v100", "partitions": ["p"]}}


def test_pyslurm_is_read_where_it_is_of_slurms_version_and_the_commands_where_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = [{"name": "c1", "gres": "gpu:v100:4", "gres_used": "", "features": "v100", "state": "idle"}]
    catalogue = advisor().catalogue
    monkeypatch.setattr(pools.scontrol, "version", lambda: (24, 11))
    monkeypatch.setattr(pools.scontrol, "nodes", lambda: commands)
    monkeypatch.setattr(nodes, "pyslurm_version", lambda: (24, 11))
    monkeypatch.setitem(sys.modules, "pyslurm", types.SimpleNamespace(node=Table))
    assert [(pool.gpu_count, pool.free_gpu_count) for pool in read_cluster((), catalogue).pools] == [(3, 1)]
    monkeypatch.setitem(sys.modules, "pyslurm", types.SimpleNamespace())
    assert [pool.gpu_count for pool in read_cluster((), catalogue).pools] == [4]
    monkeypatch.setattr(nodes, "pyslurm_version", lambda: (23, 2))
    monkeypatch.setitem(sys.modules, "pyslurm", types.SimpleNamespace(node=Table))
    assert [pool.gpu_count for pool in read_cluster((), catalogue).pools] == [4]


def test_a_command_that_this_user_may_not_run_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\n")
    monkeypatch.setattr(scontrol, "environment", lambda: {"PATH": str(tmp_path)})  # this host may have one that works
    with pytest.raises(RequestError, match=r"'scontrol' must be on the PATH.*Permission denied"):
        scontrol.configuration()


@pytest.mark.parametrize("gres", ["gpu:v100:2(S:0,2),mps:v100:200(S:0-1)", "mps:200,gpu:v100:2(S:0,2)"])
def test_a_node_that_keeps_cores_for_whole_gpus_shares_none(gres: str) -> None:
    """Slurm 24.05 to 25.05 refuse a job on a share there, for want of cores."""
    node = {"name": "n1", "gres": gres, "res_cores_per_gpu": 16}
    assert parse_node(node).gres == "gpu:v100:2(S:0,2)"
    assert not parse_node(node).has_shares
    assert parse_node({**node, "res_cores_per_gpu": 0}).has_shares


@pytest.mark.parametrize("piece", [",mps:1(", "mps:1(("])
def test_a_long_odd_list_of_resources_is_read_in_no_time(piece: str) -> None:
    """Each bracket looked for its end through all of the text: 20,000 took 13 s."""
    gres, begun_s = 20_000 * piece, process_time()
    free_whole_gpus(parse_node({"name": "n1", "gres": gres, "gres_used": gres, "res_cores_per_gpu": 1}))
    free_share_percent(gres, "", 100)
    assert process_time() < begun_s + 5


def two_sizes(*features: str) -> list[tuple[str, str | None, str, str | None]]:
    """Return the pools of a type a100, a node for each of *features*: names, GPUs, what a job names, exact features."""
    nodes = [node(f"n{place}", "gpu:a100:4", features=("ib", word)) for place, word in enumerate(features)]
    pools = pools_of(nodes, advisor().catalogue)
    return [(pool.site_type, pool.gpu, pool.requestable_type, pool.exact_feature) for pool in pools]


@pytest.mark.parametrize(
    ("small", "large"), [("40gb", "80gb"), ("gpu40", "gpu80"), ("hbm40g", "hbm80g"), ("a100_40", "a100-80g")]
)
def test_two_sizes_of_one_type_are_told_apart_by_a_feature(small: str, large: str) -> None:
    assert two_sizes(small, large) == [
        ("a100-sxm4-40gb", "a100-sxm4-40gb", "a100", small),
        ("a100-sxm4-80gb", "a100-sxm4-80gb", "a100", large),
    ]


@pytest.mark.parametrize("word", ["rack80", "80", "mem80g", "cpu80", "8gb", "800gb"])
def test_a_feature_of_something_else_tells_no_size(word: str) -> None:
    assert [gpu for _, gpu, _, _ in two_sizes("ib2", word)] == ["a100-sxm4-40gb"]


def test_gpus_without_a_type_are_known_by_a_feature_and_no_job_can_name_them() -> None:
    nodes = [node("n1", "gpu:4", features=("gpu", "a100", "hbm80g")), node("n2", "gpu:4", features=("v100-32g",))]
    a100, v100 = pools_of(nodes, advisor().catalogue)
    assert (a100.gpu, a100.site_type, a100.requestable_type) == ("a100-sxm4-80gb", "a100", "")
    assert (v100.gpu, v100.site_type, v100.requestable_type) == ("v100-sxm2-32gb", "v100-32g", "")


@pytest.mark.parametrize(
    ("gres", "words"),
    [
        ("gpu:4", "4 GPUs are not understood, Gres=gpu:4 of n1: write Features=a100 there"),
        ("gpu:rtx:2", "2 GPUs are not understood, Gres=gpu:rtx:2 of n1: write Features=a100 there"),
        ("gpu:mig:7", "7 GPUs are not understood, Gres=gpu:mig:7 of n1: name the profile"),
    ],
)
def test_a_site_is_told_which_line_makes_its_gpus_understood(gres: str, words: str) -> None:
    nodes = [node("n1", gres)]
    (note,) = notes_of(nodes)
    assert note.startswith(words)


def test_a_site_is_told_where_no_feature_leads_shares_to_a_type() -> None:
    nodes = [node("n1", "gpu:h100:2,mps:200"), node("n2", "gpu:t4:2,mps:200", features=("t4",))]
    (note,) = notes_of(nodes)
    assert note == "no feature leads shares to h100 alone: write Features=h100, say, on their nodes"
    assert notes_of(nodes[:1]) == ()


def notes_of(nodes: list[NodeState]) -> tuple[str, ...]:
    catalogue = advisor().catalogue
    return naming_notes(pools_of(nodes, catalogue), catalogue)


def test_no_line_is_named_by_which_gpus_of_amd_could_be_shared() -> None:
    assert notes_of([node("n1", "gpu:mi250:8")]) == ()
    (note,) = notes_of([node("n1", "gpu:v100:2")])
    assert note.startswith("To share v100: GresTypes=gpu,mps")
