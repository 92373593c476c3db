"""A release's Slurm in the cache folder, before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.slurm.installation import leave_login_alone, read_installation, slurm_version


@pytest.mark.parametrize(
    ("change", "versions"),
    [({}, ["24.11.5"]), ({"schema": "x/1"}, []), ({"folder": "/elsewhere"}, []), ({"version": 24}, [])],
)
def test_an_installation_is_one_that_says_so_and_was_not_moved(
    change: dict[str, object], versions: list[str], tmp_path: Path
) -> None:
    known = {"schema": "gpusage.slurm-installation/1", "release": "trixie", "version": "24.11.5"}
    record = {**known, "folder": str(tmp_path), **change}
    (tmp_path / "installation.json").write_text(json.dumps(record))
    installation = read_installation(tmp_path)
    assert [each.version for each in (installation,) if each] == versions


@pytest.mark.parametrize(
    ("name", "version"),
    [("slurmctld_22.05.8-4+deb12u3_amd64.deb", "22.05.8"), ("slurmctld_1%3a24.11.5-4_arm64.deb", "24.11.5")],
)
def test_slurm_s_version_stands_in_its_archive_s_name(name: str, version: str) -> None:
    assert slurm_version([Path("/c/munge_0.5_amd64.deb"), Path("/c") / name]) == version


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["slurmctld_20.11.7-1_amd64.deb"], "22.05 or newer; the release has 20.11.7"),
        (["munge_1_all.deb"], "bring slu"),
    ],
)
def test_a_release_without_a_slurm_for_us_is_refused(names: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        slurm_version([Path(name) for name in names])


def test_slurmd_is_changed_in_exactly_one_place_or_refused(tmp_path: Path) -> None:
    slurmd = tmp_path / "slurmd"
    asks, passes = b"SLURM_GET_USER_ENV=1\0", b"SLURM_GET_USER_ENV=-\0"
    slurmd.write_bytes(b"a" + asks + b"SLURM_GET_USER_ENV=10")
    leave_login_alone(slurmd)
    assert slurmd.read_bytes() == b"a" + passes + b"SLURM_GET_USER_ENV=10"
    for text in (slurmd.read_bytes(), asks * 2):
        slurmd.write_bytes(text)
        with pytest.raises(RequestError, match="in one place; found"):
            leave_login_alone(slurmd)
        assert slurmd.read_bytes() == text
