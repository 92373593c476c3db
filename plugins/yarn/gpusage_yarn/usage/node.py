"""The program that samples one container on its node: ``python -m gpusage_yarn.usage.node CONTAINER GPU SHARE FOLDER``.

The NodeManager's listener starts it as the NodeManager's own user, and ends it by SIGTERM. It then writes what it saw
into the node's letter, a file in FOLDER, which the NodeManager shows in its /jmx.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from gpusage.plugins.loading import node_hooks
from gpusage.sampler.folder import Folder
from gpusage.sampler.letter import with_letter
from gpusage.sampler.processes import JobIdentity
from gpusage.sampler.sampling import SampledJob, Sampling, Surroundings
from gpusage_hooks.types import Usage
from gpusage_yarn.request import MANAGER
from gpusage_yarn.usage.reading_back import granted_to

LETTER = "letter"
"""The file's name; UsageSampler.java has it too."""
_ENDS = (signal.SIGTERM, signal.SIGINT)
_CONTAINER = re.compile(r"container_[a-z0-9_]{1,60}")
_DEVICE = re.compile(r"[A-Za-z0-9/-]{1,80}")
_PERCENT = re.compile(r"[1-9][0-9]?|100")


def main(words: Sequence[str]) -> None:
    """Sample the container that *words* name until its end.

    Raises:
        OSError: The folder cannot be made, or is somebody else's.
    """
    container, device, percent, path = words
    if not (_CONTAINER.fullmatch(container) and _DEVICE.fullmatch(device) and _PERCENT.fullmatch(percent)):
        return
    os.nice(5)
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # they are waited for
    folder = Folder(Path(path), "")
    usage = _sampled(folder, job_of(container, device), int(percent))
    if usage.gpu:
        post(folder, usage)


def job_of(container: str, device: str) -> SampledJob:
    """Return *container* as the sampler knows it; its own processes are those that this user may look at."""
    identity = JobIdentity(variable=f"CONTAINER_ID={container}", cgroup=container, uid=os.geteuid())
    return SampledJob(manager=MANAGER, job_id=container, devices=(device,), identity=identity)


def post(folder: Folder, usage: Usage) -> None:
    """Put *usage* into the node's letter, which is there whole at any time."""
    letter = folder.path / LETTER
    with folder.locked():
        fresh = letter.with_suffix(".new")
        fresh.write_text(with_letter(letter.read_text() if letter.exists() else "", [usage], time.time()))
        fresh.replace(letter)


def _sampled(folder: Folder, job: SampledJob, percent: int) -> Usage:
    device_file, parent = folder.file(job.job_id, "device"), os.getppid()
    device_file.write_text(",".join(job.devices))
    surroundings = Surroundings(
        has_partners=lambda: bool({*job.devices} & {*folder.devices_of_others(job.job_id)}),
        granted=cache(lambda: granted_to(percent, os.environ)),
    )

    def ended(pause_s: float) -> bool:
        """Tell whether the container has ended, or the NodeManager, whose successor knows nothing of this process."""
        return signal.sigtimedwait(_ENDS, pause_s) is not None or os.getppid() != parent

    try:
        return Sampling(job, node_hooks(), surroundings).run(ended, lambda _usage: None)
    finally:
        device_file.unlink(missing_ok=True)


if __name__ == "__main__":
    with suppress(OSError):  # no place to keep usage: nothing is sampled
        main(sys.argv[1:])
