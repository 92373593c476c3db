"""What gpusaged says about itself and about Slurm, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpusage.cli.status_lines import cluster_lines, daemon_lines
from gpusage_slurm.settings import SLURM


def describe(status: Mapping[str, Any]) -> str:
    """Return the daemon's answer to a status question as a few lines of text."""
    return "\n".join((*daemon_lines(status), *cluster_lines(status, SLURM.name, SLURM.title, _feature)))


def _feature(pool: Mapping[str, Any]) -> str:
    named = f", feature {pool['feature']}" if pool["feature"] else ", no feature"
    if pool["site_type"] and not pool.get("exact_feature"):
        return f"{named}, none that is only theirs: whoever names the type gets a whole GPU"
    return named
