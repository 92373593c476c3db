"""The main job on a real Slurm of this machine's own: models in, GPU requests rewritten, nothing installed on the host.

Run it with `make demo`. It needs no root and no GPU: slurmctld, slurmd and munge are Debian's own programs in a folder,
and the GPUs are files, so nothing is computed on them. The control daemon of NVIDIA's MPS is a stand-in; what starts it
and leads jobs to it is gpusage's own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gpusage.capture import ON_START
from gpusage_hooks.errors import GpuUsageError
from gpusage_sandboxes import processes
from gpusage_sandboxes.host import progress
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from gpusage_slurm.install.node_scripts import EPILOG, PROLOG, TASK_PROLOG

MODELS = Path(__file__).parent / "models"
NODES = "1xa100:4,1xh100:4,1xb200:4"
MPS_CONTROL = Path(__file__).parents[1] / "tests" / "standins" / "nvidia-cuda-mps-control"
SETTINGS = '[slurm]\nlimit_ms = 1000\ncard_limit_s = 20\n[learning]\ncapture = "all"\n'
"""A busy laptop is too slow for the 40 ms that slurmctld waits, and the 2 s of sbatch. All jobs show their models."""
BEGIN_S = 20
REPORT = 'env | grep ^CUDA_ | sort; echo "node=$SLURMD_NODENAME"; until [ -e seen ]; do sleep 1; done'
"""A job runs until all have been looked at: on a busy machine nobody knows when that is."""
STARVES = f"{sys.executable} {Path(__file__).parent / 'starves.py'}"
RESCUE_S = 40
PROGRAM = Path(__file__).parent / "train.py"
FIRST_RUN_S = 120
BUSY = ("in time", "longer than")
"""What gpusage says of a job for which this machine was too slow; the next try finds what this one computed."""
TRIES, PAUSE_S = 6, 3.0
console = Console(highlight=False, width=max(Console().width, 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One job: what is typed, and why it is here."""

    why: str
    options: tuple[str, ...]


def model(name: str, keys: str) -> str:
    """Return the comment that names one of the example models."""
    return f"--comment=model={MODELS}/{name}.onnx,{keys}"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job that was submitted.

    Attributes:
        report: What the job itself saw: its node, and CUDA's variables; empty before it has begun.
    """

    name: str
    example: Example
    report: dict[str, str] = field(default_factory=dict)

    @property
    def gpu(self) -> tuple[str, str]:
        """Node and device. A client of MPS sees one device, number 0: its daemon's folder shows which one that is."""
        served = re.search(r"gpu-(\w+)/pipe$", self.report.get("CUDA_MPS_PIPE_DIRECTORY", ""))
        return self.report.get("node", ""), served[1] if served else self.report.get("CUDA_VISIBLE_DEVICES", "")

    @property
    def share(self) -> str:
        """Its percentage of the GPU; empty where it has a whole one."""
        return self.report.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")

    @property
    def trains(self) -> bool:
        """Whether it is a training job that says so."""
        return "model=" in self.example.options[0] and "mode=infer" not in self.example.options[0]


def main() -> None:
    """Tell the story from an empty folder to an empty folder."""
    began_s = time.monotonic()
    with progress() as report:
        cluster = start_sandbox(ClusterPlan(nodes=parse_nodes(NODES)), release=os.environ.get("RELEASE"), report=report)
    with cluster:
        print_headline(f"A private cluster: Slurm {cluster.installation.version}, three generations of GPUs")
        console.print(cluster.run("sinfo", "-N", "-o", "%10N %8T %24G %f").stdout.rstrip())
        print_headline("gpusage slurm install --mode enforce --yes")
        give_mps(cluster)
        install_plugin(cluster, "enforce", SETTINGS)
        console.print("job_submit.lua, cli_filter.lua and slurm.conf have their lines, gpusaged has seen the cluster.")
        print_headline("Users submit as ever, and name their model in the comment")
        names = [submit(cluster, example) for example in EXAMPLES]
        print_headline("Where they run")
        jobs = begun(cluster, names)
        show_places(jobs)
        print_headline("Two training jobs on one GPU: the limits of each under MPS")
        show_pair(cluster, jobs)
        (cluster.layout.jobs / "seen").touch()
        print_headline("A job that needs more memory than its share has: it fails, and runs again with a whole GPU")
        show_rescue(cluster)
        print_headline("A job without a comment: gpusage only observes its first steps")
        show_first_run(cluster)
        print_headline("kill -9 gpusaged: the next job goes through as its user wrote it")
        kill_daemon(cluster)
        show_untouched(cluster)
        print_headline("gpusage report: what was decided, and how it went")
        show_report(cluster)
        print_headline("Everything is taken down again")
    console.print(f"Done in {time.monotonic() - began_s:.0f} s; nothing is left on this machine but the download.")


def print_headline(text: str) -> None:
    """Print a headline."""
    console.print(f"\n[bold]== {text}[/bold]")


def submit(cluster: Sandbox, example: Example, script: str = REPORT, cache: Path | None = None) -> str:
    """Submit *example* as a user would, show what sbatch says, and return the job's number.

    A job for which this machine was too slow is submitted again, as its message says.
    """
    typed = [option.replace(f"{MODELS}/", "") for option in example.options]
    console.print(f"\n[cyan]$ sbatch {' '.join(typed)} job.sh[/cyan]   [dim]# {example.why}[/dim]", soft_wrap=True)
    variables = {"XDG_CACHE_HOME": str(cache)} if cache else None
    model = ", reading the model included" if "model=" in example.options[0] else ""
    for attempt in range(1, TRIES + 1):
        started_s = time.monotonic()
        done = cluster.run("sbatch", *example.options, f"--wrap={script}", environment=variables)
        took_ms = 1000 * (time.monotonic() - started_s)
        for line in done.stderr.splitlines():
            console.print(f"  [green]{line.removeprefix('sbatch: ')}[/green]", soft_wrap=True)
        job = done.stdout.split()[-1]
        if attempt == TRIES or not any(words in done.stderr for words in BUSY):
            break
        console.print(f"  This machine is busy: job {job} is cancelled and submitted again.")
        cluster.run("scancel", job)
        time.sleep(PAUSE_S)
    console.print(f"  job {job} (sbatch took {took_ms:.0f} ms{model})")
    return job


def give_mps(cluster: Sandbox) -> None:
    """Let each node find a control daemon of MPS: the wrappers of gpusage's node scripts say where."""
    control = shutil.copy(MPS_CONTROL, cluster.layout.etc)
    exports = f"export GPUSAGE_MPS_CONTROL={control} GPUSAGE_MPS_FOLDER={cluster.layout.state}/mps-$SLURMD_NODENAME"
    exports += f" GPUSAGE_ON_START={ON_START}"
    lines = cluster.layout.slurm_conf.read_text(encoding="utf-8")
    for script in (PROLOG, EPILOG, TASK_PROLOG):
        path = cluster.layout.etc / f"gpusage_with_mps_{script.name}"
        path.write_text(f"#!/bin/sh\n{exports}\nexec {script.path}\n", encoding="utf-8")
        path.chmod(0o755)
        lines += f"{script.key}={path}\n"
    cluster.layout.slurm_conf.write_text(lines, encoding="utf-8")


def begun(cluster: Sandbox, names: list[str]) -> list[Job]:
    """Return the jobs with what each of them saw, once all have begun, or after a while."""
    deadline_s = time.monotonic() + BEGIN_S
    while True:
        jobs = [
            Job(name=name, example=example, report=read_report(cluster, name))
            for name, example in zip(names, EXAMPLES, strict=True)
        ]
        if time.monotonic() > deadline_s or all(job.report for job in jobs):
            return jobs
        time.sleep(0.1)


def read_report(cluster: Sandbox, name: str) -> dict[str, str]:
    """Return what REPORT printed in a job, once its last line is there."""
    path = cluster.layout.jobs / f"slurm-{name}.out"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    report = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return report if "node" in report and text.endswith("\n") else {}


def show_places(jobs: list[Job]) -> None:
    """Show node, GPU and share of each job, and who shares a GPU with whom."""
    table = Table("job", "model", "node", "GPU", "share", "beside")
    for job in jobs:
        others = [other for other in jobs if other is not job and other.share and other.gpu == job.gpu]
        partners = ", ".join(other.name for other in others if job.share)
        model = job.example.options[0].partition(f"{MODELS}/")[2].partition(".onnx")[0] or "(none named)"
        node, gpu = job.gpu if job.report else ("waits", "")
        share = f"{job.share} %" if job.share else "whole" if job.report else ""
        table.add_row(job.name, model, node, gpu, share, partners)
    console.print(table)


def show_pair(cluster: Sandbox, jobs: list[Job]) -> None:
    """Show the variables of two training jobs that are on one GPU now, and that its daemon runs."""
    training = [job for job in jobs if job.trains and job.share]
    pairs = [(one, other) for one in training for other in training if one is not other and one.gpu == other.gpu]
    if not pairs:
        sys.exit("demo: error: no two training jobs share a GPU; where this machine is busy, run the demo again")
    folder = f"{cluster.layout.state}/"
    for job in pairs[0]:
        variables = [f"{key}={value.replace(folder, '')}" for key, value in job.report.items() if "_MPS_" in key]
        console.print(f"[bold]job {job.name}[/bold]: {' '.join(variables)}", soft_wrap=True)
    pipe = {Path(job.report.get("CUDA_MPS_PIPE_DIRECTORY", "none")) for job in pairs[0]}
    if len(pipe) != 1 or not (pipe.pop() / "running").exists():
        sys.exit("demo: error: they are not clients of one MPS daemon that runs")


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


def show_first_run(cluster: Sandbox) -> None:
    """Run a program that names no model, and show what was seen of it."""
    if find_spec("torch") is None:
        console.print("This needs PyTorch, 5 GB: make extras EXTRAS=torch; then make demo again.")
        return
    cache = cluster.layout.state / "cache"
    script = f"{sys.executable} {PROGRAM}"
    options = ("--gres=gpu:1", "--job-name=unnamed")
    first = submit(cluster, Example(why="no comment: a whole GPU", options=options), script, cache)
    deadline_s = time.monotonic() + FIRST_RUN_S
    while not any(cache.glob("gpusage/runs/*/*.json")):
        if time.monotonic() > deadline_s:
            sys.exit("demo: error: the job did not show its model")
        time.sleep(0.2)
    (path,) = cache.glob("gpusage/runs/*/*.json")
    seen = json.loads(path.read_text(encoding="utf-8"))
    shapes = [shape for call in seen["calls"] for shape, _ in call["shapes"]]
    console.print(f"  seen in job {first}: {seen['optimizers'][0]}, inputs {shapes[:2]}")
    console.print("  Once its node has measured it for a minute, the same line gets a share (docs/capture.md).")


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
