"""From a node's folder to its comment."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.sampler.folder import LONGEST_WAIT_S, Folder
from gpusage.sampler.letter import letter_in
from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.usage.node import job_of
from gpusage_slurm.usage.post import post, post_patiently
from records import USAGE

ENDED = replace(
    USAGE, number="", user="", job_name="", started_at_s=time.time() - 60, ended_at_s=float(int(time.time()))
)
ENVIRONMENT = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_UID": "1000",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2)",
}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "usage", "c.n1.")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return a node's comment, which `scontrol` reads and writes, unless it says that it is away."""
    node = {"Comment": "rack 7"}

    def run(*words: str) -> str:
        if node.get("away"):
            message = "slurmctld is away"
            raise RequestError(message)
        if words[1] == "update":
            node["Comment"] = words[-1].partition("=")[2]
        return f"NodeName=n1 Arch=x86_64\n   Comment={node['Comment']}\n   Extra=x\n"

    monkeypatch.setattr(scontrol, "run", run)
    return node


def test_what_ended_is_posted_once(folder: Folder, node: dict[str, str]) -> None:
    folder.keep(ENDED)
    post(folder, "n1")
    assert node["Comment"].startswith("rack 7 gpusage:")
    assert [usage.job_id for usage in letter_in(node["Comment"])] == [ENDED.job_id]
    assert list(folder.ended()) == []


def test_what_could_not_be_posted_goes_with_the_next(folder: Folder, node: dict[str, str]) -> None:
    node["away"] = "yes"
    folder.keep(ENDED)
    assert not post_patiently(folder, "n1", (0.0, 0.0))
    node.pop("away")
    folder.keep(replace(ENDED, job_id="8"))
    assert post_patiently(folder, "n1", (0.0,))
    assert {usage.job_id for usage in letter_in(node["Comment"])} == {"7", "8"}


def test_a_job_that_still_runs_stays(folder: Folder, node: dict[str, str]) -> None:
    folder.file("7", "pid").write_text("1")
    folder.keep(ENDED)
    post(folder, "n1")
    assert node["Comment"] == "rack 7"


def test_a_requeued_job_keeps_its_first_run(folder: Folder) -> None:
    folder.keep(ENDED)
    folder.keep(replace(ENDED, started_at_s=ENDED.started_at_s + 30))
    assert len(list(folder.ended())) == 2


def test_what_is_too_old_or_no_usage_is_removed(folder: Folder) -> None:
    folder.keep(replace(ENDED, ended_at_s=time.time() - LONGEST_WAIT_S - 1))
    (folder.path / "c.n1.9@1.json").write_text("{}")
    assert list(folder.ended()) == []
    assert list(folder.path.glob("*.json")) == []


def test_other_nodes_of_the_machine_are_left_alone(folder: Folder) -> None:
    other = Folder(folder.path, "c.n2.")
    other.keep(ENDED)
    other.file("7", "device").write_text("0")
    assert list(folder.ended()) == []
    assert list(folder.devices_of_others("8")) == []
    assert list(other.devices_of_others("8")) == ["0"]
    assert list(other.devices_of_others("7")) == []


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """Nobody may have us write where a link of theirs leads."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match=r"own folder|exists"):
        Folder(tmp_path / "link", "")
    if os.geteuid() == 0:
        os.chown(tmp_path / "real", 12345, 12345)
        with pytest.raises(PermissionError):
            Folder(tmp_path / "real", "")


def test_a_job_is_what_the_prolog_says() -> None:
    job = job_of(ENVIRONMENT)
    assert job is not None
    assert (job.job_id, job.devices, job.cpus, job.identity.uid) == ("12", ("0", "1"), 4, 1000)
    assert (job.identity.variable, job.identity.cgroup) == ("SLURM_JOB_ID=12", "job_12")


@pytest.mark.parametrize(
    "change",
    [{"CUDA_VISIBLE_DEVICES": ""}, {"SLURM_JOB_ID": "../x"}, {"SLURM_JOB_UID": ""}, {"CUDA_VISIBLE_DEVICES": "0;rm"}],
)
def test_a_job_without_a_gpu_is_not_sampled(change: dict[str, str]) -> None:
    assert job_of(ENVIRONMENT | change) is None


def test_the_number_that_slurm_gives_counts_where_cuda_has_none() -> None:
    job = job_of(ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": "", "SLURM_JOB_GPUS": "3"})
    assert job is not None
    assert job.devices == ("3",)
