"""Files that a user names: text, documents, and one sentence where they are neither."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpusage.cli.user_file import read_document, read_text
from gpusage_hooks.errors import RequestError
from gpusage_hooks.units import MIB


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_document(tmp_path / "a.json", "File") == {"a": 1}


def test_a_file_that_is_too_large_is_refused_and_not_cut_off(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_bytes(b"x" * (MIB + 1))
    assert len(read_text(tmp_path / "jobs.csv", "Jobs file", 2 * MIB)) == MIB + 1
    with pytest.raises(RequestError, match="must be at most 1 MiB; got more"):
        read_text(tmp_path / "jobs.csv", "Jobs file", MIB)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "jobs.csv"
    os.mkfifo(pipe)
    for read in (read_text, read_document):
        with pytest.raises(RequestError, match=r"jobs.csv' must be a regular file; got a pipe, socket or device"):
            read(pipe, "Jobs file")


@pytest.mark.parametrize("content", [b"\xff", b"nodes = [", b"[" * 100_000])
@pytest.mark.parametrize("name", ["a.toml", "a.json"])
def test_what_is_no_document_is_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RequestError, match=r"^Cluster file '.*a\.(toml|json)' must be JSON, or TOML"):
        read_document(tmp_path / name, "Cluster file")
