"""The cluster that scripts are validated against."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gpusage.cli.cluster_file import example_cluster, parse_cluster
from gpusage.cli.user_file import read_document
from gpusage.devices.catalogue import Catalogue, describe_gpus
from gpusage_hooks.errors import DeviceError, RequestError
from gpusage_hooks.types import Cluster

CATALOGUE = Catalogue(describe_gpus())
POOL = {"site_type": "v100", "gpu_count": 4}


def read_cluster(path: Path, manager: str) -> Cluster:
    return parse_cluster(read_document(path, "Cluster file"), manager, CATALOGUE, origin=str(path))


def test_a_pool_needs_only_its_type_and_count() -> None:
    (pool,) = parse_cluster({"pools": [POOL]}, "slurm", CATALOGUE, origin="c.json").pools
    assert (pool.gpu, pool.feature) == ("v100-sxm2-16gb", "v100")
    assert (pool.gpu_count, pool.free_gpu_count, pool.mps_per_gpu) == (4, 4, None)


def test_a_type_that_only_the_site_knows_is_named_by_its_gpu_or_stays_unknown() -> None:
    named = {**POOL, "site_type": "bigmem", "gpu": "a100-sxm4-80gb", "mps_per_gpu": 200, "partitions": ["long"]}
    unknown = {**POOL, "site_type": "bigmem", "feature": None}
    first, second = parse_cluster({"pools": [named, unknown]}, "slurm", CATALOGUE, origin="c.json").pools
    assert (first.gpu, first.mps_per_gpu, first.partitions) == ("a100-sxm4-80gb", 200, ("long",))
    assert (second.gpu, second.feature) == (None, None)


def test_a_wrong_gpu_is_an_error() -> None:
    with pytest.raises(DeviceError, match="v1000"):
        parse_cluster({"pools": [{**POOL, "gpu": "v1000"}]}, "slurm", CATALOGUE, origin="c.json")


def test_what_the_daemon_says_of_itself_is_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    seen = example_cluster("slurm", CATALOGUE)
    seen = replace(
        seen, version="24.11", unshared={"partition=p": "w"}, pools=(replace(seen.pools[0], partitions=("p",)),)
    )
    path.write_text(json.dumps({"code": "OK", "clusters": {"slurm": {"age_s": 1, **asdict(seen)}}}))
    assert read_cluster(path, "slurm") == seen
    assert read_cluster(path, "simulated").pools == seen.pools


def test_toml_is_read_by_its_suffix(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('default_partition = "gpu"\n[[pools]]\nsite_type = "t4"\ngpu_count = 2\n')
    cluster = read_cluster(path, "slurm")
    assert (cluster.default_partition, cluster.pools[0].gpu) == ("gpu", "t4")


@pytest.mark.parametrize(
    ("document", "rule"),
    [
        ([], "a list of at least one GPU type"),
        ({"pools": []}, "a list of at least one GPU type"),
        ({"pools": ["v100"]}, "tables"),
        ({"pools": [{"gpu_count": 1}]}, "the site's own name of the type"),
        ({"pools": [{"site_type": "t4"}]}, "a whole number of at least 0; got nothing"),
        ({"pools": [{**POOL, "gpu_count": -1}]}, "a whole number of at least 0"),
        ({"pools": [{**POOL, "mps_per_gpu": True}]}, "a whole number of at least 0"),
        ({"pools": [{**POOL, "limited_by": "hope"}]}, "'limited_by' .*must be wall, cap or none; got 'hope'"),
        ({"pools": [{**POOL, "partitions": "gpu"}]}, "a list of names"),
        ({"pools": [{**POOL, "node_features": "ib"}]}, "a list of lists of names"),
        ({"pools": [{**POOL, "node_features": ["ib"]}]}, r"a list of lists of names; got \['ib'\]"),
        (
            {"pools": [{**POOL, "count": 3}]},
            "'count' of cluster 'c.json, pool 1' must be a known one; got 3. Did you mean 'gpu_count'",
        ),
        (
            {"pools": [POOL, {**POOL, "x": 3}]},
            "pool 2' must be a known one; got 3. Known are site_type, gpu_count, gpu",
        ),
        (
            {"pools": [{**POOL, "node_kinds": [{"cpu_count": "2"}]}]},
            "'cpu_count' .*pool 1' must be a whole number; got",
        ),
        ({"pools": [{**POOL, "\ud800": 1}]}, "must be Unicode"),
        ({"pools": [{**POOL, "feature": 1}]}, "'feature' .*pool 1' must be a text; got 1"),
        ({"pools": [POOL], "unshared": ["gpu"]}, "a table of partitions"),
        ({"pools": [{**POOL, "power_w": "280"}]}, "watts, .*docs/planning.md has its keys"),
    ],
)
def test_a_malformed_cluster_is_refused_with_its_rule(document: Any, rule: str) -> None:  # any JSON
    with pytest.raises(RequestError, match=rule):
        parse_cluster(document, "slurm", CATALOGUE, origin="c.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_bytes(content)
    with pytest.raises(RequestError, match="must be JSON"):
        read_cluster(path, "slurm")


def test_a_file_that_is_absent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="No such file"):
        read_cluster(tmp_path / "absent.json", "slurm")


def test_the_example_cluster_can_share_every_gpu() -> None:
    pools = example_cluster("slurm", CATALOGUE).pools
    assert len({pool.gpu for pool in pools}) == len(pools)
    assert all(pool.mps_per_gpu for pool in pools)
