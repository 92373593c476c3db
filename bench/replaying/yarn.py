"""The sandbox's YARN as a replay uses it: `gpusage yarn submit`, a queue that runs nothing until all jobs are in it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from gpusage_planning.replay import body
from gpusage_planning.replay.site import YARN
from gpusage_sandboxes.gpusaged import write_gpusage_toml
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.jar import build_jar
from gpusage_sandboxes.yarn.layout import CLIENT
from gpusage_sandboxes.yarn.settings import with_gpusage
from gpusage_yarn.cluster.configuration import SCHEDULER
from replaying.request import Request

HELD = "yarn.scheduler.capacity.root.default.max-parallel-apps"
MOST = 10_000
CLIENTS = 2
CONTAINER_MIB = 64
ENDED = {"FINISHED", "FAILED", "KILLED"}


class YarnManager:
    """Runs jobs on one sandbox. Without gpusage, a job has a whole GPU: its user names no model."""

    name = "YARN"
    site = YARN

    def __init__(self, cluster: Sandbox) -> None:
        self._cluster, self._state = cluster, "off"
        self._shares: dict[str, int] = {}
        self.socket = cluster.layout.run / "replay.socket"
        self.models = cluster.layout.jobs
        self.nodes: Mapping[str, str] = {str(port): name for name, port in cluster.record.node_ports.items()}

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[YarnManager]:
        """Start a sandbox with our classes."""
        plan = ClusterPlan(nodes=parse_nodes(YARN.nodes), scheduler_settings={HELD: str(MOST)})
        with start_sandbox(with_gpusage(plan, build_jar(), "enforce")) as cluster:
            write_gpusage_toml(cluster.layout, "enforce")
            yield cls(cluster)

    @contextmanager
    def installed(self, state: str) -> Iterator[None]:
        """Let users name their models while *state* is on."""
        self._state = state
        self._let_run(0)
        yield

    def submitted(self, requests: Sequence[Request]) -> list[str]:
        """Return the applications' ids, in the jobs' order."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            self._shares = dict(pool.map(self._submit, range(len(requests)), requests))
        return [*self._shares]

    def _submit(self, job: int, request: Request) -> tuple[str, int]:
        words = [sys.executable, "-m", "gpusage.cli", "yarn", "submit", "--detach", "--json"]
        model = ["--model", request.comment.removeprefix("model=")] if self._state == "on" else []
        command = shlex.join([sys.executable, "-I", "-S", body.__file__, str(self.socket), str(job)])
        done = self._cluster.run(*words, *model, "--memory-mib", str(CONTAINER_MIB), "--", f"exec {command}")
        document = json.loads(done.stdout)
        return document["application"], document["plan"]["share"]

    def shares(self, names: Sequence[str]) -> list[int]:
        """Return the percentage of a GPU that each job asked for."""
        return [self._shares[name] for name in names]

    def release(self, _: Sequence[str]) -> None:
        """Let all applications run from now on."""
        self._let_run(MOST)

    def wait_for(self, is_done: Callable[[], bool], longest_s: float) -> None:
        """Wait until all jobs are done, and their masters have ended."""
        self._cluster.wait_for(is_done, "all jobs are done", longest_s)
        self._cluster.wait_for(self._is_empty, "all masters have ended")

    def backfilled(self) -> int | None:
        """Return nothing: YARN does not count it."""
        return None

    def _is_empty(self) -> bool:
        apps = ((self._cluster.get("apps") or {}).get("apps") or {}).get("app") or []
        return all(app["state"] in ENDED for app in apps)

    def _let_run(self, count: int) -> None:
        path = self._cluster.layout.conf(CLIENT) / SCHEDULER
        before, after = path.read_text(encoding="utf-8").split(f"<name>{HELD}</name><value>")
        path.write_text(f"{before}<name>{HELD}</name><value>{count}<{after.partition('<')[2]}", encoding="utf-8")
        self._cluster.run("yarn", "rmadmin", "-refreshQueues")
