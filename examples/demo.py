"""The main job on a real Slurm of this machine's own: models in, GPU requests rewritten, nothing installed on the host.

Run it with `make demo`. It needs no root and no GPU: slurmctld, slurmd and munge are Debian's own programs in a folder,
and the GPUs are files, so nothing is computed on them.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gpusage.sandboxes import processes
from gpusage.sandboxes.progress import progress
from gpusage_hooks.errors import GpuUsageError
from gpusage_slurm.sandbox import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_slurm.sandbox.trial import install_plugin

MODELS = Path(__file__).parent / "models"
NODES = "1xa100:4,1xh100:4,1xb200:4"
RUN_S = 20
REPORT = 'echo "$SLURMD_NODENAME ${CUDA_VISIBLE_DEVICES:--} ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:--}"'
STARVES = f"{sys.executable} {Path(__file__).parent / 'starves.py'}"
RESCUE_S = 40
console = Console(highlight=False, width=max(Console().width, 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One job: what is typed, and why it is here."""

    why: str
    options: tuple[str, ...]


def model(name: str, wish: str) -> str:
    """Return the comment that names one of the example models."""
    return f"--comment=model={MODELS}/{name}.onnx,{wish}"


EXAMPLES = (
    Example(why="a small service", options=(model("dlrm", "batch=8,mode=infer"), "--gres=gpu:1")),
    Example(why="another one", options=(model("mobilenet_v3_large", "batch=1,mode=infer"), "--gpus=1")),
    Example(
        why="a service that promised 10 ms to 100 requests per second",
        options=(model("dlrm", "batch=1,mode=infer,slo=10ms,rate=100"), "--gpus-per-node=1"),
    ),
    Example(why="training that leaves room", options=(model("swin_t", "batch=8,precision=fp16"), "--gres=gpu:1")),
    Example(
        why="training that waits for its loader, as its user knows",
        options=(model("resnet50", "batch=32,precision=fp16,utilization=60"), "--gres=gpu:1"),
    ),
    Example(
        why="its user accepts half as long again",
        options=(model("t5_small", "batch=8,precision=fp16,slowdown=1.5"), "--gres=gpu:1"),
    ),
    Example(why="training that fills a GPU", options=(model("convnext_tiny", "batch=64"), "--gres=gpu:1")),
    Example(why="the user insists on a type", options=(model("resnet50", "batch=128"), "--gres=gpu:a100:1")),
    Example(why="two GPUs are left alone", options=(model("bert_base", "batch=32"), "--gpus=2")),
    Example(why="a job that says nothing to us", options=("--gres=gpu:1",)),
)


def main() -> None:
    """Tell the story from an empty folder to an empty folder."""
    began_s = time.monotonic()
    with progress() as report:
        cluster = start_sandbox(ClusterPlan(nodes=parse_nodes(NODES)), release=os.environ.get("RELEASE"), report=report)
    with cluster:
        say(f"A private cluster: Slurm {cluster.installation.version}, three generations of GPUs")
        console.print(cluster.run("sinfo", "-N", "-o", "%10N %8T %24G %f").stdout.rstrip())
        say("gpusage slurm install --mode enforce --yes")
        install_plugin(cluster, "enforce")
        console.print("job_submit.lua, cli_filter.lua and slurm.conf have their lines, gpusaged has seen the cluster.")
        say("Users submit as ever, and name their model in the comment")
        jobs = [submit(cluster, example) for example in EXAMPLES]
        say("Where they run")
        show_places(cluster, jobs)
        say("A job that needs more memory than its share has: it fails, and runs again with a whole GPU")
        show_rescue(cluster)
        say("kill -9 gpusaged: the next job goes through as its user wrote it")
        kill_daemon(cluster)
        show_untouched(cluster)
        say("gpusage report: what was decided, and how it went")
        show_report(cluster)
        say("Everything is taken down again")
    console.print(f"Done in {time.monotonic() - began_s:.0f} s; nothing is left on this machine but the download.")


def say(text: str) -> None:
    """Print a headline."""
    console.print(f"\n[bold]== {text}[/bold]")


def submit(cluster: Sandbox, example: Example, script: str = f"{REPORT}; sleep {RUN_S}") -> str:
    """Submit *example* as a user would, show what sbatch says, and return the job's number."""
    typed = [option.replace(f"{MODELS}/", "") for option in example.options]
    console.print(f"\n[cyan]$ sbatch {' '.join(typed)} job.sh[/cyan]   [dim]# {example.why}[/dim]", soft_wrap=True)
    started_s = time.monotonic()
    done = cluster.run("sbatch", "--parsable", *example.options, f"--wrap={script}")
    took_ms = 1000 * (time.monotonic() - started_s)
    for line in done.stderr.splitlines():
        console.print(f"  [green]{line.removeprefix('sbatch: ')}[/green]", soft_wrap=True)
    model = ", reading the model included" if "model=" in example.options[0] else ""
    console.print(f"  job {done.stdout.strip()} (sbatch took {took_ms:.0f} ms{model})")
    return done.stdout.strip()


def show_places(cluster: Sandbox, jobs: list[str]) -> None:
    """Show node, GPU and share of each job once all have begun, and who shares a GPU with whom."""
    deadline_s = time.monotonic() + RUN_S - 2
    while time.monotonic() < deadline_s and len(list(places(cluster, jobs))) < len(jobs):
        time.sleep(0.1)
    table = Table("job", "model", "node", "GPU", "share", "beside")
    found = {job: (node, gpu, share) for job, node, gpu, share in places(cluster, jobs)}
    for job, example in zip(jobs, EXAMPLES, strict=True):
        node, gpu, share = found.get(job, ("waits", "", ""))
        sharing = [] if share == "-" else [other for other, place in found.items() if place[2] != "-" and other != job]
        beside = [other for other in sharing if found[other][:2] == (node, gpu)]
        name = example.options[0].partition(f"{MODELS}/")[2].partition(".onnx")[0] or "(none named)"
        table.add_row(
            job, name, node, gpu, "whole" if share == "-" else f"{share} %" if share else "", ", ".join(beside)
        )
    console.print(table)
    if not any(len({*group}) > 1 for group in shared(found)):
        sys.exit("demo: error: no two jobs share a GPU")


def places(cluster: Sandbox, jobs: list[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield job, node, device and thread percentage, as each job itself saw them."""
    for job in jobs:
        path = cluster.layout.jobs / f"slurm-{job}.out"
        words = path.read_text(encoding="utf-8").split() if path.exists() else []
        if len(words) == 3:  # noqa: PLR2004 - what REPORT prints
            yield job, words[0], words[1], words[2]


def shared(found: dict[str, tuple[str, str, str]]) -> list[list[str]]:
    """Return the jobs that hold a share, grouped by the GPU that it is of."""
    groups: dict[tuple[str, str], list[str]] = {}
    for job, (node, gpu, share) in found.items():
        if share != "-":
            groups.setdefault((node, gpu), []).append(job)
    return list(groups.values())


def show_rescue(cluster: Sandbox) -> None:
    """Let a job ask for more memory than its cap allows, as PyTorch would fail, and show how it comes to its end."""
    options = (*EXAMPLES[0].options, "--open-mode=append", "--job-name=starves")
    job = submit(cluster, Example(why="its batch turns out larger than it says", options=options), STARVES)
    path = cluster.layout.jobs / f"slurm-{job}.out"
    deadline_s = time.monotonic() + RESCUE_S
    while "trained" not in (path.read_text(encoding="utf-8") if path.exists() else ""):
        if time.monotonic() > deadline_s:
            sys.exit("demo: error: the job was not rescued")
        time.sleep(0.2)
    console.print(path.read_text(encoding="utf-8").rstrip(), soft_wrap=True)


def kill_daemon(cluster: Sandbox) -> None:
    """End gpusaged as no daemon should be ended."""
    pid = processes.read_pid(cluster.layout.pid_file("gpusaged"))
    if pid:
        os.kill(pid, signal.SIGKILL)
        processes.wait_for_end([pid], 5.0)


def show_untouched(cluster: Sandbox) -> None:
    """Submit once more and show that Slurm got the request as it was typed."""
    job = submit(cluster, Example(why="as before, but nobody answers", options=EXAMPLES[0].options))
    text = cluster.run("scontrol", "show", "job", job).stdout
    request = next(word for word in text.split() if word.startswith(("TresPerNode=", "TresPerJob=")))
    console.print(f"  scontrol show job {job}: {request}")
    if "gpu:1" not in request:
        sys.exit("demo: error: the request was changed without a daemon")


def show_report(cluster: Sandbox) -> None:
    """Show the report of this cluster's store."""
    gpusage = str(Path(sys.executable).parent / "gpusage")
    console.print(cluster.run(gpusage, "report", "--since", "1h").stdout.rstrip(), soft_wrap=True)


if __name__ == "__main__":
    os.environ.setdefault("TMPDIR", tempfile.gettempdir())
    try:
        main()
    except GpuUsageError as error:
        sys.exit(f"demo: error: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: stopped")
