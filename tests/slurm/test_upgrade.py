"""gpusage is reinstalled and removed while jobs run: none fails, no node is drained, each share ends well."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpusage.boundary.operating_system import user_name
from gpusage_sandboxes.gpusaged import start_gpusaged, stop_gpusaged
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import write_settings
from installations import CHECKOUT, build, install_wheel
from slurm_jobs import GENEROUS, own_output, release, submit_share, wait_for_state
from waiting import wait_until

pytestmark = pytest.mark.slurm

LIGHT = f"model={CHECKOUT / 'examples' / 'models'}/dlrm.onnx,batch=8,mode=infer"
STEPS = (
    "echo begun; touch begun-$SLURM_JOB_ID; until [ -e {} ]; do sleep .1; done; srun --gres=gpu:1 echo step; echo ended"
)
REINSTALLATIONS = 4
QUEUE_LIMIT_S = 600.0
"""For 48 jobs on a loaded machine."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A cluster whose gpusage comes from wheels, as at a site."""

    sandbox: Sandbox
    venv: Path

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command with this installation first on the PATH, and return what it printed."""
        path = f"{self.venv / 'bin'}:{self.sandbox.environment['PATH']}"
        return self.sandbox.run(*command, check=check, environment={"PATH": path}).stdout

    def pip(self, *words: str) -> None:
        """Run the environment's own pip."""
        command = [self.venv / "bin" / "pip", "--quiet", "--disable-pip-version-check", *words]
        subprocess.run(command, check=True, capture_output=True)

    def put(self, wheel: Path) -> None:
        """Put *wheel* in the place of what is installed."""
        self.pip("install", "--force-reinstall", "--no-deps", "--no-index", "--no-compile", str(wheel))

    def install(self) -> None:
        """Do as docs/admin.md says after an upgrade."""
        self.run("gpusage", "slurm", "install", "--nodes-ready", "--yes")
        self.sandbox.reconfigure()
        self.start_gpusaged()

    def start_gpusaged(self) -> None:
        """Start this installation's gpusaged."""
        start_gpusaged(self.sandbox, "env", f"PATH={self.venv / 'bin'}:{self.sandbox.environment['PATH']}")

    def begin_share(self) -> str:
        """Return a share that runs, and goes on when a file named after it appears."""
        job = submit_share(self.sandbox, f"--comment={LIGHT}", wrap=STEPS.format("go-$SLURM_JOB_ID"))
        release(self.sandbox, job)
        wait_until((self.sandbox.layout.jobs / f"begun-{job}").exists)
        return job

    def end_share(self, job: str) -> str:
        """Let *job* go on, and return its output."""
        (self.sandbox.layout.jobs / f"go-{job}").touch()
        wait_for_state(self.sandbox, job, "COMPLETED")
        return own_output(self.sandbox.layout.jobs / f"slurm-{job}.out")

    def jobs(self) -> set[str]:
        """Return every job with its state."""
        shown = self.sandbox.run("squeue", "--states=all", "--noheader", "--array", "--format=%i %T").stdout
        return set(shown.splitlines())

    def require_whole(self, earlier: set[str]) -> None:
        """Require that no job but the *earlier* ones ended otherwise than well, and that every node takes jobs."""
        self.sandbox.wait_for_queue(QUEUE_LIMIT_S)
        assert {job.split()[1] for job in self.jobs() - earlier} <= {"COMPLETED", "CANCELLED"}
        wait_until(lambda: set(self.sandbox.run("sinfo", "-hN", "-o", "%T").stdout.split()) == {"idle"})
        assert "drained" not in "".join(path.read_text() for path in self.sandbox.layout.logs.glob("slurmctld.log"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return this checkout's wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    build("wheel", folder, checkout=CHECKOUT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def site(slurm_release: str | None, wheel: Path) -> Iterator[Site]:
    """Return a site with nothing of ours in its slurm.conf yet."""
    with (
        tempfile.TemporaryDirectory(prefix="gpusage-upgrade.", dir="/tmp") as folder,
        start_sandbox(ClusterPlan(nodes=parse_nodes("2xv100:2")), release=slurm_release) as sandbox,
    ):
        venv = install_wheel(wheel, Path(folder)).folder / "venv"
        uv = shutil.which("uv") or str(Path.home() / ".local" / "bin" / "uv")
        subprocess.run([uv, "pip", "install", "--quiet", "--python", venv / "bin" / "python", "pip"], check=True)
        write_settings(sandbox, "enforce", GENEROUS)
        yield Site(sandbox=sandbox, venv=venv)


@pytest.fixture(autouse=True)
def empty_queue(site: Site) -> Iterator[None]:
    """Leave no job to the next test, nor to the second try of one that failed."""
    yield
    site.sandbox.run("scancel", f"--user={user_name()}")
    site.sandbox.wait_for_queue()


def test_amid_jobs_the_package_is_replaced_and_none_fails(site: Site, wheel: Path) -> None:
    site.install()
    jobs, earlier = site.sandbox.layout.jobs, site.jobs()
    for path in jobs.glob("amid-*"):
        path.unlink()  # of an earlier try
    for _ in range(REINSTALLATIONS):
        site.sandbox.run("sbatch", "--array=1-8", "--gres=mps:25", "--output=amid-%A-%a", "--wrap=echo ran")
        site.sandbox.run(
            "sbatch", "--array=1-4", "--gres=gpu:1", f"--comment={LIGHT}", "--output=amid-%A-%a", "--wrap=echo ran"
        )
        site.put(wheel)
    site.require_whole(earlier)
    assert {own_output(path) for path in jobs.glob("amid-*")} == {"ran\n"}
    assert len(list(jobs.glob("amid-*"))) == 12 * REINSTALLATIONS


def test_without_the_package_jobs_run_and_slurmctld_comes_up(site: Site, wheel: Path) -> None:
    site.put(wheel)
    site.install()
    earlier = site.jobs()
    job = site.begin_share()
    stop_gpusaged(site.sandbox)
    site.pip("uninstall", "--yes", "gpusage")
    assert not list(site.venv.glob("lib/*/site-packages/gpusage*"))
    site.sandbox.restart_controller()
    site.sandbox.wait_for_nodes()
    plain = site.sandbox.run(
        "sbatch", "--wait", "--gres=gpu:1", f"--comment={LIGHT}", "--output=plain", "--wrap=echo ran"
    )
    assert plain.stderr in ("", "sbatch: gpusage: gpusaged cannot be reached; the request stays as it is\n")
    assert own_output(site.sandbox.layout.jobs / "plain") == "ran\n"
    assert site.end_share(job) == "begun\nstep\nended\n"
    site.require_whole(earlier)
    shutil.rmtree(site.sandbox.layout.libexec)  # no job begins from here on
    site.sandbox.restart_controller()
    last = site.sandbox.run("sbatch", "--hold", "--gres=gpu:1", "--wrap=true").stdout
    assert "Submitted" in last
    site.sandbox.run("scancel", last.split()[-1])
