"""Changes to an admin's files: all or none, whatever comes between."""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpusage.boundary import atomic_file, edits
from gpusage.boundary.edits import Edit, edit_of, make_edits
from gpusage_hooks.errors import RequestError


@pytest.fixture
def planned(tmp_path: Path) -> tuple[Edit, ...]:
    """Return edits of three files: one that is there, one that is new, one that goes."""
    (tmp_path / "there").write_text("old")
    (tmp_path / "goes").write_text("old")
    return (
        edit_of(tmp_path / "there", "new"),
        edit_of(tmp_path / "new", "new", mode=0o755),
        edit_of(tmp_path / "goes", None),
    )


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


BEFORE = {"there": "old", "goes": "old"}


def test_every_edit_is_made_and_nothing_else_is_left(planned: tuple[Edit, ...], tmp_path: Path) -> None:
    make_edits(planned)
    assert contents(tmp_path) == {"there": "new", "new": "new"}
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("umask", [0o077, 0o027, 0o000])
def test_a_new_folder_is_open_to_everyone_and_only_its_owner_may_write_there(tmp_path: Path, umask: int) -> None:
    """Otherwise no user could run the task prolog there, or each could change what root runs."""
    before = os.umask(umask)
    try:
        make_edits([edit_of(tmp_path / "libexec" / "gpusage" / "script", "new", mode=0o755)])
    finally:
        os.umask(before)
    folders = (tmp_path / "libexec", tmp_path / "libexec" / "gpusage")
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o755, 0o755]


@pytest.mark.parametrize("name", ["there", "new", "goes"])
def test_what_somebody_changed_meanwhile_is_kept_and_nothing_is_changed(
    planned: tuple[Edit, ...], tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("theirs")
    with pytest.raises(RequestError, match=f"{name}.*somebody has changed.*nothing was changed"):
        make_edits(planned)
    assert contents(tmp_path) == {**BEFORE, name: "theirs"}


@pytest.mark.parametrize("at", range(1, 4))
def test_an_interrupt_is_undone_as_well(
    planned: tuple[Edit, ...], tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def interrupted(folder: Path) -> None:  # the last step of each write
        synced.append(folder)
        if len(synced) == at:
            raise KeyboardInterrupt

    for module in (atomic_file, edits):
        monkeypatch.setattr(module, "sync_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_edits(planned)
    assert contents(tmp_path) == BEFORE


def test_what_cannot_be_undone_is_named_and_the_rest_is_undone(
    planned: tuple[Edit, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[Path] = []
    write = edits._write

    def failing(path: Path, text: str | None, mode: int) -> None:
        if path.name == "goes":
            broken.append(path)
        if broken and path.name in ("goes", "new"):
            message = "the disk is gone"
            raise OSError(message)
        write(path, text, mode)

    monkeypatch.setattr(edits, "_write", failing)
    with pytest.raises(RequestError, match=r"disk is gone.*these stay changed: .*new\.$"):
        make_edits(planned)
    assert contents(tmp_path) == {**BEFORE, "new": "new"}


def test_what_a_killed_installer_left_is_taken_away(planned: tuple[Edit, ...], tmp_path: Path) -> None:
    (tmp_path / ".there.0123456789abcdef").write_text("half")
    make_edits(planned)
    assert contents(tmp_path) == {"there": "new", "new": "new"}


def test_file_and_folder_are_on_the_disk_before_it_is_said_so(
    planned: tuple[Edit, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    make_edits(planned[:1])
    draft, folder = synced
    assert re.fullmatch(r"\.there\.[0-9a-f]{16}", draft)
    assert folder == planned[0].path.parent.name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file that its owner may not give away")
def test_a_file_whose_group_this_user_may_not_give_is_refused_with_both() -> None:
    nobody, group = 65534, 54321
    with TemporaryDirectory() as name:  # unlike pytest's own, in a folder that nobody reaches
        path = Path(name) / "there"
        path.write_text("old")
        os.chown(path, nobody, group)
        os.chown(name, nobody, nobody)
        edit = edit_of(path, "new")
        os.seteuid(nobody)
        try:
            with pytest.raises(RequestError, match=r"user 65534 and group 54321, .* Run it as root, or as its owner"):
                make_edits([edit])
        finally:
            os.seteuid(0)
        assert contents(Path(name)) == {"there": "old"}
