"""An upgrade under load: the package is replaced again and again by pip while jobs run, and then taken away.

The goal is no job that fails, no node that is drained, and no line in a job's output that is not its own.

Example: python bench/upgrade.py --reinstallations 50 --jobs 300
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from gpusage_sandboxes.gpusaged import start_gpusaged, write_gpusage_toml
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox

CHECKOUT = Path(__file__).parents[1]
MODEL = CHECKOUT / "examples" / "models" / "dlrm.onnx"
REQUESTS = (("--gres=mps:20",), ("--gres=gpu:1", f"--comment=model={MODEL},batch=8,mode=infer"), ("--gres=gpu:1",))
SCRIPT = "srun --gres={} echo ran"


@click.command(help=__doc__)
@click.option("--reinstallations", default=50, show_default=True)
@click.option("--jobs", default=300, show_default=True, help="Submitted evenly over the reinstallations.")
@click.option("--release", help="Of Slurm: a Debian suite.  [default: the host's own]")
def main(reinstallations: int, jobs: int, release: str | None) -> None:
    """Show what became of the jobs and the nodes."""
    with (
        tempfile.TemporaryDirectory(prefix="gpusage-upgrade.", dir="/tmp") as folder,
        start_sandbox(ClusterPlan(nodes=parse_nodes("4xv100:4")), release=release) as sandbox,
    ):
        wheel, venv = installed(Path(folder))
        path = f"{venv / 'bin'}:{sandbox.environment['PATH']}"
        write_gpusage_toml(sandbox.layout, "enforce", "[slurm]\nlimit_ms = 1000\ncard_limit_s = 20\n")
        sandbox.run("gpusage", "slurm", "install", "--nodes-ready", "--yes", environment={"PATH": path})
        sandbox.reconfigure()
        start_gpusaged(sandbox, "env", f"PATH={path}")
        reinstall = (venv / "bin" / "pip", "install", "--quiet", "--force-reinstall", "--no-deps", "--no-index", wheel)
        begin_s, submitted = time.monotonic(), 0
        for turn in range(reinstallations):
            with subprocess.Popen(reinstall) as pip:
                while submitted * reinstallations < (turn + 1) * jobs:
                    submit(sandbox, REQUESTS[submitted % len(REQUESTS)], path)
                    submitted += 1
            if pip.returncode:
                sys.exit("pip could not reinstall the wheel; its words are above")
        sandbox.wait_for_queue()
        click.echo(f"{reinstallations} reinstallations amid {submitted} jobs in {time.monotonic() - begin_s:.0f} s")
        report(sandbox)
        subprocess.run((venv / "bin" / "pip", "uninstall", "--quiet", "--yes", "gpusage"), check=True)
        for number in range(len(REQUESTS) * 4):
            submit(sandbox, REQUESTS[number % len(REQUESTS)], path)
        sandbox.wait_for_queue()
        click.echo("with the package gone:")
        report(sandbox)


def installed(folder: Path) -> tuple[Path, Path]:
    """Return this checkout's wheel, and an environment of its own that holds it and pip."""
    command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    subprocess.run(command, check=True, capture_output=True, cwd=CHECKOUT)
    wheel, venv = next(folder.glob("*.whl")), folder / "venv"
    subprocess.run((sys.executable, "-m", "venv", venv), check=True)
    subprocess.run((venv / "bin" / "pip", "install", "--quiet", wheel), check=True)
    return wheel, venv


def submit(sandbox: Sandbox, request: tuple[str, ...], path: str) -> None:
    """Submit a job whose inner srun asks for what the job asks for."""
    script = SCRIPT.format(request[0].removeprefix("--gres="))
    sandbox.run("sbatch", *request, f"--wrap={script}", environment={"PATH": path})


def own_lines(path: Path) -> list[str]:
    """Return what a job itself wrote, without the line by which the task prolog tells of its share."""
    return [line for line in path.read_text().splitlines() if not line.startswith("gpusage: this job has a share")]


def report(sandbox: Sandbox) -> None:
    """Print how the jobs ended, what the nodes are, and which outputs hold a line that is no job's."""
    rows = sandbox.run("squeue", "--states=all", "--noheader", "--format=%T").stdout.split()
    nodes = sandbox.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()
    strange = [path for path in sandbox.layout.jobs.glob("slurm-*.out") if own_lines(path) != ["ran"]]
    drained = sandbox.layout.log_file("slurmctld").read_text().count("DRAIN")
    click.echo("jobs: " + ", ".join(f"{rows.count(state)} {state}" for state in sorted(set(rows))))
    click.echo("nodes: " + ", ".join(f"{nodes.count(state)} {state}" for state in sorted(set(nodes))))
    click.echo(f"outputs with another line: {len(strange)}; drained in slurmctld's log: {drained}")
    for path in strange[:3]:
        click.echo(path.read_text())


if __name__ == "__main__":
    main()
