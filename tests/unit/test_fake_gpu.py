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


def visible_mib(done: subprocess.CompletedProcess[str]) -> tuple[object, object]:
    """Return what a program was told of its GPU: free and total, in MiB."""
    (response,) = answers(done)
    return response["free_mib"], response["total_mib"]


def test_a_program_sees_its_cgroups_limit_as_the_total_and_mpss_as_free_memory(
    gpus: FakeGpus, tree: Path, tmp_path: Path
) -> None:
    set_limit(gpus, tree / "job_1", 3000)
    assert visible_mib(in_cgroup(gpus, tree / "job_1", "fake-gpu info")) == (3000, 3000)
    query = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", "0")
    assert in_cgroup(gpus, tree / "job_1", " ".join(query)).stdout == "3000\n"
    gpus.configure(reports="whole")
    assert visible_mib(in_cgroup(gpus, tree / "job_1", "fake-gpu info")) == (3000, 81559)
    client = {**daemon(gpus, tmp_path), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2G"}
    assert visible_mib(gpus.run("fake-gpu", "info", **client)) == (2048, 81559)


def daemon(gpus: FakeGpus, folder: Path, *options: str) -> dict[str, str]:
    """Start an MPS daemon for the first GPU, and return what its clients have."""
    pipe = folder / f"pipe{len(options)}"
    pipe.mkdir()
    folders = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
    started = gpus.run(
        "nvidia-cuda-mps-control", "-d", *options, CUDA_VISIBLE_DEVICES=FIRST, STANDIN_VERSION="13040", **folders
    )
    assert started.returncode == 0
    return folders


def test_a_client_of_mps_sees_the_daemons_gpu_and_no_other(gpus: FakeGpus, tmp_path: Path) -> None:
    client = daemon(gpus, tmp_path)
    second = str(GPUS[1]["uuid"])
    outcomes = {
        device: answers(gpus.run("fake-gpu", "take", "1", CUDA_VISIBLE_DEVICES=device, **client))[0]["code"]
        for device in ("0", FIRST, "1", second)
    }
    assert outcomes == {"0": 0, FIRST: 0, "1": 100, second: 100}
    assert answers(gpus.run("fake-gpu", "take", "1", CUDA_VISIBLE_DEVICES=second))[0]["gpu"] == second


def test_a_namespace_of_mps_keeps_its_limit_but_for_an_entry_of_an_unseen_gpu(gpus: FakeGpus, tmp_path: Path) -> None:
    client = daemon(gpus, tmp_path, "-p", "3")
    for words in ("server create s --uid=0", "namespace create n --server=s"):
        assert gpus.run("nvidia-cuda-mps-control", *words.split(), **client).returncode == 0
    limit = "namespace set n --server=s --pinned-memory-limit=1000M"
    assert gpus.run("nvidia-cuda-mps-control", *limit.split(), **client).returncode == 0
    client["CUDA_MPS_PIPE_DIRECTORY"] += "/s/n"
    limits = {"0=80G": 1000, "0=500M": 500, "0=1G,1=1G": 81559}
    taken = {
        limit: answers(gpus.run("fake-gpu", "take", "all", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=limit, **client))[0]["mib"]
        for limit in limits
    }
    assert taken == limits


def test_an_exclusive_gpu_has_one_process_or_the_clients_of_one_daemon(
    gpus: FakeGpus, tree: Path, tmp_path: Path
) -> None:
    gpus.configure(mode="Exclusive_Process")
    done = in_cgroup(gpus, tree / "job_1", HOLDS + "fake-gpu take 1")
    assert [each["code"] for each in answers(done)] == [0, 46]
    done = in_cgroup(gpus, tree / "job_1", HOLDS + "fake-gpu take 1", **daemon(gpus, tmp_path))
    assert [each["code"] for each in answers(done)] == [0, 0]


def test_who_has_less_than_its_guaranteed_part_ends_clients_that_borrowed(
    gpus: FakeGpus, tree: Path, tmp_path: Path
) -> None:
    set_limit(gpus, tree / "job_1", 80_000, 1000)
    set_limit(gpus, tree / "job_2", 80_000, 40_000)
    client = daemon(gpus, tmp_path)
    borrows = "fake-gpu take 70000 --until over --say taken & until [ -s taken ]; do sleep 0.02; done; cat taken\n"
    guaranteed = f'echo $$ >"{tree}/job_2/cgroup.procs"; fake-gpu take 40000'
    done = in_cgroup(gpus, tree / "job_1", borrows + f"sh -c '{guaranteed}'", **client)
    assert [each["code"] for each in answers(done)] == [0, 0]


def test_without_a_driver_nvidia_smi_says_so(gpus: FakeGpus) -> None:
    gpus.stop()
    assert gpus.run("nvidia-smi", "-L").returncode == 9
