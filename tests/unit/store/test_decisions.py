"""The store of decisions."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from gpusage.store.decisions import DecisionStore, StoreError
from gpusage.store.opening import open_store, sqlite_path
from gpusage.store.rows import schema_version
from gpusage_hooks.errors import RequestError
from records import RECORD
from waiting import LIMIT_S

Opened = Callable[[Path], DecisionStore]


def url(path: Path) -> str:
    """Return the store's URL for *path*."""
    return f"sqlite:///{path}"


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Return what makes a store of a path, and close all of them at the end."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(closing(open_store(url(path))))


def test_what_is_recorded_comes_back_equal_and_newest_first(tmp_path: Path, opened: Opened) -> None:
    """Also from another connection, as `gpusage report` reads while the daemon writes."""
    path = tmp_path / "decisions.db"
    writer = opened(path)
    later = replace(RECORD, decided_at_s=RECORD.decided_at_s + 1, model=None, workload=None)
    writer.record(RECORD)
    writer.record_all([later])
    assert opened(path).latest(5) == (later, RECORD)
    assert opened(path).latest(1) == (later,)


def test_fields_that_only_look_like_a_dict_are_kept(tmp_path: Path, opened: Opened) -> None:
    """A plugin may answer with any mapping."""
    store = opened(tmp_path / "d.db")
    frozen = replace(RECORD, rendered=replace(RECORD.rendered, fields=MappingProxyType({"set.gres": "mps:40"})))
    store.record(frozen)
    assert store.latest(1) == (RECORD,)


def test_a_text_that_is_no_unicode_is_kept_with_question_marks(tmp_path: Path, opened: Opened) -> None:
    """Half of a surrogate pair, which JSON can carry and UTF-8 cannot."""
    store = opened(tmp_path / "d.db")
    store.record(replace(RECORD, model="a\udc80b", rendered=replace(RECORD.rendered, before="\ud800")))
    (decision,) = store.latest(1)
    assert (decision.model, decision.rendered.before) == ("a?b", "?")


def test_columns_can_be_asked_for_in_sql(tmp_path: Path, opened: Opened) -> None:
    """Admins read the file with the sqlite3 command."""
    opened(tmp_path / "d.db").record(RECORD)
    with sqlite3.connect(tmp_path / "d.db") as connection:
        rows = connection.execute("SELECT code, manager, mode, origin, model, before, after FROM decisions").fetchall()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    assert rows == [("REWRITE", "slurm", "enforce", "uid 1000", "resnet50.onnx", "gres/gpu:1", "gres/mps:40")]
    assert version == schema_version()


def test_a_decision_is_found_by_its_number_and_by_whose_it_is(tmp_path: Path, opened: Opened) -> None:
    """`gpusage decisions 123` has the number from the job's mark."""
    store = opened(tmp_path / "d.db")
    one, other = replace(RECORD, number="69215f4a0c3e"), replace(RECORD, number="69215f4a0c3f", origin="uid 7")
    store.record_all([one, other])
    assert store.find("69215f4a0c3e") == one
    assert store.find("000000000000") is None
    assert store.latest(5, ("uid 7", "ada")) == (other,)


def test_reading_where_there_is_no_store_makes_none(tmp_path: Path, opened: Opened) -> None:
    """A report on a fresh machine leaves nothing behind."""
    assert opened(tmp_path / "d.db").latest(3) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_made(tmp_path: Path, opened: Opened) -> None:
    """The daemon may start before anyone made its folder."""
    store = opened(tmp_path / "a" / "b" / "d.db")
    store.record(RECORD)
    assert store.latest(1) == (RECORD,)


def test_a_folder_that_cannot_be_made_is_one_sentence_and_not_retried_at_once(tmp_path: Path, opened: Opened) -> None:
    """A plain file stands where the folder should be; once it is gone and a second has passed, recording works."""
    (tmp_path / "a").write_text("in the way")
    store = opened(tmp_path / "a" / "d.db")
    with pytest.raises(StoreError, match=r"must be opened; got: .*File exists"):
        store.record(RECORD)
    (tmp_path / "a").unlink()
    with pytest.raises(StoreError, match="must be opened"):
        store.record(RECORD)
    store._refused = None
    store.record(RECORD)
    assert store.latest(1) == (RECORD,)


@pytest.mark.parametrize(
    "junk", [b"this is no database at all" * 100, b"\x00" * 5000, b"SQLite format 3\x00" + b"\xff" * 5000]
)
def test_a_corrupt_file_is_moved_aside_and_a_new_one_begun(
    tmp_path: Path, opened: Opened, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """What was in it is not lost, and recording goes on."""
    path = tmp_path / "d.db"
    path.write_bytes(junk)
    store = opened(path)
    with caplog.at_level(logging.WARNING):
        store.record(RECORD)
    assert store.latest(2) == (RECORD,)
    (aside,) = (file for file in tmp_path.glob("d.db.corrupt-*") if file.suffix not in ("-wal", "-shm"))
    assert aside.read_bytes() == junk
    assert "moved aside" in caplog.text


def test_a_file_that_is_damaged_while_open_is_moved_aside(tmp_path: Path, opened: Opened) -> None:
    """Pages are overwritten under the store; the next record finds out and is kept all the same."""
    path = tmp_path / "d.db"
    store = opened(path)
    store.record(RECORD)
    store.close()  # closing the last connection writes everything back into the one file
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:100] + b"\xa5" * (size - 100))
    store.record(RECORD)
    assert store.latest(5) == (RECORD,)


def test_a_file_whose_schema_is_no_text_is_moved_aside(tmp_path: Path, opened: Opened) -> None:
    """SQLite quotes it in its message, which is then no text either."""
    path = tmp_path / "d.db"
    store = opened(path)
    store.record(RECORD)
    store.close()
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE decisions", b"CREATE TABLE d\xbe\xff\xb3sions"))
    with pytest.raises(StoreError):
        store.latest(1)
    store.record(RECORD)
    assert store.latest(5) == (RECORD,)


def test_a_row_that_holds_no_text_hides_no_other(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "d.db"
    store = opened(path)
    store.record_all([RECORD, RECORD])
    store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'record TEXT NOT NULL', 'record')")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE decisions SET record = NULL WHERE id = 1")
    assert store.latest(5) == (RECORD,)


def test_a_file_that_was_removed_is_begun_anew(tmp_path: Path, opened: Opened) -> None:
    """Otherwise records would go, unseen, into a file without a name."""
    path = tmp_path / "d.db"
    store = opened(path)
    store.record(RECORD)
    for file in tmp_path.iterdir():
        file.unlink()
    store.record(RECORD)
    assert opened(path).latest(5) == (RECORD,)


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path, opened: Opened) -> None:
    """An old gpusage must not write into a new one's file."""
    path = tmp_path / "d.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {schema_version() + 1}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="Update gpusage"):
        opened(path).record(RECORD)
    assert path.read_bytes() == before


def test_a_row_that_is_no_decision_hides_no_other(
    tmp_path: Path, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody edited the file by hand."""
    store = opened(tmp_path / "d.db")
    store.record_all([RECORD, RECORD])
    with sqlite3.connect(tmp_path / "d.db") as connection:
        connection.execute("UPDATE decisions SET record = '{}' WHERE id = 2")
    connection.close()
    assert store.latest(5) == (RECORD,)
    assert "no decision" in caplog.text


def test_a_full_disk_is_one_sentence_and_recording_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    """The kernel refuses to let the process write files beyond 256 KiB, which SQLite reports as a disk error."""
    script = """
import resource, signal, sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
sys.path.insert(0, sys.argv[2])
import records as t
from gpusage.store.decisions import StoreError
from gpusage.store.opening import open_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_store(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, resource.RLIM_INFINITY))
kept = 0
try:
    while kept < 10000:
        store.record(t.RECORD)
        kept += 1
except StoreError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.record(t.RECORD)
print(kept + 1, len(store.latest(10001)))
store.close()
"""
    command = [sys.executable, "-c", script, url(tmp_path / "d.db"), str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    sentence, counts = done.stdout.splitlines()
    assert "must be written; got: " in sentence
    stored, expected = counts.split()
    assert 10 < int(stored) < 10000
    assert stored == expected


def test_decisions_that_are_too_old_are_forgotten_little_by_little(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/decisions.db"
    with closing(open_store(url)) as store:
        store.record_all([replace(RECORD, decided_at_s=float(second)) for second in range(5)])
    with closing(open_store(url, keep_days=1)) as store:
        store.record(replace(RECORD, decided_at_s=time.time()))
        assert len(store.latest(10)) == 6 - 3
        store.record(replace(RECORD, decided_at_s=time.time()))
        assert len(store.latest(10)) == 2


@pytest.mark.parametrize("wrong", ["mysql://host/db", "sqlite://", "sqlite:///", "/var/lib/decisions.db", ""])
def test_a_url_of_another_kind_is_refused(wrong: str) -> None:
    """At start-up, with what to write instead."""
    with pytest.raises(RequestError, match="Write 'sqlite:////var"):
        open_store(wrong)


def test_three_slashes_are_relative_and_four_absolute() -> None:
    """As SQLAlchemy has it."""
    assert sqlite_path("sqlite:///a/b.db") == Path("a/b.db")
    assert sqlite_path("sqlite:////a/b.db") == Path("/a/b.db")
