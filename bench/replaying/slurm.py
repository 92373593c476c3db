"""The sandbox's Slurm as a replay uses it: plain sbatch, held jobs, released at once."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from gpusage_planning.replay import body
from gpusage_planning.replay.site import SLURM
from gpusage_sandboxes.gpusaged import stop_gpusaged
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from replaying.request import Request

PLAN = ClusterPlan(nodes=parse_nodes(SLURM.nodes))
SETTINGS = "[slurm]\nlimit_ms = 1000\ncard_limit_s = 60\n"
"""The limits are far above the product's own: a busy machine must not decide who shares."""
CLIENTS = 2
_BACKFILLED = re.compile(r"Total backfilled jobs \(since last slurm start\): (\d+)")


class SlurmManager:
    """Runs jobs on one sandbox."""

    name = "Slurm"
    site = SLURM

    def __init__(self, cluster: Sandbox) -> None:
        self._cluster = cluster
        self.socket = cluster.layout.run / "replay.socket"
        self.models = cluster.layout.jobs
        self.nodes: Mapping[str, str] = {}

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[SlurmManager]:
        """Start a sandbox."""
        with start_sandbox(PLAN) as cluster:
            yield cls(cluster)

    @contextmanager
    def installed(self, state: str) -> Iterator[None]:
        """Have gpusage installed while *state* is on."""
        cluster = self._cluster
        if state == "off":
            yield
            return
        install_plugin(cluster, "enforce", SETTINGS)
        yield
        stop_gpusaged(cluster)
        for _ in range(2):  # node scripts go with the second
            cluster.run("gpusage", "slurm", "uninstall", "--with-jobs", "--yes")
            cluster.reconfigure()

    def submitted(self, requests: Sequence[Request]) -> list[str]:
        """Return the jobs' numbers in Slurm, in their order; all of them are held."""

        def submit(job: int) -> str:
            words = ("sbatch", "--parsable", "--hold", "--requeue", "--gres=gpu:1", "--mem=1")
            command = f"exec {sys.executable} -I -S {body.__file__} {self.socket} {job}"
            comment = f"--comment={requests[job].comment}"
            return self._cluster.run(*words, comment, f"--wrap={command}").stdout.strip()

        with ThreadPoolExecutor(CLIENTS) as pool:
            return [*pool.map(submit, range(len(requests)))]

    def shares(self, names: Sequence[str]) -> list[int]:
        """Return the percentage of a GPU that each job waits for."""
        rows = self._cluster.run("squeue", "--noheader", "--format=%A %b").stdout.split("\n")
        requests = dict(row.split() for row in rows if row)
        return [int(requests[name].rpartition(":")[2]) if "mps" in requests[name] else 100 for name in names]

    def release(self, names: Sequence[str]) -> None:
        """Let all jobs be started from now on."""
        self._cluster.run("scontrol", "release", ",".join(names))

    def wait_for(self, is_done: Callable[[], bool], longest_s: float) -> None:
        """Wait until all jobs are done, and have left the queue."""
        self._cluster.wait_for(is_done, "all jobs are done", longest_s)
        self._cluster.wait_for_queue()

    def backfilled(self) -> int | None:
        """Return how many jobs backfill has started so far."""
        count = _BACKFILLED.search(self._cluster.run("sdiag").stdout)
        return int(count[1]) if count else None
