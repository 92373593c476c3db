"""What a sandbox takes from the machine that it runs on."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.host import free_ports, private_folder, require_own


def test_a_folder_is_made_that_nobody_else_can_look_into(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "b", 1000)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch()
    with pytest.raises(RequestError, match="must be empty; it is not"):
        private_folder(tmp_path, 1000)


def test_a_folder_too_long_for_sockets_is_refused_before_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"at most 10 bytes, for the sockets in it; .* has \d+"):
        private_folder(tmp_path / "long", 10)
    assert not (tmp_path / "long").exists()


@pytest.mark.parametrize("name", ["with space", "with#hash", "with,comma", "brackets[0]", 'quote"'])
def test_a_folder_that_could_not_stand_in_slurm_conf_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="must be a plain word"):
        private_folder(tmp_path / name, 1000)


def test_what_another_user_laid_out_is_not_run(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 1, 1)
    theirs = tmp_path if os.geteuid() == 0 else Path("/")
    with pytest.raises(RequestError, match="must belong to the user"):
        require_own(theirs)


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
