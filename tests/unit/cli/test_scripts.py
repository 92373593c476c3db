"""Which workload manager job scripts are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage.cli.scripts import Script, manager_of, read_scripts
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import Manager

SLURM = Manager(name="slurm", title="Slurm", directive="#SBATCH")
PBS = Manager(name="pbs", title="PBS", directive="#PBS")
YARN = Manager(name="yarn", title="YARN")
BOTH = {manager.name: manager for manager in (PBS, SLURM, YARN)}


def scripts(*texts: str) -> list[Script]:
    return [Script(path=str(index), text=f"#!/bin/sh\n{text}\ntrue\n") for index, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("texts", "manager"),
    [
        (("#PBS -l ngpus=1",), PBS),
        (("#SBATCH --gres=gpu:1",), SLURM),
        (("  #SBATCH\t--gres=gpu:1",), SLURM),
        (("echo hello", "#PBS -q gpu"), PBS),
    ],
)
def test_a_manager_is_known_by_its_lines(texts: tuple[str, ...], manager: Manager) -> None:
    assert manager_of(scripts(*texts), BOTH) == manager


@pytest.mark.parametrize(
    ("texts", "got"),
    [
        (("#PBS -q gpu", "#SBATCH -n 1"), "#PBS and #SBATCH"),
        (("#PBS -q gpu\n#SBATCH -n 1",), "#PBS and #SBATCH"),
        (("#SBATCHED",), "none"),
        ((), "none"),
    ],
)
def test_lines_of_two_or_of_none_leave_it_to_the_user(texts: tuple[str, ...], got: str) -> None:
    rule = r"one workload manager, #PBS \(PBS\) or #SBATCH \(Slurm\)"
    with pytest.raises(RequestError, match=rf"{rule}; got {got}\. Name it with --manager\."):
        manager_of(scripts(*texts), BOTH)
    assert manager_of(scripts(*texts), BOTH, "pbs") == PBS


def test_the_only_manager_with_job_scripts_needs_no_lines() -> None:
    assert manager_of(scripts("echo hello"), {"slurm": SLURM, "yarn": YARN}) == SLURM


@pytest.mark.parametrize("name", ["yarn", "lsf"])
def test_a_named_manager_must_have_job_scripts(name: str) -> None:
    with pytest.raises(RequestError, match=rf"'{name}' must be installed and have job scripts; these do: pbs, slurm\."):
        manager_of(scripts("#PBS -q gpu"), BOTH, name)


def test_a_script_that_cannot_be_read_keeps_its_reason(tmp_path: Path) -> None:
    (read,) = read_scripts([tmp_path / "absent"])
    assert read.text == ""
    assert "No such file" in str(read.error)
