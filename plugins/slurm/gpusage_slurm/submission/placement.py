"""Where a share may run: its job's constraint, preference and avoided nodes, and how its mark records them.

A share cannot name a GPU type: `mps:v100:40` starts the job, and slurmctld then refuses every step of it (tried on
22.05 and 24.11). So a feature stands in. A user's constraint is joined with ours if it is plain: names joined all by
``&`` or all by ``|``. One with counts, brackets or both operators is not.

A mark names avoided nodes right after the share, ``gres/mps:40, avoid n1,n2, constraint v100``, so that slurmctld's
limit on its length cuts off other words first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpusage.store.annotation import JobAnnotation
from gpusage_hooks.types import GpuPool, GpuRequest

MAXIMUM_BYTES = 1024
"""slurmctld's limit on a field that a plugin leaves behind (facts 4)."""

_FEATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=-]*")
_PLAIN = re.compile(rf"{_FEATURE.pattern}(?:(?:&{_FEATURE.pattern})*|(?:\|{_FEATURE.pattern})*)")
_BOUND = re.compile(r"(?:\([^()]*\)|[^&()]+)(?:&(?P<own>.+))?")

_AVOIDED = re.compile(r"avoid (?P<nodes>[^, ]+(?:,[^, ]+)*)(?:, |$)")
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""A node's name, as no list with ranges is."""


def feature_groups(constraint: str) -> tuple[tuple[str, ...], ...]:
    """Return groups of features: a node must have all features of one group. Empty if *constraint* is not plain."""
    constraint = constraint.strip()
    plain = len(constraint) <= MAXIMUM_BYTES and _PLAIN.fullmatch(constraint)
    return tuple(tuple(group.split("&")) for group in constraint.split("|")) if plain else ()


def exact_feature(gpu_type: str, pools: tuple[GpuPool, ...]) -> str | None:
    """Return the feature that is on exactly the nodes of *gpu_type*, ``None`` where there is none to ask for."""
    exact = next((pool.exact_feature for pool in pools if pool.site_type == gpu_type), None)
    return exact if exact and _FEATURE.fullmatch(exact) else None


def constraint_with_feature(exact: str, constraint: str) -> str | None:
    """Return *constraint* joined with the feature *exact*, ``None`` where it cannot be joined."""
    return constraint if _requires(constraint, exact) else _join_constraint(exact, constraint)


def constraint_with_types(gpu_types: Sequence[str], pools: tuple[GpuPool, ...], constraint: str) -> str | None:
    """Return *constraint*, extended so that a node must also have a feature of one of *gpu_types*.

    ``None`` where one of them has no feature to ask for, or *constraint* cannot be joined.
    """
    features = [exact_feature(name, pools) for name in gpu_types]
    return _join_constraint("|".join(filter(None, features)), constraint) if features and all(features) else None


def constraint_without_types(held: str) -> str:
    """Return the job's own constraint, of one that `constraint_with_types` made."""
    bound = _BOUND.fullmatch(held)
    return (bound["own"] or "").removeprefix("(").removesuffix(")") if bound else held


def preference_expression(request: GpuRequest, pools: tuple[GpuPool, ...], constraint: str) -> str | None:
    """Return the features to prefer, *constraint* repeated inside, for `prefer` replaces it while it is tried.

    ``None`` where there is nothing to prefer, and where *constraint* names a GPU type's feature or cannot be joined.
    """
    features = {pool.site_type: pool.feature for pool in pools if pool.feature and _FEATURE.fullmatch(pool.feature)}
    if {*_FEATURE.findall(constraint)} & {*features.values()}:
        return None
    wanted = [features[name] for name in request.preferred_gpus if name in features]
    return _join_constraint("|".join(dict.fromkeys(wanted)), constraint) if wanted else None


def _requires(constraint: str, feature: str) -> bool:
    """Return whether *constraint* is plain, and *feature* among those that all have to be there."""
    return bool(_PLAIN.fullmatch(constraint)) and "|" not in constraint and feature in constraint.split("&")


def _join_constraint(expression: str, constraint: str) -> str | None:
    constraint = constraint.strip()
    if constraint and not _PLAIN.fullmatch(constraint):
        return None
    joined = f"{_grouped(expression)}&{_grouped(constraint)}" if constraint else expression
    return joined if len(joined.encode()) <= MAXIMUM_BYTES else None


def _grouped(expression: str) -> str:
    return f"({expression})" if "|" in expression else expression


def format_avoided_nodes(names: tuple[str, ...]) -> str:
    """Return the mark's text about avoided nodes with these *names*."""
    return f"avoid {','.join(names)}"


def avoided_nodes_in(mark: JobAnnotation | None) -> tuple[str, ...]:
    """Return the nodes that a job with *mark* avoids because of the jobs there."""
    match = _AVOIDED.match(_text_after_share(mark)) if mark else None
    return tuple(match["nodes"].split(",")) if match else ()


def placement_in(mark: JobAnnotation) -> str:
    """Return the constraint or preference that *mark* records after share and avoided nodes; ``""`` for none."""
    return _AVOIDED.sub("", _text_after_share(mark), count=1) if avoided_nodes_in(mark) else _text_after_share(mark)


def request_without_avoided_nodes(mark: JobAnnotation) -> str:
    """Return the request that *mark* records, without the avoided nodes."""
    return ", ".join(filter(None, (mark.after.partition(", ")[0], placement_in(mark))))


def _text_after_share(mark: JobAnnotation | None) -> str:
    return mark.after.partition(", ")[2] if mark else ""
