"""A file that is written whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpusage.boundary import atomic_file
from gpusage.boundary.atomic_file import atomic_write

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    atomic_write(path, "new \N{MICRO SIGN}")
    assert path.read_text(encoding="utf-8") == "new \N{MICRO SIGN}"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["absent/page.html", "file/page.html", "x" * 300])
def test_the_cause_is_told_where_neither_the_file_nor_its_draft_can_be_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"No such file|Not a directory|File name too long"):
        atomic_write(tmp_path / name, "text")


def test_half_a_character_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        atomic_write(path, "\ud800")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["before"]


def test_a_device_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    """Root who throws a page away would else leave a file in the place of /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        atomic_write(pipe, "page")
        assert os.read(reader, 100) == b"page"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_pipe_that_nobody_reads_is_refused_at_once(tmp_path: Path) -> None:
    """To open it would wait for a reader for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="a pipe that nobody reads"):
        atomic_write(pipe, "page")


def test_a_link_is_replaced_and_what_it_leads_to_untouched(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "page.html"
    target.write_text("untouched")
    target.chmod(0o600)
    for leads_to in (target, tmp_path / "absent", Path("/dev/null"), tmp_path):
        link.unlink(missing_ok=True)
        link.symlink_to(leads_to)
        atomic_write(link, "page")
        assert not link.is_symlink()
        assert link.read_text() == "page"
    assert target.read_text() == "untouched"
    assert not (tmp_path / "absent").exists()


def test_what_a_shell_opened_for_us_is_written_to() -> None:
    """``-o >(gzip)`` and ``-o /dev/stdout``: links of the kernel's own."""
    reader, writer = os.pipe()
    for folder in ("/dev/fd", "/proc/self/fd", "/dev/../dev/fd"):
        atomic_write(Path(folder) / str(writer), "page")
        assert os.read(reader, 100) == b"page"
    os.close(writer)
    os.close(reader)


@needs_root
@pytest.mark.parametrize("kind", ["link", "file", "pipe"])
def test_what_another_user_put_at_the_page_s_name_costs_root_nothing(tmp_path: Path, kind: str) -> None:
    """`gpusage predict -o` as root into /tmp overwrote a private file, by a link that a stranger had put there."""
    private, public = tmp_path / "private", tmp_path / "public"
    private.write_text("untouched")
    private.chmod(0o600)
    public.mkdir()
    public.chmod(0o1777)
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    page = public / "page.html"
    put = {
        "link": f"os.symlink({str(private)!r}, p)",
        "file": "open(p, 'x'); os.chmod(p, 0o666)",
        "pipe": "os.mkfifo(p)",
    }
    script = f"import os; os.setgid(65534); os.setuid(65534); p = {str(page)!r}; {put[kind]}"
    subprocess.run([sys.executable, "-S", "-c", script], check=True)
    assert page.lstat().st_uid == 65534
    if kind == "pipe":
        with pytest.raises(PermissionError, match="another user's pipe"):
            atomic_write(page, "page")
        return
    atomic_write(page, "page")
    assert private.read_text() == "untouched"
    assert (page.lstat().st_uid, page.lstat().st_mode & 0o022) == (0, 0)
    assert page.read_text() == "page"


def test_no_link_that_somebody_puts_there_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the draft's name were known, as it was of old by the process's number."""
    monkeypatch.setattr(atomic_file.secrets, "token_hex", lambda _: "known")
    private = tmp_path / "private"
    private.write_text("untouched")
    (tmp_path / ".page.html.known").symlink_to(private)
    with pytest.raises(FileExistsError):
        atomic_write(tmp_path / "page.html", "page")
    assert private.read_text() == "untouched"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_private_file_stays_private(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "report.json"
    path.touch()
    path.chmod(mode)
    atomic_write(path, "private")
    assert (path.stat().st_mode & 0o777, path.read_text()) == (mode, "private")


@pytest.mark.parametrize("is_admins", [False, True])
@pytest.mark.parametrize("mode", [None, 0o640])
def test_nobody_else_can_open_the_draft_before_it_has_its_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None, is_admins: bool
) -> None:
    """Who opened it meanwhile, in a loop, read a private text through that descriptor."""
    path, seen, change_mode = tmp_path / "gpusage.toml", [], os.fchmod
    if mode is None:
        path.touch()
        path.chmod(0o640)

    def observed_fchmod(draft: int, to: int) -> None:
        seen.append(os.fstat(draft).st_mode & 0o777)
        change_mode(draft, to)

    monkeypatch.setattr(os, "fchmod", observed_fchmod)
    umask = os.umask(0)
    try:
        atomic_write(path, "private", mode=mode, is_admins=is_admins)
    finally:
        os.umask(umask)
    assert seen == [0o600]
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_mode_that_its_users_umask_gives(tmp_path: Path) -> None:
    for umask in (0o022, 0o027, 0o077):
        before = os.umask(umask)
        try:
            atomic_write(tmp_path / f"{umask}.html", "page")
        finally:
            os.umask(before)
        assert (tmp_path / f"{umask}.html").stat().st_mode & 0o777 == 0o666 & ~umask


@needs_root
def test_what_root_writes_for_somebody_stays_theirs(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.touch(0o600)
    os.chown(path, 12345, 12345)
    atomic_write(path, "page")
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (12345, 0o600)
