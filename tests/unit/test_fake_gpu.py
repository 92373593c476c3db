"""The stand-ins for GPUs refuse what NVIDIA's driver refuses, as their documentation has it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from walls import GPUS, FakeGpus, fake_gpus, real_cgroup, real_hierarchy, stand_in_tree

FIRST = str(GPUS[0]["uuid"])
HOLDS = """rm -f taken over; fake-gpu take 6000 --until over --say taken &
until [ -s taken ]; do sleep 0.02; done; cat taken
"""
"""A second process holds memory until the script's own ends: `over` is never there, and pytest's folder goes."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a stand-in tree with a job's cgroup and its step's."""
    (tmp_path / "cgroup").mkdir()
    return stand_in_tree(tmp_path / "cgroup", "job_1/step_0", "job_2")


@pytest.fixture
def gpus(tmp_path: Path, tree: Path) -> Iterator[FakeGpus]:
    """Return four GPUs whose cgroups are plain folders."""
    (tmp_path / "bin").mkdir()
    with fake_gpus(tmp_path / "bin", cgroups=str(tree), tree=True) as gpus:
        yield gpus


def set_limit(gpus: FakeGpus, cgroup: Path, hard: object, soft: object = "default", gpu: str = "0") -> int:
    """Set a cgroup's limits as gpusage does, and return the program's exit status."""
    words = ("--set", "-n", cgroup, "--soft-limit", str(soft), "--hard-limit", str(hard), "-i", gpu)
    return gpus.run("nvidia-smi", "memory-limits", *words).returncode


def in_cgroup(gpus: FakeGpus, cgroup: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script whose process is in *cgroup* from its first line on, and what it starts too."""
    text = f'cd "{gpus.programs}"; echo $$ >"{cgroup}/cgroup.procs"\ntrap ": >over" EXIT\n{script}'
    return gpus.run("sh", "-c", text, **variables)


def answers(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    """Return what the driver answered the programs of a script."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_limit_holds_for_all_processes_of_a_cgroup_together(gpus: FakeGpus, tree: Path) -> None:
    assert set_limit(gpus, tree / "job_1", 10_000) == 0
    done = in_cgroup(gpus, tree / "job_1/step_0", HOLDS + "fake-gpu take all 1")
    assert [each.get("mib") for each in answers(done)] == [6000, 4000, None]
    assert done.returncode == 1
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stderr


def test_memory_of_a_dead_process_is_free(gpus: FakeGpus, tree: Path) -> None:
    done = in_cgroup(gpus, tree / "job_1", "fake-gpu take all; fake-gpu take all & wait")
    assert [each["mib"] for each in answers(done)] == [81559, 81559]
    assert gpus.taken_mib() == 0


@pytest.mark.parametrize(("backend", "most"), [("misc", 9000), ("dmem", 4000)])
def test_the_nearest_limited_ancestor_counts_and_the_kernel_counts_all(
    gpus: FakeGpus, tree: Path, backend: str, most: int
) -> None:
    for folder in (tree, tree / "job_1"):
        (folder / "cgroup.subtree_control").write_text("dmem")
    gpus.configure(backend=backend)
    assert [set_limit(gpus, tree / "job_1", 4000), set_limit(gpus, tree / "job_1/step_0", 9000)] == [0, 0]
    done = in_cgroup(gpus, tree / "job_1/step_0", "fake-gpu take all")
    assert [each["mib"] for each in answers(done)] == [most]


def test_limits_are_set_by_root_read_by_anybody_and_cleared(gpus: FakeGpus, tree: Path) -> None:
    assert set_limit(gpus, tree / "job_1", 3000, 1000) == 0
    assert gpus.limits() == {(FIRST, "/job_1"): (1000, 3000)}
    read = gpus.run("nvidia-smi", "memory-limits", "--get", "-n", tree / "job_1", "-i", FIRST)
    assert [line.strip() for line in read.stdout.splitlines()[1:]] == [
        "Soft Limit : 1000 MiB",
        "Hard Limit : 3000 MiB",
        "Current Used : 0 MiB",
    ]
    assert set_limit(gpus, tree / "job_1", "max") == 0
    assert gpus.limits() == {}
    outcomes = {
        "no such cgroup": set_limit(gpus, tree / "job_9", 1),
        "not below the cgroups": set_limit(gpus, tree.parent, 1),
        "no number": set_limit(gpus, tree / "job_1", "1.5"),
        "no such GPU": set_limit(gpus, tree / "job_1", 1, gpu="7"),
    }
    assert outcomes == {"no such cgroup": 6, "not below the cgroups": 6, "no number": 2, "no such GPU": 6}


def test_where_the_driver_has_no_limits(gpus: FakeGpus, tree: Path) -> None:
    assert "--hard-limit" in gpus.run("nvidia-smi", "memory-limits", "--help").stdout
    gpus.configure(driver="580.95")
    assert "--hard-limit" not in gpus.run("nvidia-smi", "memory-limits", "--help").stdout
    assert set_limit(gpus, tree / "job_1", 1) == 2
    gpus.configure(driver="615.71", gpus=[{**GPUS[0], "mig": True}])
    assert set_limit(gpus, tree / "job_1", 1) == 3
    gpus.configure(gpus=GPUS, backend="dmem")
    assert set_limit(gpus, tree / "job_1", 1) == 3  # nobody wrote +dmem into its parent


@pytest.fixture
def real(tmp_path: Path) -> Iterator[tuple[FakeGpus, Path]]:
    """Return GPUs, and a cgroup that the kernel knows."""
    root = real_hierarchy()
    if root is None:
        pytest.skip("cgroups of one's own need root")
    with fake_gpus(tmp_path, cgroups=str(root)) as gpus, real_cgroup(root) as cgroup:
        yield gpus, cgroup


def test_the_kernel_says_who_is_in_a_cgroup(real: tuple[FakeGpus, Path]) -> None:
    gpus, cgroup = real
    (cgroup / "step_0").mkdir()
    assert set_limit(gpus, cgroup, 10_000) == 0
    done = in_cgroup(gpus, cgroup / "step_0", HOLDS + "env -i setsid $(command -v fake-gpu) take all 1")
    assert [each.get("mib") for each in answers(done)] == [6000, 4000, None]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stderr
    assert answers(gpus.run("fake-gpu", "take", "all"))[0]["mib"] == 81559
