"""Clients of Slurm that nobody here wrote: how each is fetched, how it is run, and what it reports.

Each runs the same work, `tests/clients/workloads`: a small training that does well on a share, and a large one that
runs out of memory on any share.
"""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from client_installations import install_from_pypi, install_nextflow
from gpusage.boundary.operating_system import user_name
from gpusage_sandboxes.slurm import Sandbox
from slurm_jobs import show_job
from waiting import wait_until

ROOT = Path(__file__).parents[1]
WORKLOADS = Path(__file__).parent / "clients" / "workloads"
MODELS = {"small": "dlrm", "large": "resnet50"}
LIMIT_S = 240
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}
_STEPS = re.compile(r"^(?:\d+ of \d+ steps .* done|(?:report|train|total) +\d+|WorkflowError.*)$", re.MULTILINE)


class SlurmPair(NamedTuple):
    """The same cluster twice."""

    without: Sandbox
    enforcing: Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A program that submits jobs.

    Attributes:
        install: Returns the folder of its programs.
        command: What its user types, as a shell reads it.
        report: What it says of its end, from its folder and what it printed.
        repeats: Whether it learns of a job's end from Slurm alone, so that a job which runs again is one job to it.
    """

    name: str
    install: Callable[[], Path]
    command: str
    report: Callable[[Path, str], list[str]]
    repeats: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run of a client ended.

    Attributes:
        outputs: Of each file that the work has made, the text.
        report: What the client said.
        jobs: How many jobs Slurm had, by their last state; CANCELLED counts as COMPLETED, as workers end either way.
    """

    exit_status: int
    outputs: Mapping[str, str]
    report: list[str]
    jobs: Mapping[str, int]
    shares: Mapping[str, list[int]] = field(compare=False)
    printed: str = field(compare=False)


def printed_lines(folder: Path, printed: str) -> list[str]:
    """Return what a script printed to its standard output."""
    del folder
    return printed.partition(_MARK)[0].splitlines()


def traced_tasks(folder: Path, printed: str) -> list[str]:
    """Return the last attempt of each of Nextflow's tasks."""
    del printed
    with (folder / "trace.txt").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return sorted({row["name"]: f"{row['name']} {row['status']} {row['exit']}" for row in rows}.values())


def counted_steps(folder: Path, printed: str) -> list[str]:
    """Return Snakemake's count of its jobs, and how far it came."""
    del folder
    return sorted(_STEPS.findall(re.sub(r" +$", "", printed, flags=re.MULTILINE)))


def script(name: str, *requirements: str) -> Client:
    """Return the client of `with_NAME.py`."""
    return Client(
        name=name,
        install=partial(install_from_pypi, name, *requirements),
        command=f"python with_{name.replace('-', '_')}.py",
        report=printed_lines,
    )


def snakemake(name: str, resource: str, options: str, *requirements: str) -> Client:
    """Return a release of Snakemake: its plugin owns `--comment`, so that the environment names the model."""
    return Client(
        name=name,
        install=partial(install_from_pypi, name, *requirements),
        command="PYTHONPATH=$PWD/hurry "
        "GPUSAGE_COMMENT=model=small.onnx,batch=8,mode=infer snakemake --executor slurm --jobs 2 "
        f"--default-resources slurm_account=sandbox slurm_partition=gpu --set-resources '{resource}' {options} "
        "--seconds-between-status-checks 1 --latency-wait 5",
        report=counted_steps,
        repeats=True,
    )


CLIENTS = (
    script("submitit", "submitit==1.5.4"),
    Client(
        name="nextflow",
        install=install_nextflow,
        command="nextflow run pipeline.nf -with-trace trace.txt",
        report=traced_tasks,
    ),
    snakemake(
        "snakemake",
        "train:gres=gpu:1",
        "--slurm-init-seconds-before-status-checks 1",
        "snakemake==9.27.1",
        "snakemake-executor-plugin-slurm==2.8.0",
    ),
    snakemake(
        "old-snakemake",
        'train:slurm_extra="--gres=gpu:1"',
        "",
        "snakemake==8.25.5",
        "snakemake-executor-plugin-slurm==0.11.0",
    ),
    script("dask-jobqueue", "dask-jobqueue==0.9.0", "distributed==2026.8.0"),
    script("parsl", "parsl==2026.10.26"),
    script("psij", "psij-python==0.9.11"),
)
RETRYING = replace(CLIENTS[1], name="nextflow-retries", command="nextflow run retries.nf -with-trace trace.txt")
"""Five tasks that are certain to fit a share, run out of memory there all the same, and are retried by Nextflow."""
_MARK = "\n== standard error\n"


def run_client(sandbox: Sandbox, client: Client) -> Ending:
    """Run the work of `tests/clients/workloads` by *client* inside *sandbox*, and return how it ended."""
    programs = client.install()
    folder = sandbox.layout.jobs / client.name
    copy_work(folder)
    before = set(job_ids(sandbox))
    environment = {
        "PATH": f"{_srun_with_configuration(sandbox, folder)}:{programs}:{sandbox.environment['PATH']}",
        "HOME": str(folder),
        "USER": user_name(),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = ("env", "-C", str(folder), "sh", "-c", client.command)
    done = sandbox.run(*command, check=False, timeout_s=LIMIT_S, environment=environment)
    printed = f"{done.stdout}{_MARK}{done.stderr}"
    mine = sorted(set(job_ids(sandbox)) - before, key=int)
    states = [_last_state(sandbox, job) for job in mine]
    return Ending(
        exit_status=done.returncode,
        outputs={path.name: path.read_text() for path in sorted(folder.glob("*.txt")) if path.name != "trace.txt"},
        report=client.report(folder, printed),
        jobs={state: states.count(state) for state in sorted(set(states))},
        shares=shares(folder / "runs.log"),
        printed=printed,
    )


def copy_work(folder: Path) -> None:
    """Fill *folder*, emptied of a first try that failed, with the work and the models that it names."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(WORKLOADS, folder)
    for name, model in MODELS.items():
        shutil.copy(ROOT / "examples" / "models" / f"{model}.onnx", folder / f"{name}.onnx")


def job_ids(sandbox: Sandbox) -> list[str]:
    """Return the numbers of all jobs that slurmctld knows."""
    return re.findall(r"^JobId=(\d+)", sandbox.run("scontrol", "show", "job", "-o").stdout, re.MULTILINE)


def _last_state(sandbox: Sandbox, job: str) -> str:
    wait_until(lambda: show_job(sandbox, job)["JobState"] in _ENDED, lambda: show_job(sandbox, job))
    return show_job(sandbox, job)["JobState"].replace("CANCELLED", "COMPLETED")


def shares(log: Path) -> dict[str, list[int]]:
    """Return of each training the parts of a GPU that it ran with, in order, in percent."""
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return {name: [int(percent) for other, percent in lines if other == name] for name in MODELS}


def _srun_with_configuration(sandbox: Sandbox, folder: Path) -> Path:
    """Return a folder with an srun that finds the sandbox: Snakemake takes SLURM_CONF out of a job's environment."""
    programs = folder / "bin"
    programs.mkdir()
    srun = programs / "srun"
    conf, real = sandbox.layout.slurm_conf, sandbox.installation.programs / "srun"
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={conf} exec {real} "$@"\n')
    srun.chmod(0o755)
    return programs
