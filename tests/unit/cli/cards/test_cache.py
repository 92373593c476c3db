"""What commands keep in the user's cache folder, and what they believe of what lies there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpusage.cli.cards.cache import read_own, write_atomically

PLANTED: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to(path.with_name("real")),
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a second name of a file": lambda path: path.hardlink_to(path.with_name("real")),
    "a file that others may write": lambda path: path.write_bytes(b"planted") and path.chmod(0o666),
    "a file that the group may write": lambda path: path.write_bytes(b"planted") and path.chmod(0o620),
}


def test_what_was_kept_is_there_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "cards" / "a"
    assert read_own(path, 100) is None
    write_atomically(path, "a card")
    assert read_own(path, 100) == b"a card"
    assert read_own(path, 3) == b"a c"


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED.keys())
def test_what_anyone_else_may_have_put_there_is_not_believed(tmp_path: Path, plant: Callable[[Path], object]) -> None:
    """And nothing is waited for: a FIFO cost 8 s before; what is made anew takes the planted file's place."""
    (tmp_path / "real").write_bytes(b"planted")
    path = tmp_path / "a"
    plant(path)
    assert read_own(path, 100) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_another_users_file_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomically(path, "planted")
    os.chown(path, 65534, 65534)
    assert read_own(path, 100) is None
    write_atomically(path, "ours")
    assert read_own(path, 100) == b"ours"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_nothing_is_kept_in_another_users_folder(tmp_path: Path) -> None:
    """Root with a user's HOME would write where that user may put links."""
    (tmp_path / "cards").mkdir()
    os.chown(tmp_path / "cards", 65534, 65534)
    write_atomically(tmp_path / "cards" / "a", "ours")
    assert not any((tmp_path / "cards").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
@pytest.mark.parametrize("planted", ["cards", "cards/new"])
def test_nothing_is_kept_behind_another_users_link(tmp_path: Path, planted: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "cards").symlink_to(tmp_path / "mine")
    os.chown(tmp_path / "cards", 65534, 65534, follow_symlinks=False)
    write_atomically(tmp_path / planted / "a", "ours")
    assert not (tmp_path / planted / "a").exists()


def test_in_a_folder_where_others_may_rename_files_nothing_is_believed(tmp_path: Path) -> None:
    """One model's card under another's name: the file is ours, its name is not."""
    write_atomically(tmp_path / "cards" / "a", "ours")
    (tmp_path / "cards").chmod(0o777)
    assert read_own(tmp_path / "cards" / "a", 100) is None
