"""The program that samples one job on its node, as root: ``python -m gpusage_slurm.usage.node``.

The prolog starts it and waits for nothing; the epilog ends it by SIGTERM. It then posts the usage into its node's
comment by `scontrol`, one post of a node at a time, and exits. Usage that could not be posted stays in the folder, and
goes with the next post. The comment also has what limits the memory of jobs on that node.

The copies of usage.sh on the nodes start this module by its name, also copies of another version: it keeps its name.
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
from threading import Thread

from gpusage.node.dividing.granted import FOLDER, PERCENT_VARIABLE, read_granted, whole_sm_count
from gpusage.node.dividing.programs import host_offers
from gpusage.node.sampler.failures import FailureRecorder
from gpusage.node.sampler.processes import ProcessSelector
from gpusage.node.sampler.sampling import MemoryNote, SampledJob, Sampling, Surroundings
from gpusage.node.sampler.usage_reports import UsageSpool, append_usage_reports
from gpusage.plugins.loading import node_hooks
from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.nodes import LIMIT_WORD
from gpusage_slurm.settings import MANAGER

_NO_WORD = re.compile(r"[\s()]+")
_COMMENT = re.compile(r"^ *Comment=(.*)$", re.MULTILINE)

END_SIGNALS = (signal.SIGTERM, signal.SIGINT)
FIRST_CHECK_S = 30.0
CHECK_INTERVAL_S = 900.0
"""When slurmctld is asked whether the job still runs: an epilog may never come, or before this process can hear it."""
LIMIT_AGE_S = 3600.0
"""How often a node looks what limits memory there, as nvidia-smi may take seconds, and as slurmctld may be away."""
LIMIT_RETRY_S = 300.0
LONGEST_POST_S = 30.0
JITTER_S = 3.0
"""Jobs that end together do not all ask slurmctld in the same second."""
# slurmctld may be away for minutes; the usage stays on the node and goes with the next post.
PAUSES_S = (5.0, 20.0, 60.0, 180.0)
ENDS = "ends"
"""The folder of the files that the task epilog reads, below that of `gpusage-mps`."""
SLICES = Path("/proc/driver/nvidia/capabilities")
"""Where the driver names this host's slices (MIG). A prolog does not learn which jobs have one."""
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_DEVICES = re.compile(r"[A-Za-z0-9,/-]+")
_GOING_ON = ("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT", "STOPPED", "SIGNALING")


def usage_folder() -> Path:
    """Return where the node's samplers keep usage: root's is in /run, and a sandbox's user has no place there."""
    usual = "/run/gpusage-usage" if os.geteuid() == 0 else f"/tmp/gpusage-usage-{os.geteuid()}"  # noqa: S108 - checked
    return Path(os.environ.get("GPUSAGE_USAGE_FOLDER", usual))


def post_limit(folder: UsageSpool, node: str) -> None:
    """Put what limits the memory of jobs on *node*, this host, into its comment; try it once an hour."""
    posted, conf = folder.path / f"{folder.prefix}limit", Path(os.environ.get("SLURM_CONF", ""))
    # Another cluster may have had this name: a sandbox that is up again.
    begun_s = max(time.time() - LIMIT_AGE_S, conf.stat().st_mtime if conf.is_file() else 0.0)
    if posted.exists() and posted.stat().st_mtime > begun_s:
        return
    posted.touch()
    offers = host_offers()
    because = f"({_NO_WORD.sub('~', offers.because).strip('~')})" if offers.because else ""
    with suppress(RequestError, OSError):
        post_usage(folder, node, f"gpusage-limit:{offers.limited_by}{because}")
        return

    # slurmctld may be away: it is asked again soon, though not by each job.
    soon_s = time.time() - LIMIT_AGE_S + LIMIT_RETRY_S
    os.utime(posted, (soon_s, soon_s))


def post_usage(folder: UsageSpool, node: str, limit_word: str = "") -> None:
    """Put the usage of every job that has ended into the comment of *node*, and *limit_word* if there is one.

    Raises:
        RequestError: slurmctld does not answer, or refuses; what was to be posted stays.
    """
    with folder.lock():
        waiting = list(folder.finished_runs())
        if not waiting and not limit_word:
            return

        # Nodes' comments may hold words of the site's, and reports that gpusaged has not collected yet: they stay.
        shown = _COMMENT.search(scontrol.run("scontrol", "show", "node", node))
        before = shown[1] if shown else ""
        earlier = LIMIT_WORD.search(before)
        comment, word = LIMIT_WORD.sub("", before).strip(), limit_word or (earlier[0] if earlier else "")
        if waiting:
            comment = append_usage_reports(comment, [usage for _, usage in waiting], time.time())
        comment = f"{comment} {word.strip()}".strip()
        if comment != before:
            scontrol.run("scontrol", "update", f"NodeName={node}", f"Comment={comment}")
        for file, _ in waiting:
            file.unlink(missing_ok=True)


def post_with_retries(folder: UsageSpool, node: str, pauses_s: tuple[float, ...]) -> bool:
    """Post after each of *pauses_s* until it works; return whether it did."""
    for pause_s in pauses_s:
        time.sleep(pause_s)
        with suppress(RequestError, OSError):
            post_usage(folder, node)
            return True
    return False


def main() -> None:
    """Sample the job that the prolog's environment names, until it ends."""
    job, node = job_of(os.environ), os.environ.get("SLURMD_NODENAME", "")
    if job is None or not _NAME.fullmatch(node):
        return

    # The job's own processes come first.
    os.nice(5)

    folder = UsageSpool(usage_folder(), f"{os.environ.get('SLURM_CLUSTER_NAME', '')}.{node}.")

    # The signals are waited for, not handled, so that one that comes early is not lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)

    # The task epilog reads there how the job's programs on the GPU ended. Where the kernel does not say that to this
    # process, or the job has whole GPUs, there is no such file. It comes first: programs start.
    recorder = None
    if len(job.devices) == 1 and (PERCENT_VARIABLE in os.environ or any(SLICES.glob("gpu*/mig/gi*"))):
        with suppress(OSError):
            file = Path(os.environ.get("GPUSAGE_MPS_FOLDER", FOLDER)) / ENDS / job.job_id
            recorder = FailureRecorder(file, job.identity, Path(os.environ.get("GPUSAGE_DEVICE_FOLDER", "/dev")))
            recorder.start()
    # nvidia-smi may take seconds, for which no sample waits.
    limit = Thread(target=post_limit, args=(folder, node), daemon=True)
    try:
        limit.start()
        with folder.sampled(job.job_id, job.devices):
            was_read = _sample(folder, job, recorder.note_memory if recorder else None)
    finally:
        if recorder:
            recorder.close()
    limit.join(LONGEST_POST_S)
    if was_read:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
        pauses_s = (random.uniform(0, JITTER_S), *PAUSES_S)  # no secret
        post_with_retries(folder, node, pauses_s)


def job_of(environment: Mapping[str, str]) -> SampledJob | None:
    """Return the job that a prolog's *environment* describes; ``None`` where it has no GPU."""
    job_id, uid = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_UID", "")
    devices = environment.get("CUDA_VISIBLE_DEVICES", "") or environment.get("SLURM_JOB_GPUS", "")
    if not (job_id.isdecimal() and uid.isdecimal() and _DEVICES.fullmatch(devices)):
        return None

    # ``16(x2)`` on several nodes; a share is on one.
    cpus = re.match(r"\d+", environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
    # From 26.05 on the job's cgroup has its SLUID as its name, unless the site wants its number (CgroupJobIdPaths).
    names = (f"job_{job_id}", environment.get("SLURM_JOB_SLUID", ""))
    return SampledJob(
        manager=MANAGER,
        job_id=job_id,
        devices=tuple(filter(None, devices.split(","))),
        identity=ProcessSelector(variable=f"SLURM_JOB_ID={job_id}", cgroups=tuple(filter(None, names)), uid=int(uid)),
        cpus=int(cpus[0]) if cpus else None,
    )


def _sample(folder: UsageSpool, job: SampledJob, note_memory: MemoryNote | None) -> bool:
    """Sample *job*, and leave its usage in *folder*; return whether any GPU could be read."""
    shares = Path(os.environ.get("GPUSAGE_MPS_FOLDER", FOLDER))

    # Without a percentage the job has its GPU for itself, and how many SMs that has is of no interest.
    sm_count = None
    if PERCENT_VARIABLE in os.environ:
        sm_count = whole_sm_count({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": job.devices[0]})
    surroundings = Surroundings(
        count_partners=partial(folder.count_partners, job.job_id, job.devices),
        granted=partial(read_granted, job.job_id, folder=shares, sm_count=sm_count),
        note_memory=note_memory or (lambda *_: None),
    )
    usage = Sampling(job, node_hooks(), surroundings).run(_EndOfJob(job.job_id).wait, folder.save)
    if usage.gpu:
        folder.save(usage)
    else:
        folder.remove(usage)
    return bool(usage.gpu)


class _EndOfJob:
    """Waits for the end of a job: its epilog's signal, or that slurmctld knows of no such job that runs."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._next_check_s = time.monotonic() + FIRST_CHECK_S

    def wait(self, pause_s: float) -> bool:
        """Wait for *pause_s* seconds at most; return whether the job has ended."""
        if signal.sigtimedwait(END_SIGNALS, pause_s) is not None:
            return True

        # A job whose epilog never ran must not be sampled for ever.
        if time.monotonic() < self._next_check_s:
            return False
        self._next_check_s = time.monotonic() + CHECK_INTERVAL_S

        which = ("--all", "--states=all", f"--jobs={self._job_id}")
        try:
            state = scontrol.run("squeue", "--noheader", *which, "--format=%T").partition("\n")[0].strip()
        except RequestError as error:
            return scontrol.UNKNOWN_JOB in str(error)
        return state not in _GOING_ON


if __name__ == "__main__":
    with suppress(OSError):  # no place to keep usage: nothing is sampled
        main()
    sys.exit(0)
