"""No GPU is bound twice and no share runs unbound, while daemons die and the switch is thrown."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import yarn_applications as apps
import yarn_masters as masters
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.settings import SCHEDULER_SETTINGS, SITE_SETTINGS

pytestmark = pytest.mark.yarn

SEED = int(os.environ.get("GPUSAGE_TEST_SEED", "9"))
APPLICATIONS, CONTAINERS = 5, 12
LABELS = ["v100", "a100", "h100"]
SHARES = (20, 35, 50, 60, 80, 100)
PATIENCE_S = 420.0
"""A bound, not what it takes: 220 s on two cores with a load of 24."""

COMMAND = """note() {{
echo "$1 {name}/$GPUSAGE_CONTAINER $NM_PORT/$CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $(date +%s%N)"
}} >>{log}
note began; sleep 0.$((GPUSAGE_CONTAINER * {odd} % 9 + 1)); sleep $((GPUSAGE_CONTAINER % 3)); note ended"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A container's process, as its environment describes it."""

    process: Path
    container: str
    gpu: tuple[str, str]
    share: int


@pytest.fixture
def cluster(jar: Path, tmp_path: Path) -> Iterator[Sandbox]:
    """Return a cluster of six GPUs on three nodes, and one node without."""
    settings = {
        **SITE_SETTINGS,
        "gpusage.switch-file": str(tmp_path / "off"),
        # So late a master is missed that the killed ResourceManager had noted and not yet started.
        "yarn.am.liveness-monitor.expiry-interval-ms": "15000",
    }
    nodes = parse_nodes("1xv100:2,1xa100:3,1xh100:1,1xcpu:0")
    plan = ClusterPlan(nodes=nodes, jar=jar, site_settings=settings, scheduler_settings=SCHEDULER_SETTINGS)
    with start_sandbox(plan) as sandbox:
        yield sandbox


def test_no_gpu_is_bound_twice_and_no_share_runs_unbound_whatever_dies(cluster: Sandbox, tmp_path: Path) -> None:
    chance = random.Random(SEED)  # no secret
    log = tmp_path / "notes"
    harms = random.Random(SEED + 1)  # no secret
    with killing(cluster, harms, tmp_path / "off") as done:
        known = [submit(cluster, chance, f"a{number}", log) for number in range(APPLICATIONS)]
        watch(cluster, known)
    notes = [line.split() for line in log.read_text().splitlines()]
    assert all(len(note) == 5 and not note[2].endswith("/") for note in notes), f"unbound; seed {SEED}, {done}"
    assert most_at_once(notes) <= {100}, f"a GPU was bound twice; seed {SEED}, {done}"
    reports = [apps.application(cluster, app) for app in known]
    failed = [report["diagnostics"] for report in reports if report["finalStatus"] != "SUCCEEDED"]
    assert not failed, f"seed {SEED}, {done}"
    ended = {name for kind, name, *_ in notes if kind == "ended"}
    assert ended == {f"a{app}/{number}" for app in range(APPLICATIONS) for number in range(CONTAINERS)}
    assert len(done) > 3


def submit(sandbox: Sandbox, chance: random.Random, name: str, log: Path) -> str:
    """Submit an application of random size and preference; its containers take from 0.1 to 2.9 s each."""
    plan = masters.plan(
        share=str(chance.choice(SHARES)),
        labels=",".join(chance.sample(LABELS, 3)),
        containers=str(CONTAINERS),
        fallback_after_s=str(chance.randint(2, 5)),
    )
    command = COMMAND.format(name=name, log=log, odd=chance.choice((1, 5, 7)))
    fields = {"max-app-attempts": 2, "keep-containers-across-application-attempts": True}
    known: list[str] = []

    def taken() -> bool:
        with suppress(AssertionError, OSError):  # the ResourceManager is dead, or not quite alive
            known.append(masters.submit(sandbox, command, plan=plan, **fields))
        return bool(known)

    apps.wait_until(sandbox, taken, f"{name} is submitted", PATIENCE_S)
    return known[0]


def watch(sandbox: Sandbox, known: list[str]) -> None:
    """Look at every container that runs until all applications have ended."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        full = overfull(running(sandbox))
        assert not full, f"a GPU is bound twice; seed {SEED}: {full}"
        states = {app["id"]: app["state"] for app in apps.applications(sandbox)}
        if states and all(states.get(app) in apps.ENDED for app in known):
            return
        time.sleep(0.2)
    pytest.fail(f"not all applications ended; seed {SEED}")


def running(sandbox: Sandbox) -> list[Running]:
    """Return the processes that run a user's command, one a container; none of them may be unbound."""
    actual = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b".gpusage-command.sh" not in (process / "cmdline").read_bytes():
                continue
            pairs = (entry.partition("=") for entry in (process / "environ").read_text(errors="replace").split("\0"))
        except OSError:
            continue
        of = {name: value for name, _, value in pairs}
        if of.get("GPUSAGE_YARN_SANDBOX") == str(sandbox.layout.folder) and "GPUSAGE_CONTAINER" in of:
            assert of.get("CUDA_VISIBLE_DEVICES"), f"{of['CONTAINER_ID']} runs unbound; seed {SEED}"
            place = (of["NM_PORT"], of["CUDA_VISIBLE_DEVICES"])
            share = int(of["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
            actual.append(Running(process=process, container=of["CONTAINER_ID"], gpu=place, share=share))
    return actual


def overfull(seen: list[Running]) -> list[list[Running]]:
    """Return the containers of each GPU that has more than 100, all of which still run: so all ran at one moment."""
    on: defaultdict[tuple[str, str], dict[str, Running]] = defaultdict(dict)
    for each in seen:
        on[each.gpu][each.container] = each
    suspected = [list(those.values()) for those in on.values() if sum(each.share for each in those.values()) > 100]
    return [those for those in suspected if all((each.process / "exe").exists() for each in those)]


def most_at_once(notes: list[list[str]]) -> set[int]:
    """Return what a GPU ever had above 100, or 100, by the times at which its containers began and ended."""
    ends = Counter((name, gpu) for kind, name, gpu, _, _ in notes if kind == "ended")
    now: Counter[str] = Counter()
    most = 100
    for kind, name, gpu, share, _ in sorted(notes, key=lambda note: int(note[4])):
        if ends[name, gpu]:
            now[gpu] += int(share) if kind == "began" else -int(share)
            most = max(most, now[gpu])
    return {most}


@contextmanager
def killing(sandbox: Sandbox, chance: random.Random, switch: Path) -> Iterator[list[str]]:
    """Do one harm after the other in a thread of its own; yield what was done so far."""
    done: list[str] = []
    enough = threading.Event()

    def harm_repeatedly() -> None:
        while not enough.wait(chance.uniform(1, 5)):
            harm = chance.choice(HARMS)
            node = chance.choice([name for name in sandbox.nodes() if "cpu" not in name])
            done.append(f"{harm.__name__} {node}")
            harm(sandbox, node, switch)

    thread = threading.Thread(target=harm_repeatedly)
    thread.start()
    try:
        yield done
    finally:
        enough.set()
        thread.join()


def kill_the_resource_manager(sandbox: Sandbox, _node: str, _switch: Path) -> None:
    sandbox.kill_rm()
    sandbox.start_rm()


def kill_a_node_manager(sandbox: Sandbox, node: str, _switch: Path) -> None:
    sandbox.kill_nm(node)
    sandbox.start_nm(node)


def kill_both(sandbox: Sandbox, node: str, _switch: Path) -> None:
    sandbox.kill_rm()
    sandbox.kill_nm(node)
    sandbox.launch(node)
    sandbox.start_rm()


def throw_the_switch(_sandbox: Sandbox, _node: str, switch: Path) -> None:
    switch.touch()
    time.sleep(3)
    switch.unlink()


HARMS: tuple[Callable[[Sandbox, str, Path], None], ...] = (
    kill_the_resource_manager,
    kill_a_node_manager,
    kill_both,
    throw_the_switch,
)
