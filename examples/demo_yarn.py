"""The main job on a real YARN of this machine's own: models in, GPU requests rewritten, nothing installed on the host.

Run it with `make demo-yarn`. It needs no root and no GPU: ResourceManager and NodeManagers are Hadoop's own processes
in a folder, and the GPUs are numbers that they claim, so nothing is computed on them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gpusage.store.opening import open_store
from gpusage_hooks.errors import GpuUsageError
from gpusage_sandboxes.host import progress
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.jar import build_jar
from gpusage_sandboxes.yarn.settings import SCHEDULER_SETTINGS, SITE_SETTINGS
from gpusage_yarn.cluster.snapshot import parse_node

MODELS = Path(__file__).parent.resolve() / "models"
NODES = "1xv100:1,1xa100:2,1xh100:3"
SEEN = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
LIMIT_S = 60.0
console = Console(highlight=False, width=max(Console().width, 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One job: what is typed, and why it is here."""

    why: str
    model: str
    options: tuple[str, ...] = ()


EXAMPLES = (
    Example(why="a small recommender", model="dlrm.onnx,batch=8,mode=infer"),
    Example(why="the user insists on a type", model="resnet50.onnx,batch=128", options=("--gpu", "a100")),
    Example(why="a small inference job", model="resnet18.onnx,batch=8,mode=infer"),
    Example(why="a service that promised 100 ms", model="efficientnet_b0.onnx,batch=8,mode=infer,slo=100ms,rate=5"),
    Example(why="training that leaves room", model="swin_t.onnx,batch=4,precision=fp16"),
    Example(why="training that waits for its loader", model="resnet50.onnx,batch=32,precision=fp16,utilization=50"),
    Example(why="training that fills a GPU", model="vgg16.onnx,batch=64,precision=fp16"),
    Example(why="a language model", model="bert_base.onnx,batch=32,precision=bf16"),
)
RECOMMENDER = Example(why="two containers of one recommender", model=EXAMPLES[0].model, options=("--gpu", "v100"))
THIRD = Example(why="a whole V100, which is shared now", model="vgg16.onnx,batch=32", options=("--gpu", "v100"))
MOVED = Example(why="the same, and any GPU will do", model="vgg16.onnx,batch=32")


def main() -> None:
    """Tell the story from an empty folder to an empty folder."""
    began_s = time.monotonic()
    with progress() as report:
        plan = ClusterPlan(
            nodes=parse_nodes(NODES),
            jar=build_jar(),
            site_settings=SITE_SETTINGS,
            scheduler_settings=SCHEDULER_SETTINGS,
        )
        cluster = start_sandbox(plan, report=report)
    with cluster:
        print_headline(
            f"A private cluster: Hadoop {cluster.hadoop.version}, three generations of GPUs, our jar on its classpath"
        )
        show_nodes(cluster)
        print_headline("Users submit their models with gpusage yarn submit")
        jobs = [submit(cluster, example, number) for number, example in enumerate(EXAMPLES)]
        show_places(cluster, jobs)
        release(cluster, range(len(EXAMPLES)), jobs)
        print_headline("Two containers share one GPU; this is what they see")
        shared = submit(cluster, RECOMMENDER, 10, "--containers", "2")
        show_shared(cluster, shared)
        print_headline("A third finds no room there")
        third, moved = submit(cluster, THIRD, 11, wait=False), submit(cluster, MOVED, 12)
        show_waiting(cluster, third)
        show_places(cluster, [moved])
        print_headline("kill -9 ResourceManager, and start it again")
        restart(cluster, shared, third)
        release(cluster, (10, 11, 12), [shared, third, moved])
        console.print("The third had its GPU once the two had ended; all three have succeeded.")
        show_store(cluster)
        print_headline("Everything is taken down again")
    console.print(f"Done in {time.monotonic() - began_s:.0f} s; nothing is left on this machine but the downloads.")


def print_headline(text: str) -> None:
    """Print a headline."""
    console.print(f"\n[bold]== {text}[/bold]")


def submit(cluster: Sandbox, example: Example, number: int, *more: str, wait: bool = True) -> str:
    """Submit *example* as a user would, show what is said, and return the application; *wait* until it runs."""
    options = ("--model", example.model, *example.options, *more)
    console.print(
        f"\n[cyan]$ gpusage yarn submit {' '.join(options)} -- ./job.sh[/cyan]   [dim]# {example.why}[/dim]",
        soft_wrap=True,
    )
    command = f"env; until test -e {go(cluster, number)}; do sleep 0.2; done"
    typed = ["--model", f"{MODELS}/{example.model}", *example.options, *more, "--memory-mib", "128", "--detach"]
    done = cluster.run("gpusage", "yarn", "submit", *typed, "--name", "job.sh", "--", command)
    for line in done.stderr.splitlines():
        console.print(f"  [green]{line}[/green]", soft_wrap=True)
    identity = done.stdout.strip()
    console.print(f"  {identity}")
    if wait:
        cluster.wait_for(lambda: list(containers_of(cluster, identity)), f"{identity} runs", LIMIT_S)
    return identity


def show_nodes(cluster: Sandbox) -> None:
    """Show what the ResourceManager knows of its nodes."""
    table = Table("node", "label", "gpusage.io/share")
    for node in cluster.get("nodes")["nodes"]["node"]:
        state = parse_node(node)
        table.add_row(state.name, state.label, str(state.total.share))
    console.print(table)


def show_places(cluster: Sandbox, jobs: list[str]) -> None:
    """Show node, GPU and share of each job, as it saw them itself."""
    table = Table("application", "node", "GPU", "share", "memory cap")
    for job in jobs:
        for node, variables in containers_of(cluster, job):
            gpu, share, cap = (variables.get(name, "-") for name in SEEN)
            table.add_row(job, node, gpu, f"{share} %", cap.partition("=")[2] or "-")
    console.print(table)


def show_shared(cluster: Sandbox, job: str) -> None:
    """Show the variables that two containers have, and insist on one GPU for both."""
    cluster.wait_for(lambda: len(list(containers_of(cluster, job))) > 1, "both containers run", LIMIT_S)
    containers = list(containers_of(cluster, job))
    for number, (node, variables) in enumerate(containers):
        console.print(
            f"  container {number} on {node}: {', '.join(f'{name}={variables.get(name)}' for name in SEEN)}",
            soft_wrap=True,
        )
    if len({(node, variables.get(SEEN[0])) for node, variables in containers}) != 1:
        fail("the two do not share a GPU")


def show_waiting(cluster: Sandbox, job: str) -> None:
    """Show that *job* has its master, and no GPU yet."""
    cluster.wait_for(partial(is_running, cluster, job), f"the master of {job} runs", LIMIT_S)
    if list(containers_of(cluster, job)):
        fail(f"{job} has a GPU that is not free")
    console.print(f"\n  {job} waits: the V100's share is given out.")


def restart(cluster: Sandbox, shared: str, third: str) -> None:
    """Kill the ResourceManager, start it again, and check that it knows what it knew."""
    before = list(containers_of(cluster, shared)), used(cluster)
    cluster.kill_rm()
    began_s = time.monotonic()
    cluster.start_rm()
    cluster.wait_for(lambda: used(cluster) == before[1], "the shares are accounted for again", LIMIT_S)
    for job in (shared, third):  # a master is known again once it has registered anew
        cluster.wait_for(partial(is_running, cluster, job), f"{job} runs on", LIMIT_S)
    if list(containers_of(cluster, shared)) != before[0] or list(containers_of(cluster, third)):
        fail("something has changed with the restart")
    console.print(f"Back after {time.monotonic() - began_s:.1f} s: the two run on, the third waits, shares as before:")
    console.print("  " + ", ".join(f"{label} {share}" for label, share in sorted(before[1].items())))


def release(cluster: Sandbox, numbers: Iterable[int], jobs: list[str]) -> None:
    """Let jobs end, and insist on success."""
    for number in numbers:
        go(cluster, number).touch()
    for job in jobs:
        cluster.wait_for(partial(has_ended, cluster, job), f"{job} has ended", LIMIT_S)
        if application(cluster, job)["finalStatus"] != "SUCCEEDED":
            fail(f"{job} has failed: {application(cluster, job)['diagnostics']}")


def is_running(cluster: Sandbox, job: str) -> bool:
    """Return whether the ResourceManager says so."""
    return bool(application(cluster, job)["state"] == "RUNNING")


def has_ended(cluster: Sandbox, job: str) -> bool:
    """Return whether the ResourceManager says so."""
    return bool(application(cluster, job)["state"] == "FINISHED")


def show_store(cluster: Sandbox) -> None:
    """Show what is kept of the decisions."""
    store = open_store(f"sqlite:///{cluster.layout.state}/decisions.db")
    records = store.latest(100)
    store.close()
    rewritten = sum(record.decision.code.value == "REWRITE" for record in records)
    console.print(f"The store has {len(records)} decisions, {rewritten} of them for a share or a generation.")


def containers_of(cluster: Sandbox, job: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield node and variables of each container of a job that runs its command."""
    for path in sorted(cluster.logs.glob(f"containers/*/{job}/*/stdout")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        variables = dict(line.split("=", 1) for line in lines if "=" in line)
        if SEEN[0] in variables:
            yield path.parents[2].name, variables


def used(cluster: Sandbox) -> dict[str, int]:
    """Return the share that is given out, by label."""
    nodes = ((cluster.get("nodes") or {}).get("nodes") or {}).get("node") or []
    states = [parse_node(node) for node in nodes]
    return {state.label: state.total.share - state.free.share for state in states}


def application(cluster: Sandbox, job: str) -> Any:  # JSON
    """Return what the ResourceManager says of a job."""
    return (cluster.get(f"apps/{job}") or {}).get("app") or {"state": "", "finalStatus": "", "diagnostics": ""}


def go(cluster: Sandbox, number: int) -> Path:
    """Return the file for which job *number* waits."""
    return cluster.layout.jobs / f"go-{number}"


def fail(reason: str) -> None:
    """End the demo, for it has shown what must not be."""
    sys.exit(f"demo: error: {reason}")


if __name__ == "__main__":
    try:
        main()
    except GpuUsageError as error:
        sys.exit(f"demo: error: {error}")
