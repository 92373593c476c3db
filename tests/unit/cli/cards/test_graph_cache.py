from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.cli.cards.graph_cache import NOTICE_AFTER_S, read_graph
from gpusage.decisions.advisor import make_advisor
from gpusage.plugins.loading import make_hooks
from gpusage_hooks import samples
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph
from sites import announced

TINY = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 1,
    "n_head": 2,
    "n_embd": 16,
    "vocab_size": 64,
    "n_positions": 32,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face folder of a tiny model, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    return tmp_path / "model"


def cached_graphs(folder: Path) -> list[Path]:
    return sorted((folder.parent / "cache" / "gpusage" / "graphs").glob("*"))


def test_a_configuration_is_built_once_and_the_second_graph_is_the_same(folder: Path) -> None:
    pytest.importorskip("transformers")
    first = read_graph(make_advisor(), str(folder), {"seq": (16,)})
    (place,) = cached_graphs(folder)
    written_ns = place.stat().st_mtime_ns
    assert read_graph(make_advisor(), str(folder), {"seq": (16,)}) == first
    assert [path.stat().st_mtime_ns for path in cached_graphs(folder)] == [written_ns]


def test_a_name_is_built_once_at_a_length_without_a_card(folder: Path) -> None:
    pytest.importorskip("transformers")
    first = read_graph(make_advisor(), "hf:distilgpt2", {"seq": (48,)})
    (place,) = cached_graphs(folder)
    place.write_bytes(place.read_bytes().replace(b'"distilgpt2"', b'"from cache"'))
    assert first.name == "distilgpt2"
    assert read_graph(make_advisor(), "hf:distilgpt2", {"seq": (48,)}).name == "from cache"


def test_a_name_with_a_card_needs_no_cache(folder: Path) -> None:
    assert read_graph(make_advisor(), "hf:distilgpt2", {}).parameter_count > 0
    assert cached_graphs(folder) == []


def test_a_changed_configuration_and_another_shape_are_built_anew(folder: Path) -> None:
    pytest.importorskip("transformers")
    one = read_graph(make_advisor(), str(folder), {"seq": (16,)})
    (folder / "config.json").write_text(json.dumps({**TINY, "n_layer": 2}), encoding="utf-8")
    assert read_graph(make_advisor(), str(folder), {"seq": (16,)}).parameter_count > one.parameter_count
    read_graph(make_advisor(), str(folder), {"seq": (8,)})
    assert len(cached_graphs(folder)) == 3


def test_a_kept_graph_that_is_broken_is_built_anew(folder: Path) -> None:
    pytest.importorskip("transformers")
    first = read_graph(make_advisor(), str(folder), {})
    (place,) = cached_graphs(folder)
    place.write_bytes(b"{")
    assert read_graph(make_advisor(), str(folder), {}) == first


def test_nothing_is_kept_of_what_cannot_be_read(folder: Path) -> None:
    (folder / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(GraphError, match="model_type"):
        read_graph(make_advisor(), str(folder), {})
    assert cached_graphs(folder) == []


def test_a_configuration_that_is_a_pipe_keeps_nobody_waiting(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(GraphError):
        read_graph(make_advisor(), str(folder), {})


def test_on_a_terminal_what_takes_long_to_read_is_named_and_elsewhere_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plugin of the site waits until the line is there."""
    shown: list[bytes] = []
    threads: list[int] = []

    def read_model() -> ModelGraph:
        threads.append(threading.active_count())
        if sys.stderr.isatty():
            shown.append(screen.read(1000))
        return samples.graph()

    advisor = replace(make_advisor(), hooks=make_hooks([announced("slow", read_model=read_model)]))
    read_graph(advisor, "a.slow", {})
    assert capsys.readouterr() == ("", "")
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as stderr, os.fdopen(ours, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stderr", stderr)
        begun_s = time.monotonic()
        read_graph(advisor, "a.slow", {})
        assert time.monotonic() >= begun_s + NOTICE_AFTER_S
    assert shown == [b"Reading a.slow on shapes alone ...\r\n"]
    assert threads[1] == threads[0] + 1
