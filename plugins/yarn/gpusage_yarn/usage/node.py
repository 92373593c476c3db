"""The program that samples one container on its node: ``python -m gpusage_yarn.usage.node CONTAINER GPU SHARE FOLDER``.

The NodeManager's listener starts it as the NodeManager's own user, and ends it by SIGTERM. It then writes what it saw
into a file in FOLDER, the node's usage reports, which the NodeManager shows in its /jmx.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from gpusage.node.dividing.granted import (
    LIMIT_VARIABLE,
    NOT_READ_BACK,
    PERCENT_VARIABLE,
    PIPE_VARIABLE,
    limit_bytes,
    query_client_view,
    whole_sm_count,
    with_client_view,
)
from gpusage.node.sampler.processes import ProcessSelector
from gpusage.node.sampler.sampling import SampledJob, Sampling, Surroundings
from gpusage.node.sampler.usage_reports import UsageSpool, append_usage_reports
from gpusage.plugins.loading import node_hooks
from gpusage_hooks.types import Allocation, Usage
from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_yarn.settings import MANAGER

LOG_BYTES, LOG_COUNT, LINE_LENGTH, LOGS_S = 65_536, 16, 4096, 5.0
"""Read of each log's end, of how many, of each line, and for how long: the user writes them, in any amount."""
FAILED_TASK = "Exception in task"
"""Logged by Spark's executor where a program has not handled its error; one that tries batch sizes has."""
REPORT_FILE = "letter"
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

    # The signals are waited for, not handled, so that one that comes early is not lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    folder = UsageSpool(Path(path), "")
    parent = os.getppid()
    usage = _sampled(folder, job_of(container, device), int(percent))
    # A container whose NodeManager has died goes on.
    if int(percent) < WHOLE_PERCENT and os.getppid() == parent and says_out_of_memory(os.environ):
        usage = replace(usage, outcome="out_of_memory")
    # A node may have no driver's library to name its GPU, and see a miss all the same.
    if usage.gpu or usage.outcome == "out_of_memory":
        append_report(folder, usage)


def says_out_of_memory(environment: Mapping[str, str]) -> bool:
    """Return whether a container's own logs end with CUDA's words for it, and with a failed task of Spark's.

    Of Spark in client mode, the application's end does not tell.

    Args:
        environment: Of this process, in which the NodeManager names words and folder; neither where the container
            runs as another user, who may not be allowed to read what this process may.
    """
    words = re.compile(environment.get("GPUSAGE_OUT_OF_MEMORY", "(?!)"))
    lines, end_s = list[str](), time.monotonic() + LOGS_S
    logs = Path(environment.get("GPUSAGE_LOGS", os.devnull)).glob("*[rg]")  # stderr, NAME.err, NAME.log
    for log in sorted(logs, key=lambda log: log.name != "stderr")[:LOG_COUNT]:
        with suppress(OSError), os.fdopen(os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            lines += file.read(LOG_BYTES).decode(errors="replace").splitlines()

    # Within a line the words may take the square of its length.
    timely = (line[:LINE_LENGTH] for line in reversed(lines) if time.monotonic() < end_s)
    return any(FAILED_TASK in line for line in lines) and any(map(words.search, timely))


def job_of(container: str, device: str) -> SampledJob:
    """Return *container* as the sampler knows it; of its processes it sees the ones that this user may read."""
    identity = ProcessSelector(variable=f"CONTAINER_ID={container}", cgroups=(container,), uid=os.geteuid())
    return SampledJob(manager=MANAGER, job_id=container, devices=(device,), identity=identity)


def append_report(folder: UsageSpool, usage: Usage) -> None:
    """Append *usage* to the node's reports; whoever reads them meanwhile sees the old ones or all."""
    reports = folder.path / REPORT_FILE
    with folder.lock():
        # A rename: the NodeManager reads the file at any moment.
        fresh = reports.with_suffix(".new")
        fresh.write_text(append_usage_reports(reports.read_text() if reports.exists() else "", [usage], time.time()))
        fresh.replace(reports)


def _sampled(folder: UsageSpool, job: SampledJob, percent: int) -> Usage:
    parent = os.getppid()
    surroundings = Surroundings(
        count_partners=partial(folder.count_partners, job.job_id, job.devices),
        granted=cache(lambda: read_allocation(percent, os.environ)),
    )

    def ended(pause_s: float) -> bool:
        """Return whether the container has ended, or the NodeManager, whose successor knows nothing of this process."""
        return signal.sigtimedwait(_ENDS, pause_s) is not None or os.getppid() != parent

    with folder.sampled(job.job_id, job.devices):
        return Sampling(job, node_hooks(), surroundings).run(ended, lambda _usage: None)


def read_allocation(share_percent: int, environment: Mapping[str, str]) -> Allocation:
    """Return the real limits of a container with a share of *share_percent*.

    Args:
        share_percent: As YARN booked it.
        environment: Of this process, in which the NodeManager set the container's own variables ``CUDA_*``; it has
            none of them where the container runs as another user, whose MPS daemon our client must not keep waiting.
    """
    if share_percent >= WHOLE_PERCENT:
        return Allocation()

    limits = {name: value for name, value in environment.items() if name.startswith("CUDA_")}
    percent = limits.get(PERCENT_VARIABLE, "")
    allocation = Allocation(
        division="percentage",
        share_percent=share_percent,
        thread_percent=int(percent) if percent.isdecimal() else None,
        memory_limit_bytes=limit_bytes(limits.get(LIMIT_VARIABLE)),
        limited_by="cap" if limits.get(LIMIT_VARIABLE) else "none",
    )

    if PIPE_VARIABLE not in limits:
        return replace(allocation, trouble=NOT_READ_BACK)

    # A client of this MPS daemon sees the limits that a container's processes have.
    return with_client_view(allocation, query_client_view(limits), whole_sm_count(limits))


if __name__ == "__main__":
    with suppress(OSError):  # no place to keep usage: nothing is sampled
        main(sys.argv[1:])
