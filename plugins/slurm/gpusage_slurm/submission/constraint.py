"""A job's constraint: where it lets the job run, the features that hold it to a GPU type or let it prefer one.

A share cannot name a type: `mps:v100:40` starts the job, and slurmctld then refuses every step of it (tried on 22.05
and 24.11). A constraint is joined with ours where it is plain: names, all joined by ``&`` or all by ``|``; one with
counts, brackets or both is not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpusage_hooks.types import GpuPool, GpuRequest

MAXIMUM_BYTES = 1024
"""slurmctld's limit on a field that a plugin leaves behind (facts 4)."""

_FEATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=-]*")
_PLAIN = re.compile(rf"{_FEATURE.pattern}(?:(?:&{_FEATURE.pattern})*|(?:\|{_FEATURE.pattern})*)")
_BOUND = re.compile(r"(?:\([^()]*\)|[^&()]+)(?:&(?P<own>.+))?")


def alternatives(constraint: str) -> tuple[tuple[str, ...], ...]:
    """Return groups of features: a node must have all features of one group. Empty if *constraint* is not plain."""
    constraint = constraint.strip()
    plain = len(constraint) <= MAXIMUM_BYTES and _PLAIN.fullmatch(constraint)
    return tuple(tuple(group.split("&")) for group in constraint.split("|")) if plain else ()


def exact_feature(gpu_type: str, pools: tuple[GpuPool, ...]) -> str | None:
    """Return the feature that is on exactly the nodes of *gpu_type*, ``None`` where there is none to ask for."""
    exact = next((pool.exact_feature for pool in pools if pool.site_type == gpu_type), None)
    return exact if exact and _FEATURE.fullmatch(exact) else None


def holding_constraint(exact: str, constraint: str) -> str | None:
    """Return *constraint* joined with the feature *exact*, ``None`` where it cannot be joined."""
    return constraint if _requires(constraint, exact) else _joined(exact, constraint)


def binding_constraint(gpu_types: Sequence[str], pools: tuple[GpuPool, ...], constraint: str) -> str | None:
    """Return *constraint*, extended so that a node must also have a feature of one of *gpu_types*.

    ``None`` where one of them has no feature to ask for, or *constraint* cannot be joined.
    """
    features = [exact_feature(name, pools) for name in gpu_types]
    return _joined("|".join(filter(None, features)), constraint) if features and all(features) else None


def unbound_constraint(held: str) -> str:
    """Return the job's own constraint, of one that `binding_constraint` made."""
    bound = _BOUND.fullmatch(held)
    return (bound["own"] or "").removeprefix("(").removesuffix(")") if bound else held


def preferring_expression(request: GpuRequest, pools: tuple[GpuPool, ...], constraint: str) -> str | None:
    """Return the features to prefer, *constraint* repeated inside, for `prefer` replaces it while it is tried.

    ``None`` where there is nothing to prefer, and where *constraint* names a GPU type's feature or cannot be joined.
    """
    features = {pool.site_type: pool.feature for pool in pools if pool.feature and _FEATURE.fullmatch(pool.feature)}
    if {*_FEATURE.findall(constraint)} & {*features.values()}:
        return None
    wanted = [features[name] for name in request.preferred_gpus if name in features]
    return _joined("|".join(dict.fromkeys(wanted)), constraint) if wanted else None


def _requires(constraint: str, feature: str) -> bool:
    """Tell whether *constraint* is plain, and *feature* among those that all have to be there."""
    return bool(_PLAIN.fullmatch(constraint)) and "|" not in constraint and feature in constraint.split("&")


def _joined(wished: str, constraint: str) -> str | None:
    constraint = constraint.strip()
    if constraint and not _PLAIN.fullmatch(constraint):
        return None
    joined = f"{_grouped(wished)}&{_grouped(constraint)}" if constraint else wished
    return joined if len(joined.encode()) <= MAXIMUM_BYTES else None


def _grouped(expression: str) -> str:
    return f"({expression})" if "|" in expression else expression
