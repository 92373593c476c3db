"""Ways out of a share's memory on real Slurm: past a wall nobody gets, past a cap those that docs/slurm.md names."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from waiting import wait_until
from wall_sites import PART_MIB, Site, capped_site, walled_site

pytestmark = pytest.mark.slurm


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What a job does to get more than its part.

    Attributes:
        script: Of the job; `$TAKE` takes all that it can get, and keeps it until the test is over.
        cap: Whether a cap holds it, as a wall does.
        count: Programs that try.
        jobs: Jobs that have a part each.
        options: Of sbatch.
        outside: What somebody does from outside while the job runs: a command, in which JOB is its number.
    """

    script: str
    cap: bool = False
    count: int = 2
    jobs: int = 1
    options: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


RUNS_AGAIN = "scontrol show job JOB | tr '\\n' ' ' | grep -q 'JobState=RUNNING.* Restarts=1'"
START_NOW = "scontrol update JobId=JOB StartTime=now 2>/dev/null"
WAYS = {
    "one process": Attempt(script="$TAKE", count=1, cap=True),
    "two processes": Attempt(script="$TAKE & $TAKE & wait"),
    "tasks of a step": Attempt(script="srun --overcommit --overlap -n3 $TAKE", count=3),
    "a step beside the script": Attempt(script="$TAKE & srun --overlap $TAKE; wait"),
    "srun --export=NONE": Attempt(script="srun --overlap --export=NONE $TAKE", count=1),
    "srun from outside": Attempt(script="$TAKE", outside=("srun", "--jobid=JOB", "--overlap", "--mem=0", "TAKE")),
    "env -i": Attempt(script="env -i $TAKE", count=1),
    "unset": Attempt(script="unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; $TAKE", count=1),
    "a higher limit from sbatch": Attempt(
        script="$TAKE",
        count=1,
        cap=True,
        options=("--export=ALL,GPUSAGE_DECISION=mps:40,CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=80G",),
    ),
    "an entry for an unseen GPU": Attempt(script="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G,1=1G $TAKE", count=1),
    "a forged job": Attempt(script="SLURM_JOB_ID=1 GPUSAGE_JOB=1 $TAKE", count=1, cap=True),
    "another GPU": Attempt(script="CUDA_VISIBLE_DEVICES=3 $TAKE", count=1, cap=True),
    "a daemon": Attempt(script="setsid $TAKE & $TAKE; wait"),
    "a daemon that outlives its step": Attempt(  # Slurm ends it where it knows it by its cgroup
        script="srun --overlap sh -c '(setsid $TAKE &); until ls $SAID/* >/dev/null; do sleep 0.1; done'; $TAKE"
    ),
    "an array": Attempt(script="$TAKE", cap=True, jobs=2, options=("--array=1-2",)),
    "a run after requeue": Attempt(
        script='[ -n "$SLURM_RESTART_COUNT" ] || { $TAKE & }; [ -z "$SLURM_RESTART_COUNT" ] || $TAKE; wait',
        cap=True,
        options=("--requeue",),
        outside=("sh", "-c", f"scontrol requeue JOB; until {RUNS_AGAIN}; do {START_NOW}; sleep 0.3; done"),
    ),
    "suspended and resumed": Attempt(
        script="$TAKE & wait; $TAKE",
        outside=("sh", "-c", "scontrol suspend JOB && scontrol resume JOB && srun --jobid=JOB --overlap --mem=0 TAKE"),
    ),
}
SHORT = ("two processes", "env -i")


@pytest.fixture(scope="module", params=["wall", "cap"])
def site(
    request: pytest.FixtureRequest, slurm_release: str | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    make = walled_site if request.param == "wall" else capped_site
    with make(slurm_release, tmp_path_factory.mktemp("programs")) as site:
        yield site


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.short if name in SHORT else pytest.mark.nightly) for name in WAYS]
)
def test_no_job_gets_beyond_its_part(site: Site, name: str, tmp_path: Path) -> None:
    way = WAYS[name]
    over, program = tmp_path / "over", tmp_path / "program"
    (tmp_path / "said").mkdir()
    gpu = site.gpus.programs / "fake-gpu"
    program.write_text(f"#!/bin/sh\nexec {gpu} take all --catch --until {over} --say {tmp_path}/said/$$\n")
    program.chmod(0o755)
    script = f"export TAKE={program} SAID={tmp_path}/said\n{way.script}"
    job = site.submit(*way.options, script=script)

    def responses() -> list[Path]:
        return [path for path in (tmp_path / "said").iterdir() if path.stat().st_size]

    processes = []
    if way.outside:
        wait_until(responses, lambda: site.output(job))
        command = [word.replace("JOB", job).replace("TAKE", str(program)) for word in way.outside]
        processes.append(subprocess.Popen(command, env=site.sandbox.environment))
    try:
        wait_until(lambda: len(responses()) >= way.count, lambda: site.output(job))
        memory = site.gpus.ask("state")["memory"]
    finally:
        over.touch()
        for process in processes:
            process.wait()
        site.sandbox.run("scancel", job)
        site.sandbox.wait_for_queue()
    taken_mib = sum(each["mib"] for each in memory)
    holds = way.cap or site.unified != Path("/none")
    assert (taken_mib <= way.jobs * PART_MIB) is holds, memory
