"""Changes to an admin's files: all or none, whatever comes between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpusage import edits
from gpusage.edits import Edit, edit_of, make_edits
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

    monkeypatch.setattr(edits, "_sync_folder", interrupted)
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
    (tmp_path / ".there.gpusage-new").write_text("half")
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
    assert synced == [".there.gpusage-new", planned[0].path.parent.name]
