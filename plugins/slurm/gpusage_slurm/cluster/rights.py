"""Who may change other users' waiting jobs: root and SlurmUser. Operators are known to slurmdbd alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

_SLURM_USER = re.compile(r"\((\d+)\)$")


def may_change_jobs(uid: int, settings: Mapping[str, str]) -> bool:
    """Tell whether *uid* may, by slurmctld's *settings*."""
    slurm_user = _SLURM_USER.search(settings.get("slurmuser", ""))
    return uid == 0 or (slurm_user is not None and uid == int(slurm_user[1]))


def gpusaged_may_change_jobs(settings: Mapping[str, str], sockets: Iterable[str]) -> bool:
    """Tell whether gpusaged may: whoever asks here, or whoever owns one of its *sockets*."""
    uids = {os.geteuid()}
    for socket in sockets:
        with suppress(OSError):
            uids.add(Path(socket).stat().st_uid)
    return any(may_change_jobs(uid, settings) for uid in uids)
