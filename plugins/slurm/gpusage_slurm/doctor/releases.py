"""What is known of Slurm's releases that an admin should hear, and where our dry run must not be tried."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PARTS = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_DRY_RUN_CRASHES = ((26, 5, 0), (26, 5, 1))
_MENDED = ((25, 5, 9), (25, 11, 8), (26, 5, 4))
"""The first of each series without the six vulnerabilities that these three mended; older series have no such one."""


def release(settings: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Return the whole version of the running slurmctld, ``None`` where its *settings* do not tell."""
    match = _PARTS.match(settings.get("slurm_version", ""))
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def dry_run_crashes(settings: Mapping[str, str]) -> bool:
    """Tell whether `sbatch --test-only` could crash this slurmctld."""
    return release(settings) in _DRY_RUN_CRASHES


def is_vulnerable(settings: Mapping[str, str]) -> bool:
    """Tell whether this slurmctld's release, as its makers made it, has vulnerabilities that a later one mended."""
    running = release(settings)
    if running is None:
        return False
    mended = next((each for each in _MENDED if each[:2] == running[:2]), None)
    return running < mended if mended else running < _MENDED[0]
