"""Another user's file is never read through us, whatever a path leads to; all of it with real processes and users."""

from __future__ import annotations

import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusage.graphs.card.error import ERROR_MARK, decode_error
from gpusage.graphs.card.text import decode
from gpusage_slurm.late import card_reader
from gpusage_slurm.late.card_reader import may_read_for, read_card

MODELS = Path(__file__).parents[4] / "examples" / "models"
NOBODY = 65534
ALIEN = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
WRAPPER = """#!/bin/sh
shift
PYTHONPATH={paths} PYTHONDONTWRITEBYTECODE=1 exec {python} "$@"
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder of nobody's that holds a model of nobody's, and beside it a secret of root's."""
    root = Path("/tmp") / f"gpusage-late-{os.getpid()}-{time.monotonic_ns()}"
    root.mkdir()
    own = root / "own"
    own.mkdir()
    shutil.copy(MODELS / "dlrm.onnx", own / "own.onnx")
    shutil.copy(MODELS / "resnet50.onnx", root / "secret.onnx")
    (root / "secret.onnx").chmod(0o600)
    for path in (own, own / "own.onnx"):
        os.chown(path, NOBODY, NOBODY)
    yield own
    shutil.rmtree(root)


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have children use a Python that nobody may run, where this one lies in root's home."""
    if not _is_open(MODELS):
        pytest.skip("nobody but root may enter the folder of this checkout")
    if _is_open(Path(sys.executable).resolve()):
        return
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    other = shutil.which(version, path="/usr/bin:/usr/local/bin")
    if other is None:
        pytest.skip(f"no {version} here that every user may run")
    wrapper = folder.parent / "python"
    wrapper.write_text(WRAPPER.format(paths=":".join(path for path in sys.path if path), python=other))
    wrapper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(wrapper))


def _is_open(path: Path) -> bool:
    """Return whether every user may enter the folders that lead to *path*."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)


def card(model: str, folder: Path, **options: float) -> str:
    """Return what nobody's job gets that names *model*."""
    return read_card(f"model={model},batch=8", NOBODY, str(folder), **options)


def trouble(model: str, folder: Path) -> str:
    """Return why nobody's job gets no card."""
    text = card(model, folder)
    assert text.startswith(ERROR_MARK)
    return (decode_error(text) or "").lower()


@ALIEN
@pytest.mark.usefixtures("python")
def test_a_users_own_model_is_read_from_the_jobs_folder(folder: Path) -> None:
    assert not card("own.onnx", folder).startswith(ERROR_MARK)
    assert decode(card("own.onnx", folder)).nodes == decode(card(str(folder / "own.onnx"), Path("/"))).nodes


@ALIEN
@pytest.mark.usefixtures("python")
def test_roots_file_is_not_read_by_whatever_way(folder: Path) -> None:
    secret = folder.parent / "secret.onnx"
    (folder / "link.onnx").symlink_to(secret)
    os.link(secret, folder / "hard.onnx")
    for path in (str(secret), "../secret.onnx", "link.onnx", "hard.onnx", f"/proc/{os.getpid()}/root{secret}"):
        assert "permission denied" in trouble(path, folder), path
    opened = os.open(secret, os.O_RDONLY)  # the child inherits no file of ours
    os.set_inheritable(opened, True)
    assert trouble(f"/proc/self/fd/{opened}", folder)
    os.close(opened)


@ALIEN
@pytest.mark.usefixtures("python")
def test_a_folder_that_the_user_may_not_enter_gives_nothing_away(folder: Path) -> None:
    closed = folder.parent / "closed"
    closed.mkdir(mode=0o700)
    shutil.copy(MODELS / "resnet50.onnx", closed / "open.onnx")
    (closed / "open.onnx").chmod(0o644)
    assert "no such file" in trouble("open.onnx", closed)
    assert "permission denied" in trouble(str(closed / "open.onnx"), folder)


@ALIEN
@pytest.mark.usefixtures("python")
def test_what_is_no_file_is_refused_at_once(folder: Path) -> None:
    os.mkfifo(folder / "fifo.onnx", 0o666)
    assert "a fifo" in trouble("fifo.onnx", folder)
    (folder / "memory.onnx").symlink_to("/proc/self/mem")
    (folder / "environment.onnx").symlink_to("/proc/self/environ")
    assert trouble("memory.onnx", folder)
    assert "path=" not in trouble("environment.onnx", folder)


@ALIEN
@pytest.mark.usefixtures("python")
def test_a_file_that_is_swapped_meanwhile_is_opened_with_the_users_rights(folder: Path) -> None:
    """A name points to the user's own model and to root's in turn, thousands of times a second."""
    secret, stop = folder.parent / "secret.onnx", threading.Event()

    def swap() -> None:
        names = [folder / "own.onnx", secret]
        while not stop.is_set():
            names.reverse()
            (folder / "new").unlink(missing_ok=True)
            (folder / "new").symlink_to(names[0])
            (folder / "new").rename(folder / "swapped.onnx")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        texts = {card("swapped.onnx", folder) for _ in range(4)}
    finally:
        stop.set()
        thread.join()
    cards = {text for text in texts if not text.startswith(ERROR_MARK)}
    assert {decode(text).nodes for text in cards} <= {decode(card("own.onnx", folder)).nodes}
    assert all("permission denied" in (decode_error(text) or "") for text in texts - cards)


SPY = """#!/bin/sh
{ id -u; id -g; id -G; pwd; ls /proc/self/fd | wc -w; ulimit -v; ulimit -n; ulimit -c; grep NoNewPrivs /proc/self/status
  grep -c : /proc/net/dev; env | cut -d= -f1 | sort | tr '\\n' ' '; } >out 2>&1
"""


@ALIEN
def test_the_child_has_the_users_rights_and_limits_and_nothing_of_ours(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = folder / "spy"
    spy.write_text(SPY)
    spy.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(spy))
    monkeypatch.setenv("SECRET_OF_ROOT", "1")
    assert "without success" in trouble("own.onnx", folder)
    uid, gid, groups, here, files, *limits, privileges, networks, environment = (
        (folder / "out").read_text().splitlines()
    )
    assert (uid, gid, groups, here) == (str(NOBODY), str(NOBODY), str(NOBODY), str(folder))
    assert int(files) <= 4
    assert limits == [str(4 * 1024**2), "64", "0"]
    assert privileges.split()[1] == "1"
    assert networks == "1" or not may_be_alone()  # its own loopback
    assert {*environment.split()} <= {"HF_HUB_OFFLINE", "HOME", "LC_ALL", "OMP_NUM_THREADS", "PATH", "PWD", "USER"}


def may_be_alone() -> bool:
    """Return whether this machine lets root have a network of its own; a container may not."""
    return subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode == 0


@ALIEN
@pytest.mark.parametrize("script", ["sleep 60", "yes A", "sleep 60 & sleep 60"])
def test_a_child_that_says_too_much_or_nothing_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    slow = folder / "slow"
    slow.write_text(f"#!/bin/sh\n{script}\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    begun_s = time.monotonic()
    assert card("own.onnx", folder, limit_s=0.5).startswith(ERROR_MARK)
    assert time.monotonic() - begun_s < 50


@ALIEN
def test_a_python_that_the_user_may_not_run_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(folder.parent / "secret.onnx"))
    assert "no process could be started as its user" in trouble("own.onnx", folder)


def test_only_root_reads_for_others() -> None:
    assert may_read_for(os.geteuid())
    assert may_read_for(NOBODY) == (os.geteuid() == 0)


def test_ones_own_model_is_read_without_root(tmp_path: Path) -> None:
    shutil.copy(MODELS / "dlrm.onnx", tmp_path / "own.onnx")
    assert not read_card("model=own.onnx,batch=8", os.geteuid(), str(tmp_path)).startswith(ERROR_MARK)


def test_a_user_whom_the_host_does_not_know_gets_a_reason() -> None:
    assert "no user with uid 4000000" in (decode_error(read_card("model=a.onnx", 4_000_000, "/")) or "")


def test_a_model_that_takes_all_memory_ends_its_reader_and_not_the_service() -> None:
    """By systemd's default one such model would stop the reading of everybody's, again and again."""
    unit = (Path(card_reader.__file__).parent / "gpusage-late.service").read_text()
    assert "OOMPolicy=continue\n" in unit
    most = re.search(r"^MemoryMax=(\d+)G$", unit, re.MULTILINE)
    assert most is not None
    assert int(most[1]) * 1024**3 > card_reader._LIMITS[resource.RLIMIT_AS]
