"""Sites on real Slurm whose node limits shares by a wall, or by a cap; only the GPU is faked (`walls.FakeGpus`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cgroups import plan_of_own, remove_cgroups, unified_folder, use_cgroups
from gpusage_sandboxes.slurm import Sandbox, start_sandbox
from gpusage_slurm.install.node_scripts import EPILOG, PROLOG, TASK_PROLOG
from slurm_jobs import wait_for_state
from walls import FakeGpus, fake_gpus

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
        self.task_prolog = sandbox.layout.etc / "task_prolog.sh"
        self.be_patient(times=50)
        self.task_prolog.chmod(0o755)
        lines = ""
        for script in (PROLOG, EPILOG, TASK_PROLOG):
            wrapper = script.copy(sandbox.layout.etc)
            timed = f"trap 'echo $((($(date +%s%N) - $began) / 1000)) >>{self.times}' EXIT\nbegan=$(date +%s%N)\n"
            # Without systemd, a slurmstepd of 24.11 cannot leave its job's folders, and so cannot remove them.
            gone = f"find {unified}/system.slice/{self.node}_*/job_$SLURM_JOB_ID -depth -type d -exec rmdir {{}} +"
            text = {PROLOG: "", EPILOG: f"{gone} 2>/dev/null\n"}
            program = self.task_prolog if script is TASK_PROLOG else script.path
            wrapper.write_text(f"#!/bin/sh\n{exports}{text.get(script, timed)}{program}\n")
            wrapper.chmod(0o755)
            lines += f"{script.key}={wrapper}\n"
        conf = sandbox.layout.slurm_conf
        conf.write_text(conf.read_text() + lines)

    def be_patient(self, *, times: int) -> None:
        """Let tasks wait so many times as long for the wall: a busy host needs seconds for a stand-in in Python."""
        text = TASK_PROLOG.path.read_text()
        assert text.count('"$waits" -lt 90') == 1
        self.task_prolog.write_text(text.replace('"$waits" -lt 90', f'"$waits" -lt {90 * times}'))

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


@contextmanager
def walled_site(release: str | None, programs: Path) -> Iterator[Site]:
    """Yield a site whose jobs have cgroups of version 2, on Slurm of a *release*; skip the test where it cannot."""
    unified = unified_folder()
    if unified is None:
        pytest.skip("no cgroup v2 that this user may write to, or no C compiler")
    with (
        fake_gpus(programs, cgroups=str(unified)) as gpus,
        start_sandbox(plan_of_own("h100", 4), release=release) as sandbox,
    ):
        if sandbox.installation.major_minor < (24, 11):
            pytest.skip("the plugin cgroup/v2 of 22.05 needs controllers that this host has not")
        site = Site(sandbox, gpus, unified)
        use_cgroups(sandbox, unified)
        yield site
        sandbox.down()
        remove_cgroups(unified, site.node)


@contextmanager
def capped_site(release: str | None, programs: Path) -> Iterator[Site]:
    """Yield a site without cgroups, so that MPS's variables alone limit a share."""
    with (
        fake_gpus(programs, cgroups="/none") as gpus,
        start_sandbox(plan_of_own("h100", 4), release=release) as sandbox,
    ):
        site = Site(sandbox, gpus, Path("/none"))
        sandbox.reconfigure()
        yield site
