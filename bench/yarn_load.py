"""Applications of `gpusage yarn submit` all at once on a real YARN, each followed to its end.

    .venv/bin/python bench/yarn_load.py [--applications 200] [--at-once 4]

Each asks for a share of one of three GPU types and may go on to the next; each has a master of its own (a JVM) and runs
one container, which notes when it began and ended, on which GPU and with which percentage. Told are how many were
lost, ran twice or failed, whether a GPU was ever given out beyond 100 %, and whether everything was given back. What
limits the pace is the machine: a master takes one to two seconds of a core, and --at-once says how many run a node.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.jar import build_jar
from gpusage_sandboxes.yarn.settings import SCHEDULER_SETTINGS, SITE_SETTINGS
from gpusage_yarn.cluster.queues import MASTER_MIB
from gpusage_yarn.cluster.resource_manager import ResourceManager
from gpusage_yarn.plan import SHARE, Plan
from gpusage_yarn.submission.application import Application

NODES = "1xv100:2,1xa100:2,1xh100:2"
LABELS = ("v100", "a100", "h100")
SHARES = (20, 35, 50, 60, 100)
COMMAND = """note() {{
echo "$1 {name} $NM_PORT/$CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $(date +%s%N)" >>{log}; }}
note began; sleep 0.3; note ended"""
CONTAINER_MIB = 64
ENDED = ("FINISHED", "FAILED", "KILLED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of all of them.

    Attributes:
        states: How many ended in which final status; ``LOST`` is one that the ResourceManager does not know.
        runs: How many began how often; ``{1: 200}`` is all of 200 exactly once.
        most: The largest sum of percentages that one GPU ever had at the same time.
        left: What of the shares was not given back.
    """

    states: Counter[str]
    runs: Counter[int]
    most: int
    left: int
    submitted_s: float
    ended_s: float


def cluster_plan(jar: Path, at_once: int) -> ClusterPlan:
    """Return three nodes of two GPUs, each with memory for *at_once* masters and as much again for containers."""
    masters_mib = at_once * MASTER_MIB
    return ClusterPlan(
        nodes=parse_nodes(NODES),
        jar=jar,
        site_settings=SITE_SETTINGS,
        node_settings={"yarn.nodemanager.resource.memory-mb": str(2 * masters_mib)},
        scheduler_settings={**SCHEDULER_SETTINGS, "yarn.scheduler.capacity.maximum-am-resource-percent": "0.5"},
    )


def run(cluster: Sandbox, log: Path, count: int, patience_s: float) -> Outcome:
    """Submit *count* applications at once, and wait until each has ended."""
    began_s = time.monotonic()
    manager = ResourceManager((cluster.rm_url,), user="alice")
    classpath = manager.settings("yarn.application.classpath") or ""
    with ThreadPoolExecutor(16) as pool:
        identities = list(pool.map(lambda number: _submit(cluster, number, log, classpath), range(count)))
    submitted_s = time.monotonic() - began_s
    deadline_s = time.monotonic() + patience_s
    while (left := _alive(cluster)) and time.monotonic() < deadline_s:
        print(f"\r{len(left)} left, {time.monotonic() - began_s:.0f} s ", end="", file=sys.stderr, flush=True)
        time.sleep(1)
    ended_s = time.monotonic() - began_s
    time.sleep(1)  # a node's last heartbeats
    known = {app["id"]: app["finalStatus"] for app in _applications(cluster)}
    notes = [line.split() for line in log.read_text(encoding="utf-8").splitlines()]
    turns = Counter((note[0], note[1]) for note in notes)
    return Outcome(
        states=Counter(known.get(identity, "LOST") for identity in identities),
        runs=Counter(max(turns["began", f"a{each}"], turns["ended", f"a{each}"]) for each in range(count)),
        most=most_at_once(notes),
        left=sum(_used(node) for node in cluster.get("nodes")["nodes"]["node"]),
        submitted_s=submitted_s,
        ended_s=ended_s,
    )


def most_at_once(notes: Iterable[Sequence[str]]) -> int:
    """Return the largest sum of percentages that one GPU had at the same time."""
    now: Counter[str] = Counter()
    most = 0
    for kind, _, gpu, percent, _ in sorted(notes, key=lambda note: int(note[4])):
        now[gpu] += int(percent) if kind == "began" else -int(percent)
        most = max(most, now[gpu])
    return most


def _submit(cluster: Sandbox, number: int, log: Path, classpath: str) -> str:
    turn = number % len(LABELS)
    plan = Plan(
        share=SHARES[number % len(SHARES)],
        labels=(*LABELS[turn:], *LABELS[:turn]),
        fallback_after_s=30,
        memory_mib=CONTAINER_MIB,
        vcores=1,
    )
    command = COMMAND.format(name=f"a{number}", log=log)
    application = Application(command=command, plan=plan, name=f"a{number}", classpath=classpath)
    return ResourceManager((cluster.rm_url,), user="alice").submit(application.document)


def _applications(cluster: Sandbox) -> list[dict[str, Any]]:
    return list(((cluster.get("apps") or {}).get("apps") or {}).get("app") or [])


def _alive(cluster: Sandbox) -> list[str]:
    return [app["id"] for app in _applications(cluster) if app["state"] not in ENDED]


def _used(node: dict[str, Any]) -> int:
    resources = node["usedResource"]["resourceInformations"]["resourceInformation"]
    return next(int(each["value"]) for each in resources if each["name"] == SHARE)


def main() -> None:
    """Print what became of them; the exit status is 1 where that is not all that it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--applications", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=4, help="masters a node")
    parser.add_argument("--patience-s", type=float, default=1800)
    typed = parser.parse_args()
    with start_sandbox(cluster_plan(build_jar(), typed.at_once)) as cluster:
        result = run(cluster, cluster.layout.jobs / "notes", typed.applications, typed.patience_s)
    states = ", ".join(f"{count} {state.lower()}" for state, count in sorted(result.states.items()))
    runs = ", ".join(f"{count} of them {times}x" for times, count in sorted(result.runs.items()))
    print(f"\n{typed.applications} applications: {states}; run: {runs}")
    print(f"most on one GPU at once: {result.most} %; shares not given back: {result.left}")
    print(f"taken after {result.submitted_s:.1f} s, all ended after {result.ended_s:.0f} s", end="; ")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    wanted = (Counter(SUCCEEDED=typed.applications), Counter({1: typed.applications}), 0)
    sys.exit((result.states, result.runs, result.left) != wanted or result.most > 100)  # per cent


if __name__ == "__main__":
    main()
