"""Who may connect to a socket, as the file system keeps it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from gpusage.service.sockets import allow_everyone, allow_only, encode_access_list

NAME = "system.posix_acl_access"


def test_an_access_list_names_the_owner_the_users_in_order_and_nobody_else() -> None:
    """Each entry is tag, rights and id: owner 1, user 2, group 4, mask 16, others 32."""
    entries = "01000600ffffffff 0200060007000000 0200060009000000 04000000ffffffff 10000600ffffffff 20000000ffffffff"
    assert encode_access_list([9, 7]).hex() == "02000000" + entries.replace(" ", "")


def test_the_file_system_takes_the_list_from_any_owner(tmp_path: Path) -> None:
    """Root and the owner need no entry: the one passes everywhere, the other by the mode."""
    path = tmp_path / "s.sock"
    path.touch()
    allow_only(path, {0, os.geteuid(), 12345})
    assert os.getxattr(path, NAME) == encode_access_list([12345])
    assert path.stat().st_mode & 0o007 == 0
    allow_only(path, {0})
    assert path.stat().st_mode & 0o007 == 0
    allow_everyone(path)
    assert path.stat().st_mode & 0o777 == 0o666


def test_a_file_system_without_access_lists_leaves_the_socket_open_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless only the owner and root may ask, for whom the mode is enough."""

    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", unsupported)
    path = tmp_path / "s.sock"
    path.touch()
    with caplog.at_level(logging.WARNING):
        allow_only(path, {0, os.geteuid()})
        assert (path.stat().st_mode & 0o777, caplog.text) == (0o600, "")
        allow_only(path, {12345})
    assert path.stat().st_mode & 0o777 == 0o666
    assert "open to everyone" in caplog.text
