"""What a site has learned, and how its file of history is read."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from gpusage.experience.history import History
from gpusage.experience.history_file import write_history
from gpusage.service.state import learner
from gpusage.settings.configuration import LearningSettings
from gpusage.store.opening import open_store


def test_the_file_of_history_is_read_once_and_again_when_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a large one holds up all answers, and learning is anew at each run that comes."""
    path, reads, read_history = tmp_path / "h.json", [], learner.read_history
    monkeypatch.setattr(learner, "read_history", lambda each: (reads.append(each), read_history(each))[1])
    settings = LearningSettings(history="observe", history_file=str(path))
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        for number in (1, 2):
            write_history(History(runs=number), path)
            os.utime(path, ns=(number, number))
            for now_s in (10.0, 20.0):
                assert learner.learn_from_store(store, settings, now_s).history == History(runs=number)
    assert reads == [path, path]
