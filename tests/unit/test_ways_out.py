"""Ways out of a share's memory, tried as a user in real cgroups: one leads past a wall, many lead past a cap."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusage.node.dividing import PROGRAM
from walls import GPUS, FakeGpus, fake_gpus, real_cgroup, real_hierarchy
from ways_out import WAYS, Attempt

USER, OTHER_USER = 30001, 30002
SHARES = {"1": 25, "2": 25, "3": 50}
PARTS_MIB = {job: (81559 - 256 - 81559 * 15 // 1000) * share // 100 for job, share in SHARES.items()}
PRELOAD = """
#include <stdlib.h>
__attribute__((constructor)) static void unset(void) { unsetenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"); }
"""
HELPERS = """
take() {
    takes=$((takes + 1)) waits=0
    "$@" "$GPU" take all --until "$SCRATCH/over" --say "$SCRATCH/$JOB.$takes" &
    until [ -s "$SCRATCH/$JOB.$takes" ]; do
        [ "$waits" -lt 1500 ] || { echo "$@" >>"$SCRATCH/untried" && break; }
        waits=$((waits + 1)) && sleep 0.02
    done
}
take_in_pieces() {
    "$GPU" take $(yes 1000 | head -n 100) --catch --until "$SCRATCH/over" --say "$SCRATCH/$JOB.pieces" &
    until grep -q OUT_OF_MEMORY "$SCRATCH/$JOB.pieces" 2>/dev/null; do sleep 0.02; done
}
contexts() {
    for each in $(seq "$1"); do "$GPU" take 1 --until "$SCRATCH/over" --say "$SCRATCH/$JOB.$each" & done
    until [ "$(cat "$SCRATCH/$JOB".* | wc -l)" -ge "$1" ]; do sleep 0.05; done
}
own_daemon() {
    export CUDA_MPS_PIPE_DIRECTORY=$SCRATCH/own CUDA_MPS_LOG_DIRECTORY=$SCRATCH/own
    mkdir -p "$SCRATCH/own" && nvidia-cuda-mps-control -d
}
raise_limit() { "$@" nvidia-smi memory-limits --set -n "$CGROUP" --hard-limit max -i "$UUID"; }
"""


class Node:
    """A node on which jobs 1 and 3 of one user and job 2 of another share the first GPU."""

    def __init__(self, folder: Path, root: Path, gpus: FakeGpus) -> None:
        self.folder, self.root, self.gpus = folder, root, gpus
        self.variables: dict[tuple[int, str], dict[str, str]] = {}
        self.preload = folder / "preload.so"
        if compiler := shutil.which("cc"):
            command = [compiler, "-shared", "-fPIC", "-x", "c", "-o", self.preload, "-"]
            subprocess.run(command, check=True, input=PRELOAD, text=True)
        for version in (2, 3):
            for job, share in SHARES.items():
                self.variables[version, job] = self._enter(version, job, share)

    def _enter(self, version: int, job: str, share: int) -> dict[str, str]:
        """Let a job in as the prolog does, and return the variables that its tasks get."""
        mps = self.folder / f"mps{version}"
        settings = {
            "GPUSAGE_MPS_FOLDER": str(mps),
            "GPUSAGE_MPS_CONTROL": str(self.gpus.programs / "nvidia-cuda-mps-control"),
            "GPUSAGE_MPS_PROTOCOL": str(version),
            "STANDIN_VERSION": "13040",
            "GPUSAGE_GPU": "0",
            "GPUSAGE_SHARE_PERCENT": str(share),
            "GPUSAGE_USER": str(OTHER_USER if job == "2" else USER),
            "GPUSAGE_LIMIT_S": "60",
        }
        self.gpus.run(PROGRAM, "enter", job, **settings)
        file = mps / "jobs" / job
        lines = file.read_text().splitlines()[1:] if file.exists() else []
        return {"MPS": str(mps), "CUDA_VISIBLE_DEVICES": "0", **dict(line.split("=", 1) for line in lines)}

    def escape(self, way: Attempt, *, wall: bool) -> dict[str, int]:
        """Have the jobs try *way*, and return the MiB that each has beyond its part, of all GPUs together."""
        scratch = Path(tempfile.mkdtemp(dir=self.folder))
        scratch.chmod(0o777)
        self.gpus.configure(context_mib=way.context_mib)
        with real_cgroup(self.root) as above:
            for job in "12":
                for step in ("step_batch", "step_0", "step_batch/own"):
                    (above / job / step).mkdir(parents=True)
                for path in ("step_batch/own", "step_batch/own/cgroup.procs"):
                    shutil.chown(above / job / path, USER, USER)
                if way.constrained:
                    self.gpus.constrain(above / job, 0)
            if wall and not way.late:
                self._limit(above)
            for script, step in ((way.script, "1/step_batch"), (way.step, "1/step_0"), (way.other, "2/step_batch")):
                variables = dict(self.variables[way.version, step[0]])
                if wall:  # as the product has it, so that a program sees its part as the GPU's size
                    variables.pop("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", None)
                variables["FIRST_PIPE"] = self.variables[way.version, "1"]["CUDA_MPS_PIPE_DIRECTORY"]
                self._run(script, above / step, scratch, variables)
            if wall and way.late:
                self._limit(above)
            memory = self.gpus.ask("state")["memory"]
            untried = "unshare" in way.script and (scratch / "untried").exists()
            assert untried or not (scratch / "untried").exists(), (scratch / "log").read_text()
            assert untried or list(scratch.glob("1.*")), (scratch / "log").read_text()
            (scratch / "over").touch()
        if untried:
            pytest.skip("users have no namespaces of their own here")
        taken_mib = dict.fromkeys((USER, OTHER_USER), 0)
        for each in memory:
            taken_mib[each["uid"]] += each["mib"] + each["context_mib"]
        return {job: max(0, taken_mib[user] - PARTS_MIB[job]) for job, user in (("1", USER), ("2", OTHER_USER))}

    def _limit(self, above: Path) -> None:
        """Put both jobs behind walls."""
        for job in "12":
            words = ("-n", above / job, "--soft-limit", "0", "--hard-limit", str(PARTS_MIB[job]), "-i", "0")
            assert self.gpus.run("nvidia-smi", "memory-limits", "--set", *words).returncode == 0

    def _run(self, script: str, cgroup: Path, scratch: Path, variables: dict[str, str]) -> None:
        """Run a *script* of the job that *cgroup*, of a step, belongs to."""
        job = cgroup.parent
        user = OTHER_USER if job.name == "2" else USER
        environment = {
            "PATH": f"{self.gpus.programs}:/usr/sbin:/usr/bin:/sbin:/bin",
            "GPU": str(self.gpus.programs / "fake-gpu"),
            "JOB": f"{job.name}.{cgroup.name}",
            "SCRATCH": str(scratch),
            "ROOT": str(self.root),
            "CGROUP": str(job),
            "OTHER_CGROUP": str(job.parent / "2"),
            "DELEGATED": str(cgroup / "own"),
            "UUID": str(GPUS[0]["uuid"]),
            "OTHER_UUID": str(GPUS[1]["uuid"]),
            "PRELOAD": str(self.preload),
            **variables,
        }
        enter = f'echo $$ >"{cgroup}/cgroup.procs"; exec "$@"'
        command = ["sh", "-c", enter, "sh", "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        # What stays behind keeps its output open, so it is no pipe.
        with (scratch / "log").open("ab") as log:
            words = [*command, "sh", "-c", HELPERS + script]
            subprocess.run(words, env=environment, cwd=scratch, check=False, timeout=60, stdout=log, stderr=log)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Return a node with real cgroups, in a folder that other users can enter."""
    root = real_hierarchy()
    if root is None or not shutil.which("setpriv") or not shutil.which("unshare"):
        pytest.skip("cgroups of one's own and processes of another user need root")
    with tempfile.TemporaryDirectory(prefix="gpusage-walls-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "bin").mkdir()
        with fake_gpus(folder / "bin", cgroups=str(root)) as gpus:
            yield Node(folder, root, gpus)


def test_the_page_counts_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()
    assert f"`tests/ways_out.py` has {len(WAYS)} ways" in page


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_what_a_way_out_leads_to(node: Node, way: Attempt) -> None:
    behind_wall = node.escape(way, wall=True)
    under_cap = node.escape(way, wall=False)
    assert (not any(behind_wall.values())) is way.wall, behind_wall
    assert (not any(under_cap.values())) is way.cap, under_cap
