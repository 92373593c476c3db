"""When the wall around a job's memory stands: before its first program runs, on real Slurm with cgroup v2.

Only the GPU is faked (`walls.FakeGpus`). What nobody gets beyond the wall is `test_walls`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cgroups import plan_of_own, remove_cgroups, restart_node, unified_folder, use_cgroups
from gpusage.node.dividing.granted import read_granted
from gpusage_sandboxes.slurm import Sandbox, start_sandbox
from gpusage_slurm.install.node_scripts import EPILOG, PROLOG, TASK_PROLOG
from mps import waiting_for_cgroups
from slurm_jobs import wait_for_state
from waiting import wait_until
from walls import FakeGpus, fake_gpus

pytestmark = pytest.mark.slurm

PART_MIB = 32_032  # 40 % of 81,559 MiB less 256 and less 1,223
STATE = "read -r state _ <{mps}/walls/$SLURM_JOB_ID; echo $1 $state"
SHARE = ("--gres=mps:40", "--export=ALL,GPUSAGE_DECISION=mps:40,GPUSAGE_NOTICE=no")


class Site:
    """A sandbox whose node has walls, and its GPUs."""

    def __init__(self, sandbox: Sandbox, gpus: FakeGpus, unified: Path) -> None:
        self.sandbox, self.gpus, self.unified = sandbox, gpus, unified
        self.mps, self.times = sandbox.layout.state / "mps", sandbox.layout.jobs / "times"
        self.node = sandbox.nodes()[0]
        exports = (
            f"export PATH={gpus.programs}:/usr/bin:/bin GPUSAGE_MPS_FOLDER={self.mps} GPUSAGE_CGROUP_FOLDER={unified} "
            "GPUSAGE_CUDA_LIBRARY=/none.so GPUSAGE_PROLOG_LIMIT_S=60 GPUSAGE_LIMIT_S=60\n"
        )
        lines = ""
        for script in (PROLOG, EPILOG, TASK_PROLOG):
            wrapper = script.copy(sandbox.layout.etc)
            timed = f"trap 'echo $((($(date +%s%N) - $began) / 1000)) >>{self.times}' EXIT\nbegan=$(date +%s%N)\n"
            # Without systemd, a slurmstepd of 24.11 cannot leave its job's folders, and so cannot remove them.
            gone = f"find {unified}/system.slice/{self.node}_*/job_$SLURM_JOB_ID -depth -type d -exec rmdir {{}} +"
            text = {PROLOG: "", EPILOG: f"{gone} 2>/dev/null\n"}
            wrapper.write_text(f"#!/bin/sh\n{exports}{text.get(script, timed)}{script.path}\n")
            wrapper.chmod(0o755)
            lines += f"{script.key}={wrapper}\n"
        conf = sandbox.layout.slurm_conf
        conf.write_text(conf.read_text() + lines)

    def submit(self, *options: str, script: str) -> str:
        """Submit a job that asks for 40 % of a GPU, and return its number."""
        options = ("--parsable", *SHARE, f"--output={self.sandbox.layout.jobs}/%j.out", *options)
        path = self.sandbox.layout.jobs / "script.sh"
        path.write_text(f"#!/bin/sh\nset -- batch\n{STATE.format(mps=self.mps)}\n{script}\n")
        return self.sandbox.run("sbatch", *options, str(path)).stdout.split(";")[0].strip()

    def finish(self, *options: str, script: str) -> list[str]:
        """Run a job to its end, and return what it printed."""
        job = self.submit(*options, script=script)
        shown = wait_for_state(self.sandbox, job, "COMPLETED", "FAILED", "TIMEOUT")
        print(shown, *self.output(job), sep="\n")
        return self.output(job)

    def output(self, job: str) -> list[str]:
        """Return the lines that *job* has printed."""
        path = self.sandbox.layout.jobs / f"{job}.out"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if not line.startswith(("slurmstepd-", "gpusage: "))]

    def limits(self) -> list[tuple[int, int]]:
        """Return the soft and the hard limit of each cgroup that has one, in MiB."""
        return [*self.gpus.limits().values()]


@pytest.fixture(scope="module")
def site(slurm_release: str | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    unified = unified_folder()
    if unified is None:
        pytest.skip("no cgroup v2 that this user may write to, or no C compiler")
    programs = tmp_path_factory.mktemp("programs")
    with (
        fake_gpus(programs, cgroups=str(unified)) as gpus,
        start_sandbox(plan_of_own("h100", 4), release=slurm_release) as sandbox,
    ):
        if sandbox.installation.major_minor < (24, 11):
            pytest.skip("the plugin cgroup/v2 of 22.05 needs controllers that this host has not")
        started = Site(sandbox, gpus, unified)
        use_cgroups(sandbox, unified)
        yield started
        sandbox.down()
        remove_cgroups(unified, started.node)


STEPS = """srun sh -c '{state}' sh step
srun --overlap sh -c '{state}; sed -n s,^0::,cgroup,p /proc/self/cgroup' sh beside
srun --overcommit --overlap -n2 sh -c '{state}' sh two
sed -n s,^0::,cgroup,p /proc/self/cgroup
env | grep -c ^CUDA_MPS_PINNED
"""


@pytest.mark.short
def test_every_step_of_a_job_is_behind_its_wall(site: Site) -> None:
    script = STEPS.format(state=STATE.format(mps=site.mps))
    lines = site.finish("--export=ALL,GPUSAGE_DECISION=mps:40,CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1M", script=script)
    states, groups = [line for line in lines if " " in line], [line for line in lines if line.startswith("cgroup")]
    assert sorted(states) == ["batch wall", "beside wall", "step wall", "two wall", "two wall"]
    assert lines[-1] == "0"
    assert len(groups) == 2
    assert len({line.partition("/step_")[0] for line in groups}) == 1
    wait_until(lambda: not site.limits())  # they went with the cgroup


def test_a_job_of_an_array_and_one_that_runs_again_have_walls_of_their_own(site: Site) -> None:
    sandbox = site.sandbox
    job = site.submit("--array=1-3", "--requeue", script="sleep 1000")
    tasks = [str(int(job) + number) for number in range(3)]
    wait_until(lambda: all("batch wall" in site.output(task) for task in tasks), lambda: list(map(site.output, tasks)))
    assert site.limits() == [(0, PART_MIB)] * 3
    sandbox.run("scontrol", "requeue", tasks[0])
    wait_for_state(sandbox, tasks[0], "PENDING")
    sandbox.run("scontrol", "update", f"JobId={tasks[0]}", "StartTime=now")
    wait_for_state(sandbox, tasks[0], "RUNNING", restarts=1)
    wait_until(lambda: "batch wall" in site.output(tasks[0]), lambda: site.output(tasks[0]))
    granted = read_granted(tasks[0], folder=site.mps)
    assert granted is not None
    assert (granted.limited_by, granted.memory_limit_bytes) == ("wall", PART_MIB << 20)
    sandbox.run("scancel", *tasks)
    sandbox.wait_for_queue()
    wait_until(lambda: not site.limits() and not [*(site.mps / "walls").iterdir()])


def test_a_job_that_ends_before_its_first_step_leaves_nobody_waiting(site: Site) -> None:
    allocation = site.sandbox.run("salloc", "--gres=mps:40", "--no-shell", "--job-name=idle").stderr
    job = allocation.split("allocation ")[1].split()[0]
    # Without PrologFlags=Alloc the prolog comes with the first step.
    site.sandbox.run("srun", f"--jobid={job}", "--overlap", "true")
    site.sandbox.run("scancel", job)
    site.sandbox.wait_for_queue()
    wait_until(lambda: not waiting_for_cgroups(site.mps))
    assert site.limits() == []


def test_a_wall_outlives_slurmd_and_the_next_job_has_one(site: Site) -> None:
    job = site.submit(script="sleep 1000")
    wait_until(lambda: "batch wall" in site.output(job), lambda: site.output(job))
    restart_node(site.sandbox, site.node, site.unified)
    site.sandbox.wait_for_nodes()
    assert site.limits() == [(0, PART_MIB)]
    assert "batch wall" in site.finish(script="")
    site.sandbox.run("scancel", job)
    site.sandbox.wait_for_queue()


def test_no_program_takes_more_than_its_part_and_each_sees_it_as_the_gpus_size(site: Site) -> None:
    fake = site.gpus.programs / "fake-gpu"
    lines = site.finish(script=f"{fake} info\n{fake} take {PART_MIB} && {fake} take {PART_MIB + 1} 2>/dev/null")
    assert lines[0] == "batch wall"
    assert f'"total_mib": {PART_MIB}' in lines[1]
    assert '"code": 0' in lines[2]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in lines[3]


@pytest.mark.nightly
def test_the_wall_stands_first_in_200_of_200_jobs(site: Site) -> None:
    """What the barrier costs is printed: `pytest tests/slurm/test_wall.py -k 200 -s --slurm-release trixie`."""
    site.times.unlink(missing_ok=True)
    began_s = time.monotonic()
    jobs = [site.submit(script="srun true" if number % 4 == 0 else "") for number in range(200)]
    site.sandbox.wait_for_queue(600)
    states = [site.output(job)[0] for job in jobs]
    times_ms = sorted(int(line) / 1000 for line in site.times.read_text().split())
    print(f"200 jobs in {time.monotonic() - began_s:.0f} s; a task prolog of {len(times_ms)} took")
    print(f"mean {statistics.mean(times_ms):.0f} ms, p99 {times_ms[int(0.99 * len(times_ms))]:.0f} ms")
    assert states == ["batch wall"] * 200
