"""When the wall around a job's memory stands: before its first program runs, on real Slurm with cgroup v2.

Only the GPU is faked (`walls.FakeGpus`). What nobody gets beyond the wall is `test_walls`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pytest

from cgroups import restart_node
from gpusage.boundary.operating_system import user_name
from gpusage.node.dividing.granted import read_granted
from mps import waiting_for_cgroups
from slurm_jobs import wait_for_state
from waiting import wait_until
from wall_sites import PART_MIB, STATE, Site, walled_site

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def site(slurm_release: str | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with walled_site(slurm_release, tmp_path_factory.mktemp("programs")) as site:
        yield site


@pytest.fixture(autouse=True)
def empty_queue(site: Site) -> Iterator[None]:
    """Leave no job, and no wall, to the next test, nor to the second try of one that failed."""
    yield
    site.sandbox.run("scancel", f"--user={user_name()}")
    site.sandbox.wait_for_queue()
    wait_until(lambda: not site.limits())


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
    job = site.submit("--array=1-3", "--requeue", script='echo "run $SLURM_RESTART_COUNT"; sleep 1000')
    tasks = [str(int(job) + number) for number in range(3)]
    wait_until(lambda: all("batch wall" in site.output(task) for task in tasks), lambda: list(map(site.output, tasks)))
    assert site.limits() == [(0, PART_MIB)] * 3
    sandbox.run("scontrol", "requeue", tasks[0])
    wait_for_state(sandbox, tasks[0], "PENDING")
    sandbox.run("scontrol", "update", f"JobId={tasks[0]}", "StartTime=now")
    wait_for_state(sandbox, tasks[0], "RUNNING", restarts=1)
    wait_until(lambda: "run 1" in site.output(tasks[0]), lambda: site.output(tasks[0]))
    assert "batch wall" in site.output(tasks[0])
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
    site.be_patient(times=1)
    site.times.unlink(missing_ok=True)
    began_s = time.monotonic()
    jobs = [site.submit(script="srun true" if number % 4 == 0 else "") for number in range(200)]
    site.sandbox.wait_for_queue(600)
    states = [site.output(job)[0] for job in jobs]
    times_ms = sorted(int(line) / 1000 for line in site.times.read_text().split())
    print(f"200 jobs in {time.monotonic() - began_s:.0f} s; a task prolog of {len(times_ms)} took")
    print(f"mean {statistics.mean(times_ms):.0f} ms, p99 {times_ms[int(0.99 * len(times_ms))]:.0f} ms")
    assert states == ["batch wall"] * 200
