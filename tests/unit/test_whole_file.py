"""A file that is written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpusage import whole_file
from gpusage.whole_file import write_whole


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    write_whole(path, "new \N{MICRO SIGN}")
    assert path.read_text(encoding="utf-8") == "new \N{MICRO SIGN}"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["absent/page.html", "file/page.html", "x" * 300])
def test_the_cause_is_told_where_neither_the_file_nor_its_draft_can_be_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"No such file|Not a directory|File name too long"):
        write_whole(tmp_path / name, "text")


def test_a_device_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    """Root who throws a page away would else leave a file in the place of /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, "page")
        assert os.read(reader, 100) == b"page"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    for name in ("new.html", "old.html"):
        link, target = tmp_path / name, tmp_path / "pages" / name
        link.symlink_to(target)
        write_whole(link, "page")
        assert link.is_symlink()
        assert target.read_text() == "page"


def test_no_link_that_somebody_puts_there_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the draft's name were known, as it was of old by the process's number."""
    monkeypatch.setattr(whole_file.secrets, "token_hex", lambda _: "known")
    private = tmp_path / "private"
    private.write_text("untouched")
    (tmp_path / ".page.html.known").symlink_to(private)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "page.html", "page")
    assert private.read_text() == "untouched"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_private_file_stays_private(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "report.json"
    path.touch()
    path.chmod(mode)
    write_whole(path, "private")
    assert (path.stat().st_mode & 0o777, path.read_text()) == (mode, "private")


@pytest.mark.skipif(os.geteuid() != 0, reason="nobody else may give a file away")
def test_what_root_writes_for_somebody_stays_theirs(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.touch(0o600)
    os.chown(path, 12345, 12345)
    write_whole(path, "page")
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (12345, 0o600)
