"""The cluster that `gpusage validate` decides for: from a file, from the manager itself, or an example.

A file is JSON or TOML with the fields of `gpusage_hooks.types.Cluster`: a list ``pools``, each with ``site_type``,
``gpu_count`` and, where they are not the usual ones, ``gpu``, ``free_gpu_count``, ``free_share_percent``,
``mps_per_gpu``, ``feature``, ``exact_feature``, ``partitions``, ``node_features`` and ``node_kinds``; a table
``unshared`` has the places whose GPUs stay whole, ``partition=gpu``, ``reservation=course`` or ``qos=short``, each with
why. What `gpusage status --json` prints is such a file, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from gpusage_hooks.errors import DeviceError, GpuUsageError, RequestError
from gpusage_hooks.types import Cluster, GpuPool, NodeKind

if TYPE_CHECKING:
    from gpusage.advisor import Advisor
    from gpusage.devices.catalogue import Catalogue
    from gpusage_hooks.managers import Manager

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Origin = Literal["file", "local", "example"]
MAXIMUM_FILE_BYTES = 16 * 1024 * 1024
EXAMPLE_POOLS = (("t4", 8), ("v100", 8), ("a100", 8), ("h100", 4))
KEYS = (
    *("site_type", "gpu_count", "gpu", "free_gpu_count", "mps_per_gpu", "feature", "exact_feature", "partitions"),
    *("node_features", "node_kinds", "free_share_percent"),
)


def find_cluster(advisor: Advisor, manager: Manager, path: Path | None) -> tuple[Cluster, Origin]:
    """Return the cluster of *path*, else *manager*'s own, else an example whose notes say why; and where it is from.

    Raises:
        RequestError: The file is not a cluster.
    """
    if path is not None:
        return read_cluster(path, manager.name, advisor.catalogue), "file"
    try:
        seen = advisor.hooks.observe_cluster(manager.name, advisor.context(manager.name))
        trouble = f"There is no {manager.title} on this host."
    except GpuUsageError as error:
        seen, trouble = None, str(error)
    if seen is not None:
        return seen, "local"
    return replace(example_cluster(manager.name, advisor.catalogue), notes=(trouble,)), "example"


def example_cluster(manager: str, catalogue: Catalogue) -> Cluster:
    """Return a cluster of four generations whose GPUs can all be shared and are all free."""
    pools = [
        GpuPool(
            gpu=catalogue.find(name).name,
            site_type=name,
            gpu_count=count,
            free_gpu_count=count,
            mps_per_gpu=100,
            feature=name,
            exact_feature=name,
            node_features=((name,),),
        )
        for name, count in EXAMPLE_POOLS
    ]
    return Cluster(manager=manager, version="", pools=tuple(pools))


def read_cluster(path: Path, manager: str, catalogue: Catalogue) -> Cluster:
    """Return the cluster that the file at *path* describes.

    Raises:
        RequestError: It cannot be read, or is not a cluster.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAXIMUM_FILE_BYTES).decode()
        document = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        message = f"Cluster file {str(path)!r} must be a readable file; got: {error.strerror}. Check the path."
        raise RequestError(message) from error
    except (ValueError, RecursionError) as error:
        message = f"Cluster file {str(path)!r} must be JSON, or TOML where its name ends so; got: {error}. Mend it."
        raise RequestError(message) from error
    return parse_cluster(document, manager, catalogue, origin=str(path))


def parse_cluster(document: Any, manager: str, catalogue: Catalogue, *, origin: str) -> Cluster:  # noqa: ANN401 - any JSON
    """Return the cluster that *document* describes."""
    table = _table(document, manager)
    rows = table.get("pools")
    if not isinstance(rows, list) or not rows:
        _refuse(origin, "pools", "a list of at least one GPU type", rows)
    pools = tuple(_pool(row, catalogue, f"{origin}, pool {index + 1}") for index, row in enumerate(rows))
    partition = table.get("default_partition")
    return Cluster(
        manager=manager,
        version=str(table.get("version", "")),
        pools=pools,
        default_partition=None if partition is None else str(partition),
        unshared=_unshared(table, origin),
    )


def _table(document: Any, manager: str) -> Mapping[str, Any]:  # noqa: ANN401 - any JSON
    """Return the part that describes the cluster: the whole, or the daemon's ``clusters``."""
    if not isinstance(document, dict):
        return {}
    clusters = document.get("clusters")
    inner = clusters.get(manager) if isinstance(clusters, dict) else document
    return inner if isinstance(inner, dict) else {}


def _pool(row: Any, catalogue: Catalogue, origin: str) -> GpuPool:  # noqa: ANN401 - any JSON
    if not isinstance(row, dict):
        _refuse(origin, "pools", "tables", row)
    unknown = sorted(set(row) - set(KEYS))
    if unknown:
        _refuse(origin, unknown[0], f"one of {', '.join(KEYS)}", row[unknown[0]])
    site_type = row.get("site_type")
    if not isinstance(site_type, str) or not site_type:
        _refuse(origin, "site_type", "the site's own name of the type", site_type)
    count = _count(row, "gpu_count", origin)
    if count is None:
        _refuse(origin, "gpu_count", "a whole number of GPUs", None)
    free = _count(row, "free_gpu_count", origin)
    feature = row.get("feature", site_type)
    exact = row.get("exact_feature", feature)
    return GpuPool(
        gpu=_gpu(row.get("gpu", site_type), catalogue, named="gpu" in row),
        site_type=site_type,
        gpu_count=count,
        free_gpu_count=count if free is None else free,
        mps_per_gpu=_count(row, "mps_per_gpu", origin),
        feature=None if feature is None else str(feature),
        exact_feature=None if exact is None else str(exact),
        partitions=_names(row, "partitions", origin),
        node_features=_groups(row, "node_features", origin),
        node_kinds=_kinds(row, origin),
        free_share_percent=_count(row, "free_share_percent", origin),
    )


def _gpu(name: str | None, catalogue: Catalogue, *, named: bool) -> str | None:
    """Return the catalogue's name; a type that only the site knows is no error, a wrong ``gpu`` is one."""
    if name is None:
        return None
    try:
        return catalogue.find(str(name)).name
    except DeviceError:
        if named:
            raise
        return None


def _count(row: Mapping[str, Any], key: str, origin: str) -> int | None:
    value = row.get(key)
    if value is not None and (type(value) is not int or value < 0):
        _refuse(origin, key, "a whole number of at least 0", value)
    return value


def _names(row: Mapping[str, Any], key: str, origin: str) -> tuple[str, ...]:
    value = row.get(key, [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        _refuse(origin, key, "a list of names", value)
    return tuple(value)


def _groups(row: Mapping[str, Any], key: str, origin: str) -> tuple[tuple[str, ...], ...]:
    value = row.get(key, [])
    if not isinstance(value, list):
        _refuse(origin, key, "a list of lists of names", value)
    return tuple(_names({key: group}, key, origin) for group in value)


def _kinds(row: Mapping[str, Any], origin: str) -> tuple[NodeKind, ...]:
    value = row.get("node_kinds", [])
    if not isinstance(value, list) or not all(isinstance(kind, dict) for kind in value):
        _refuse(origin, "node_kinds", "a list of tables", value)
    return tuple(
        NodeKind(
            partitions=_names(kind, "partitions", origin),
            features=_names(kind, "features", origin),
            cpu_count=_count(kind, "cpu_count", origin) or 0,
            host_memory_bytes=_count(kind, "host_memory_bytes", origin) or 0,
        )
        for kind in value
    )


def _unshared(table: Mapping[str, Any], origin: str) -> dict[str, str]:
    value = table.get("unshared", {})
    if not isinstance(value, dict) or not all(isinstance(why, str) for why in value.values()):
        _refuse(origin, "unshared", "a table of partitions or places, each with why its GPUs stay whole", value)
    return value


def _refuse(origin: str, key: str, rule: str, found: object) -> NoReturn:
    message = f"Key {key!r} of cluster {origin!r} must be {rule}; got {found!r}. 'gpusage status --json' writes one."
    raise RequestError(message)
