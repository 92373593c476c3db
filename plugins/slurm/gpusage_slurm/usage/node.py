"""The program that samples one job on its node, as root: ``python -m gpusage_slurm.usage.node``.

The prolog starts it and waits for nothing; the epilog ends it by SIGTERM. It then posts what it saw, and is gone.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from gpusage.dividing.client import whole_sm_count
from gpusage.dividing.granted import FOLDER, PERCENT_VARIABLE, granted_of
from gpusage.plugins.loading import node_hooks
from gpusage.sampler.folder import Folder
from gpusage.sampler.processes import JobIdentity
from gpusage.sampler.sampling import SampledJob, Sampling, Surroundings
from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.submission.request import MANAGER
from gpusage_slurm.usage.post import post_patiently

ENDS = (signal.SIGTERM, signal.SIGINT)
FIRST_ASKED_AFTER_S = 30.0
ASKED_EVERY_S = 900.0
"""When slurmctld is asked whether the job still runs: an epilog may never come, or before this process can hear it."""
JITTER_S = 3.0
"""Jobs that end together do not all ask slurmctld in the same second."""
PAUSES_S = (5.0, 20.0, 60.0, 180.0)
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_DEVICES = re.compile(r"[A-Za-z0-9,/-]+")
_GOING_ON = ("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT", "STOPPED", "SIGNALING")


def main() -> None:
    """Sample the job that the prolog's environment names, until it ends."""
    job, node = job_of(os.environ), os.environ.get("SLURMD_NODENAME", "")
    if job is None or not _NAME.fullmatch(node):
        return
    os.nice(5)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # they are waited for
    folder = Folder(_folder(), f"{os.environ.get('SLURM_CLUSTER_NAME', '')}.{node}.")
    if _sampled(folder, job):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        pauses_s = (random.uniform(0, JITTER_S), *PAUSES_S)  # noqa: S311 - no secret
        post_patiently(folder, node, pauses_s)


def job_of(environment: Mapping[str, str]) -> SampledJob | None:
    """Return the job that a prolog's *environment* describes; ``None`` where it has no GPU."""
    job_id, devices = environment.get("SLURM_JOB_ID", ""), environment.get("CUDA_VISIBLE_DEVICES", "")
    devices = devices or environment.get("SLURM_JOB_GPUS", "")
    uid = environment.get("SLURM_JOB_UID", "")
    if not (job_id.isdecimal() and uid.isdecimal() and _DEVICES.fullmatch(devices)):
        return None
    cpus = re.match(r"\d+", environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return SampledJob(
        manager=MANAGER,
        job_id=job_id,
        devices=tuple(filter(None, devices.split(","))),
        identity=JobIdentity(variable=f"SLURM_JOB_ID={job_id}", cgroup=f"job_{job_id}", uid=int(uid)),
        cpus=int(cpus[0]) if cpus else None,
    )


def _sampled(folder: Folder, job: SampledJob) -> bool:
    """Sample *job*, and leave its usage in *folder*; tell whether any GPU could be read."""
    pid_file, device_file = folder.file(job.job_id, "pid"), folder.file(job.job_id, "device")
    device_file.write_text(",".join(job.devices))
    shares = Path(os.environ.get("GPUSAGE_MPS_FOLDER", FOLDER))
    sm_count = _shared_sm_count(job.devices[0], os.environ)
    surroundings = Surroundings(
        has_partners=lambda: bool({*job.devices} & {*folder.devices_of_others(job.job_id)}),
        granted=partial(granted_of, job.job_id, folder=shares, sm_count=sm_count),
    )
    try:
        sampling = Sampling(job, node_hooks(), surroundings)
        usage = sampling.run(_Watch(job.job_id).wait, folder.keep)
        if usage.gpu:
            folder.keep(usage)
        else:
            folder.forget(usage)
        return bool(usage.gpu)
    finally:
        device_file.unlink(missing_ok=True)
        pid_file.unlink(missing_ok=True)


def _shared_sm_count(device: str, environment: Mapping[str, str]) -> int | None:
    """Return the SMs of the whole *device*; ``None`` where the job shares none, by the prolog's *environment*."""
    if PERCENT_VARIABLE not in environment:
        return None
    return whole_sm_count({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": device})


class _Watch:
    """Waits for the end of a job: its epilog's signal, or that slurmctld knows of no such job that runs."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._ask_at_s = time.monotonic() + FIRST_ASKED_AFTER_S

    def wait(self, pause_s: float) -> bool:
        """Wait for *pause_s* seconds at most; tell whether the job has ended."""
        if signal.sigtimedwait(ENDS, pause_s) is not None:
            return True
        if time.monotonic() < self._ask_at_s:
            return False
        self._ask_at_s = time.monotonic() + ASKED_EVERY_S
        return _is_over(self._job_id)


def _is_over(job_id: str) -> bool:
    try:
        state = scontrol.job(job_id).get("JobState", "")
    except RequestError as error:
        return "Invalid job id" in str(error)
    return state not in _GOING_ON


def _folder() -> Path:
    """Return where usage is kept: root's in /run; a sandbox's user has no place there."""
    usual = "/run/gpusage-usage" if os.geteuid() == 0 else f"/tmp/gpusage-usage-{os.geteuid()}"  # noqa: S108 - checked
    return Path(os.environ.get("GPUSAGE_USAGE_FOLDER", usual))


if __name__ == "__main__":
    with suppress(OSError):  # no place to keep usage: nothing is sampled
        main()
    sys.exit(0)
