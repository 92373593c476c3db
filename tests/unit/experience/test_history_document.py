"""The file of a history: what was written is read, and anything else is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage.devices.catalogue import Catalogue, describe_gpus
from gpusage.experience.history import read_history
from gpusage_hooks.errors import RequestError
from gpusage_lab.history.training import fit_history, write_history
from past_runs import of_user, past_runs


def test_a_history_is_read_as_it_was_written_and_names_nobody(tmp_path: Path) -> None:
    runs = [*past_runs([0.2] * 30), *past_runs([0.9], of_user("ada-lovelace"))]
    history, _ = fit_history(runs, Catalogue(describe_gpus()).find, 7.0)
    write_history(history, tmp_path / "h.json")
    assert read_history(tmp_path / "h.json") == history
    content = (tmp_path / "h.json").read_text()
    assert not any(word in content for word in ("ada-lovelace", "physics", "train_"))


@pytest.mark.parametrize("content", ["", "{}", '{"schema": "gpusage.history/2", "history": {}}', '{"x": 1}', "\x80"])
def test_anything_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "h.json").write_text(content, encoding="latin-1")
    with pytest.raises(RequestError, match=r"must be what gpusage train --history writes; got: .*\. Train it again\."):
        read_history(tmp_path / "h.json")


def test_no_file_is_no_history(tmp_path: Path) -> None:
    assert read_history(tmp_path / "h.json") is None


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    history, _ = fit_history([], Catalogue(describe_gpus()).find, 0.0)
    with pytest.raises(RequestError, match="must be a file that you may write"):
        write_history(history, tmp_path / "none" / "h.json")
