"""What became of the jobs, in columns, and the figures by which policies are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusage_planning.simulator.contract import Demand, FloatArray, Jobs
from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.simulator.gpus import Gpus

J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One policy's figures. Times are in seconds, shares from 0 to 1.

    Attributes:
        makespan_s: From the first submission to the last end.
        jct_s: Mean time from submission to end (job completion time).
        run_s: Mean time from a job's first start to its end.
        utilization: Mean busy share (NVML's) of all GPUs over the makespan.
        occupied_utilization: The same, of the GPU time with a job alone.
        gpu_hours: GPU time with at least one job.
        freed_hours: GPU time freed: k jobs on one GPU at a time free k - 1, less the time that their shares cost them.
        fairness: Jain's index of the users' mean of JCT over the time alone: 1 where all are slowed alike.
        promised: Jobs on a share with a promise.
        promised_kinds: Kinds of which these jobs are; jobs of one kind have one error of their prediction.
        broken: Of these, the share that took longer than promised; ``None`` where nothing was promised.
        out_of_memory: Starts that ended for want of memory.
        preemptions: How often a running job was suspended.
        shared_time: Share of the GPU time with a job that had more than one.
        most_on_one_gpu: Largest share of all starts that one GPU had.
        least_on_one_gpu: Smallest.
        energy_kwh: Of all GPUs over the makespan; ``None`` where the power of a type was not measured.
        fragmentation: Of the GPU time without a job, the share on nodes of which other GPUs had one; ``None`` where no
            nodes are known, or no GPU was empty.
    """

    makespan_s: float
    jct_s: float
    jct_p95_s: float
    wait_s: float
    wait_p95_s: float
    run_s: float
    utilization: float
    occupied_utilization: float
    gpu_hours: float
    freed_hours: float
    fairness: float
    promised: int
    promised_kinds: int
    broken: float | None
    out_of_memory: int
    preemptions: int
    shared_time: float
    most_on_one_gpu: float
    least_on_one_gpu: float
    energy_kwh: float | None
    fragmentation: float | None


class Result:
    """What one policy did with the jobs; columns have one entry per job, and are filled while the simulation goes on.

    Attributes:
        policy: Its name.
        start_s: When it first started.
        end_s: When its work was done.
        last_start_s: When it started for the last time: later where it was profiled, suspended or ran out of memory.
        gpu: The first of its GPUs, by number.
        slowdown: Time of the runs that did its work over its time alone on whole GPUs of their types.
        accepted: Slowdown that was promised; NaN where nothing was.
        out_of_memory: How often it ran out of memory.
        preemptions: How often it was suspended.
        figures: Set by `complete`.
    """

    figures: Figures

    def __init__(self, policy: str, jobs: Jobs) -> None:
        self.policy, self.jobs = policy, jobs
        columns = np.full((5, len(jobs)), np.nan)
        self.start_s, self.end_s, self.last_start_s, self.slowdown, self.accepted = columns
        self.gpu = np.full(len(jobs), -1, dtype=np.int32)
        self.out_of_memory, self.preemptions = np.zeros((2, len(jobs)), dtype=np.int32)

    def start(self, job: int, gpu: int, demand: Demand, now_s: float) -> None:
        """Write down that *job* starts."""
        if self.gpu[job] < 0:
            self.start_s[job] = now_s
        self.last_start_s[job], self.gpu[job] = now_s, gpu
        accepted = demand.accepted_slowdown
        self.accepted[job] = np.nan if accepted is None else accepted

    def end(self, job: int, run_s: float, alone_s: float, now_s: float) -> None:
        """Write down that the work of *job* is done, which took *run_s*, and *alone_s* alone on the whole GPU."""
        self.end_s[job] = now_s
        self.slowdown[job] = run_s / alone_s

    def complete(self, fleet: Fleet, gpus: Gpus) -> None:
        """Compute the figures once every job has ended."""
        jobs = self.jobs
        makespan_s = float(self.end_s.max() - jobs.submit_s[0])
        jct_s, wait_s = self.end_s - jobs.submit_s, self.start_s - jobs.submit_s
        occupied_s = sum(gpus.tenant_s[1:])
        promised = ~np.isnan(self.accepted)
        shared_s = sum(count * own_s for count, own_s in enumerate(gpus.tenant_s[1:]))
        longer_s = float(((self.end_s - self.last_start_s) * (1 - 1 / self.slowdown) * jobs.gpu_count).sum())
        starts = np.array(gpus.started) / max(sum(gpus.started), 1)
        self.figures = Figures(
            makespan_s=makespan_s,
            jct_s=float(jct_s.mean()),
            jct_p95_s=float(np.percentile(jct_s, 95)),
            wait_s=float(wait_s.mean()),
            wait_p95_s=float(np.percentile(wait_s, 95)),
            run_s=float((self.end_s - self.start_s).mean()),
            utilization=sum(gpus.busy_s) / (makespan_s * fleet.gpu_count),
            occupied_utilization=sum(gpus.busy_s) / occupied_s,
            gpu_hours=occupied_s / 3600,
            freed_hours=(shared_s - longer_s) / 3600,
            fairness=jain(jct_s / jobs.work_s, jobs.user),
            promised=int(promised.sum()),
            promised_kinds=len(np.unique(jobs.kind[promised])),
            broken=float((self.slowdown > self.accepted * 1.000001)[promised].mean()) if promised.any() else None,
            out_of_memory=int(self.out_of_memory.sum()),
            preemptions=int(self.preemptions.sum()),
            shared_time=sum(gpus.tenant_s[2:]) / occupied_s,
            most_on_one_gpu=float(starts.max()),
            least_on_one_gpu=float(starts.min()),
            energy_kwh=energy_kwh(fleet, gpus.busy_s, makespan_s),
            fragmentation=gpus.stranded_s / gpus.empty_s if gpus.empty_s > 0 else None,
        )


def energy_kwh(fleet: Fleet, busy_s: Sequence[float], makespan_s: float) -> float | None:
    """Return the energy of all GPUs: measured power while busy, and while idle; ``None`` where a type has none.

    Args:
        fleet: With the power of its types.
        busy_s: Of each type, the sum over its GPUs of time times busy share.
        makespan_s: How long all of them are on.
    """
    energy_j = 0.0
    for one, own_s in zip(fleet.types, busy_s, strict=True):
        if one.power_w is None:
            return None
        at_work_w, idle_w = one.power_w
        energy_j += own_s * at_work_w + (makespan_s * one.gpu_count - own_s) * idle_w
    return energy_j / J_PER_KWH


def jain(values: FloatArray, group: npt.NDArray[np.integer]) -> float:
    """Return Jain's index of the groups' means: 1 where all are equal, 1/n where one of n has everything.

    Source:
        Jain, Chiu and Hawe, "A quantitative measure of fairness", DEC TR-301, 1984.
    """
    counts = np.bincount(group)
    means = np.bincount(group, weights=values)[counts > 0] / counts[counts > 0]
    return float(means.sum() ** 2 / (len(means) * (means**2).sum()))
