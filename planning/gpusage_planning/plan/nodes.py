"""The nodes that `gpusage plan` may use: a JSON or TOML file.

``nodes`` is a list of tables: ``name``; ``count`` of the nodes, or ``names``, a list of their own; and ``types``, what
each node may be: a list of tables with ``name``, ``gpu``, ``gpus`` and ``price_per_hour`` of the whole node, or
``power_w`` where energy is what is paid; then the file has ``energy_price_per_kwh``. ``boot``, ``minimum_billing`` and
``billing_step`` are times such as ``"5m"``. With ``spot_price_per_hour`` and ``interruptions_per_hour`` a type is also
there as a spot node. Nodes with ``until`` are gone after that time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from gpusage.boundary.typed_documents import MismatchError, read_as
from gpusage.cli.options import duration_s
from gpusage.cli.user_file import read_document, refusal
from gpusage_hooks.errors import RequestError
from gpusage_planning.capacity.problem import LONGEST_DAYS, LONGEST_S, NodeGroup, NodeType

W_PER_KW = 1000.0
_Name = Annotated[str, Meta(min_length=1, description="a name")]
_Count = Annotated[int, Meta(ge=1, le=100_000, description="a whole number from 1 to 100000")]
_Gpus = Annotated[int, Meta(ge=1, le=64, description="a whole number from 1 to 64")]
_Time = Annotated[str, Meta(pattern=r"^\d{1,6} ?(s|m|min|h|d)\Z", description="a time with its unit, such as '5m'")]
_Rate = Annotated[float, Meta(ge=0, le=60, description="a number from 0 to 60")]
_Money = Annotated[float, Meta(ge=0, le=1e9, description="a number of at least 0")]


class _Type(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node may be."""

    name: _Name
    gpu: _Name
    gpus: _Gpus
    price_per_hour: _Money | None = None
    power_w: _Money | None = None
    boot: _Time = "0s"
    minimum_billing: _Time = "0s"
    billing_step: _Time = "0s"
    spot_price_per_hour: _Money | None = None
    interruptions_per_hour: _Rate | None = None


_Names = Annotated[tuple[_Name, ...], Meta(min_length=1, description="a list of at least one name")]
_Types = Annotated[tuple[_Type, ...], Meta(min_length=1, description="a list of at least one type, as tables")]


class _Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that are alike."""

    name: _Name
    count: _Count | None = None
    names: _Names | None = None
    until: _Time | None = None
    types: _Types


_Groups = Annotated[tuple[_Group, ...], Meta(min_length=1, description="a list of at least one kind, as tables")]


class _Nodes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    nodes: _Groups
    energy_price_per_kwh: _Money | None = None


def read_nodes(path: Path) -> tuple[NodeGroup, ...]:
    """Return the nodes that the file at *path* describes.

    Raises:
        RequestError: It cannot be read, or describes no nodes.
    """
    return parse_nodes(read_document(path, "Cluster file"), str(path))


def parse_nodes(document: object, origin: str) -> tuple[NodeGroup, ...]:
    """Return the nodes that *document* describes; *origin* is its file, for people."""
    try:
        read = read_as(_Nodes, document if isinstance(document, dict) else {})
    except MismatchError as error:
        where = "".join(f" {step + 1}" if isinstance(step, int) else f", {step}" for step in error.above)
        raise refusal(error, f"cluster {origin!r}{where}", "docs/planning.md has an example.") from error
    _require_single("name", "kind to kind", [group.name for group in read.nodes], origin)
    groups = tuple(_node_group(group, read.energy_price_per_kwh, origin) for group in read.nodes)
    _require_single("names", "node to node", [name for group in groups for name in group.node_names], origin)
    return groups


def _node_group(group: _Group, energy_price_per_kwh: float | None, origin: str) -> NodeGroup:
    names = group.names or ()
    if (group.count is None) is (group.names is None):
        got = "neither" if group.count is None else "both"
        message = f"Kind {group.name!r} of cluster {origin!r} must have 'count' or 'names'; got {got}. Write one."
        raise RequestError(message)
    types = tuple(
        replace(kind, until_s=math.inf if group.until is None else _seconds("until", group.until, origin))
        for written in group.types
        for kind in _types(written, energy_price_per_kwh, origin)
    )
    _require_single("name", f"type to type of kind {group.name!r}", [kind.name for kind in types], origin)
    return NodeGroup(name=group.name, node_count=group.count or len(names), types=types, names=names)


def _seconds(key: str, text: str, origin: str) -> float:
    try:
        seconds = duration_s(text)
    except ValueError:  # longer than any
        seconds = math.inf
    if seconds > LONGEST_S:
        message = f"Key {key!r} of cluster {origin!r} must be at most {LONGEST_DAYS} days; got {text!r}. Fix it."
        raise RequestError(message)
    return seconds


def _require_single(key: str, places: str, names: Iterable[str], origin: str) -> None:
    double = next((name for name, count in Counter(names).items() if count > 1), None)
    if double is not None:
        message = f"Key {key!r} of cluster {origin!r} must differ from {places}; got {double!r} twice. Rename one."
        raise RequestError(message)


def _types(kind: _Type, energy_price_per_kwh: float | None, origin: str) -> Iterator[NodeType]:
    """Yield *kind*, and the same as a spot node."""
    if (kind.spot_price_per_hour is None) is not (kind.interruptions_per_hour is None):
        message = (
            f"Type {kind.name!r} of cluster {origin!r} must have 'spot_price_per_hour' and 'interruptions_per_hour' "
            "together; got one of them. Write both, or neither."
        )
        raise RequestError(message)
    bought = _type(kind, energy_price_per_kwh, origin)
    yield bought
    if kind.spot_price_per_hour is not None and kind.interruptions_per_hour is not None:
        yield replace(
            bought,
            name=f"{kind.name} spot",
            price_per_hour=kind.spot_price_per_hour,
            interruptions_per_hour=kind.interruptions_per_hour,
        )


def _type(kind: _Type, energy_price_per_kwh: float | None, origin: str) -> NodeType:
    price = kind.price_per_hour
    if price is None and kind.power_w is not None and energy_price_per_kwh is not None:
        price = kind.power_w / W_PER_KW * energy_price_per_kwh
    if price is None:
        message = (
            f"Type {kind.name!r} of cluster {origin!r} must have 'price_per_hour', or 'power_w' with the file's "
            "'energy_price_per_kwh'; got neither. Add one."
        )
        raise RequestError(message)
    return NodeType(
        name=kind.name,
        gpu=kind.gpu,
        gpu_count=kind.gpus,
        price_per_hour=price,
        boot_s=_seconds("boot", kind.boot, origin),
        minimum_billing_s=_seconds("minimum_billing", kind.minimum_billing, origin),
        billing_step_s=_seconds("billing_step", kind.billing_step, origin),
    )
