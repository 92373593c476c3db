"""The cluster that `gpusage validate` decides for: from a file, from the manager itself, or an example.

A file is JSON or TOML with the fields of `gpusage_hooks.types.Cluster`: a list ``pools``, each with ``site_type``,
``gpu_count`` and, where they are not the usual ones, ``gpu``, ``free_gpu_count``, ``free_share_percent``,
``mps_per_gpu``, ``shards_per_gpu``, ``limited_by``, ``feature``, ``exact_feature``, ``partitions``, ``node_features``,
``node_kinds`` and ``billing_weight``; a table ``unshared`` has the places whose GPUs stay whole, ``partition=gpu``,
``reservation=course`` or ``qos=short``, each with why. What `gpusage status --json` prints is such a file, too.
``power_w`` and ``idle_power_w`` of a pool are what one of its GPUs was measured to take, busy and idle;
``gpus_per_node`` is how many stand in each of its nodes, or ``node_gpu_counts`` where these differ.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from gpusage.boundary.typed_documents import MismatchError, read_as
from gpusage.cli.user_file import read_document, refusal
from gpusage_hooks.errors import DeviceError, GpuUsageError
from gpusage_hooks.types import Cluster, GpuPool, LimitedBy, NodeKind

if TYPE_CHECKING:
    from gpusage.decisions.advisor import Advisor
    from gpusage.devices.catalogue import Catalogue
    from gpusage_hooks.managers import Manager

Origin = Literal["file", "local", "example"]
EXAMPLE_POOLS = (("t4", 8), ("v100", 8), ("a100", 8), ("h100", 4))
_Count = Annotated[int, Meta(ge=0, description="a whole number of at least 0")]
_Weight = Annotated[float, Meta(ge=0, description="a number of at least 0")]
_Power = Annotated[float, Meta(ge=0, le=1e5, description="watts, a number of at least 0")]
_PerNode = Annotated[int, Meta(ge=1, description="a whole number of at least 1")]
_Names = Annotated[tuple[str, ...], Meta(description="a list of names")]
_Groups = Annotated[tuple[_Names, ...], Meta(description="a list of lists of names")]
_SiteType = Annotated[str, Meta(min_length=1, description="the site's own name of the type")]


class _Pool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The GPUs of one type, as they are written down."""

    site_type: _SiteType
    gpu_count: _Count
    gpu: str | UnsetType | None = UNSET
    free_gpu_count: _Count | None = None
    mps_per_gpu: _Count | None = None
    shards_per_gpu: _Count | None = None
    feature: str | UnsetType | None = UNSET
    exact_feature: str | UnsetType | None = UNSET
    share_feature: str | None = None
    request_type: str | None = None
    partitions: _Names = ()
    node_features: _Groups = ()
    node_kinds: tuple[NodeKind, ...] = ()
    free_share_percent: _Count | None = None
    billing_weight: _Weight | None = None
    power_w: _Power | None = None
    idle_power_w: _Power | None = None
    gpus_per_node: _PerNode | None = None
    node_gpu_counts: tuple[_PerNode, ...] = ()
    node_names: _Names = ()
    limited_by: Annotated[LimitedBy, Meta(description="wall, cap or none")] = "cap"
    why_no_wall: str = ""


_Pools = Annotated[tuple[_Pool, ...], Meta(min_length=1, description="a list of at least one GPU type, as tables")]
_Unshared = Annotated[
    dict[str, str], Meta(description="a table of partitions or places, each with why its GPUs stay whole")
]


class _Cluster(Struct, frozen=True, kw_only=True):
    """A cluster, as it is written down; gpusaged says more of it, which is left out."""

    pools: _Pools
    version: str | int | float = ""
    default_partition: str | int | None = None
    unshared: _Unshared = {}


def find_cluster(advisor: Advisor, manager: Manager, path: Path | None) -> tuple[Cluster, Origin]:
    """Return the cluster of *path*, else *manager*'s own, else an example whose notes say why; and where it is from.

    Raises:
        RequestError: The file is not a cluster.
    """
    if path is not None:
        return any_cluster(path, manager.name, advisor), "file"

    try:
        cluster = advisor.hooks.observe_cluster(manager.name, advisor.context(manager.name))
        trouble = f"There is no {manager.title} on this host."
    except GpuUsageError as error:
        cluster, trouble = None, str(error)
    if cluster is not None:
        return cluster, "local"
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


def any_cluster(path: Path, manager: str, advisor: Advisor) -> Cluster:
    """Return the cluster that the file at *path* describes, in our own form or in a workload manager's.

    Raises:
        RequestError: It cannot be read, or is not a cluster.
    """
    theirs = advisor.hooks.read_cluster(str(path), advisor.catalogue)
    if theirs is not None:
        return theirs
    return parse_cluster(read_document(path, "Cluster file"), manager, advisor.catalogue, origin=str(path))


def parse_cluster(document: object, manager: str, catalogue: Catalogue, *, origin: str) -> Cluster:
    """Return the cluster that *document* describes."""
    read = read_description(document, manager, origin)
    return Cluster(
        manager=manager,
        version=str(read.version),
        pools=tuple(_pool(row, catalogue) for row in read.pools),
        default_partition=None if read.default_partition is None else str(read.default_partition),
        unshared=read.unshared,
    )


def read_description(document: object, manager: str, origin: str) -> _Cluster:
    """Return the part of *document* that describes the cluster: the whole, or *manager*'s, or the only one there is."""
    table = document if isinstance(document, dict) else {}
    clusters = table.get("clusters")
    if isinstance(clusters, dict):  # what the daemon's status prints
        only = next(iter(clusters.values())) if len(clusters) == 1 else None
        inner = clusters.get(manager, only)
        table = inner if isinstance(inner, dict) else {}

    try:
        return read_as(_Cluster, table)
    except MismatchError as error:
        place = origin
        match error.above:
            case ("pools", int(index), *_):
                place = f"{origin}, pool {index + 1}"
        raise refusal(error, f"cluster {place!r}", "docs/planning.md has its keys.") from error


def _pool(row: _Pool, catalogue: Catalogue) -> GpuPool:
    name, gpu = _text_or(row.gpu, row.site_type), None
    try:
        gpu = None if name is None else catalogue.find(name).name
    except DeviceError:
        if row.gpu is not UNSET:  # a type that only the site knows is no error, a wrong GPU is one
            raise

    feature = _text_or(row.feature, row.site_type)
    same = {each.name: getattr(row, each.name) for each in fields(GpuPool)}
    return GpuPool(
        **{
            **same,
            "gpu": gpu,
            "free_gpu_count": row.gpu_count if row.free_gpu_count is None else row.free_gpu_count,
            "feature": feature,
            "exact_feature": _text_or(row.exact_feature, feature),
            "node_gpu_counts": row.node_gpu_counts if row.gpus_per_node is None else (row.gpus_per_node,),
        }
    )


def _text_or(text: str | UnsetType | None, usual: str | None) -> str | None:
    """Return *text*, or the *usual* one where none was written; ``null`` is one that was."""
    return usual if isinstance(text, UnsetType) else text
