"""What makes a folder a sandbox, and only the one where it was started."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.layout import Layout, read_record, write_record


class Record(msgspec.Struct, frozen=True, kw_only=True, tag="test/1", tag_field="schema"):
    """What a sandbox of this test knows of itself."""

    installation: str


RECORD = Record(installation="/opt/x")


def test_a_record_is_read_where_it_was_written_also_by_another_name(tmp_path: Path) -> None:
    folder, link = tmp_path / "a", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    write_record(Layout(folder=link), RECORD)
    assert read_record(Layout(folder=folder), Record, "slurm") == RECORD
    assert read_record(Layout(folder=link), Record, "slurm") == RECORD


def test_a_folder_with_a_copied_record_is_no_sandbox(tmp_path: Path) -> None:
    """`down` would remove the folder with everything in it."""
    folder, other = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    other.mkdir()
    write_record(Layout(folder=folder), RECORD)
    shutil.copy(Layout(folder=folder).record, other)
    with pytest.raises(RequestError, match="must be where its sandbox was started; its record is of"):
        read_record(Layout(folder=other), Record, "slurm")
