"""What the login node calls for each sbatch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import job_card as subject
from gpusage.cli.job_card import cache_folder, cache_key, card_of_comment, job_card
from gpusage.comment import parse_model
from gpusage.graphs.card import encode
from gpusage.graphs.trouble import decode_trouble
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_hooks.types import ModelGraph, Node

GRAPH = ModelGraph(
    name="tiny",
    source="tiny",
    nodes=(Node(op_type="Gemm", inputs=((-1, 8),), outputs=((-1, 4),), parameters=((4, 8),)),),
    producers=((-1,),),
    inputs=(("x", (-1, 8)),),
    parameter_count=32,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a file in the place of a model, whose card is in the cache already."""
    path = tmp_path / "r.onnx"
    path.write_bytes(b"not read")
    keep(tmp_path, f"model={path}")
    return path


def keep(tmp_path: Path, comment: str, card: str | None = None) -> Path:
    kept = tmp_path / "cards" / cache_key(parse_model(comment))
    kept.parent.mkdir(exist_ok=True)
    kept.write_text((card if card is not None else encode(GRAPH)) + "\n")
    return kept


def test_a_card_that_was_kept_needs_no_reading(tmp_path: Path, model: Path) -> None:
    assert card_of_comment(f"model={model},batch=64", tmp_path / "cards") == encode(GRAPH)


@pytest.mark.parametrize("comment", ["", "project=x", "gpusage=off", "model=r.onnx,gpusage=off"])
def test_a_comment_that_wants_no_card_gets_none(tmp_path: Path, comment: str) -> None:
    assert card_of_comment(comment, tmp_path) is None


def test_a_changed_model_is_read_anew(tmp_path: Path, model: Path) -> None:
    before = cache_key(parse_model(str(model)))
    model.write_bytes(b"longer than it was")
    longer = cache_key(parse_model(str(model)))
    os.utime(model, ns=(1, 1))
    assert len({before, longer, cache_key(parse_model(str(model)))}) == 3
    with pytest.raises(GpuUsageError):  # it is no ONNX file
        card_of_comment(f"model={model}", tmp_path / "cards")


def test_another_shape_is_another_card(model: Path) -> None:
    assert cache_key(parse_model(f"{model},shape=seq=128")) != cache_key(parse_model(f"{model},shape=seq=256"))
    assert cache_key(parse_model(f"{model},batch=1")) == cache_key(parse_model(f"{model},batch=64,mode=infer"))


def test_a_folder_counts_by_its_configuration(tmp_path: Path) -> None:
    configuration = tmp_path / "config.json"
    configuration.write_text("{}")
    before = cache_key(parse_model(f"model={tmp_path}"))
    configuration.write_text('{"a": 1}')
    assert cache_key(parse_model(f"model={tmp_path}")) != before


def test_a_relative_path_is_one_below_the_folder_of_the_submission(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cache_key(parse_model("r.onnx")) == cache_key(parse_model(str(model)))


@pytest.mark.parametrize("kept", ["", "\u00e9", "no card!", "A" * 20000, "AAAA\nBBBB"])
def test_a_damaged_entry_is_no_card(tmp_path: Path, model: Path, kept: str) -> None:
    keep(tmp_path, f"model={model}", kept)
    with pytest.raises(GpuUsageError):  # so the model is read, and is no ONNX file
        card_of_comment(f"model={model}", tmp_path / "cards")


def test_a_saved_card_is_read_and_kept_for_nobody_else_to_see(tmp_path: Path) -> None:
    from gpusage.graphs.card import write_file  # noqa: PLC0415 - only this test writes one

    saved = tmp_path / "tiny.card.json"
    write_file(GRAPH, saved)
    card = card_of_comment(f"model={saved}", tmp_path / "new" / "cards")
    assert card == encode(GRAPH)
    (kept,) = (tmp_path / "new" / "cards").iterdir()
    assert kept.read_text().strip() == card
    assert kept.stat().st_mode & 0o077 == 0


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert subject._keep(tmp_path / "file" / "cards" / "x", "QUJD") == "QUJD"


def test_the_command_prints_the_card_and_nothing_else(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "gpusage").mkdir()
    (tmp_path / "cards").rename(tmp_path / "gpusage" / "cards")
    done = CliRunner().invoke(job_card, [f"model={model}"])
    assert (done.exit_code, done.output) == (0, encode(GRAPH) + "\n")
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_malformed_comment_is_left_to_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = CliRunner().invoke(job_card, ["model=x,btch=1"])
    assert (done.exit_code, done.output) == (1, "")


def test_a_model_that_cannot_be_read_sends_the_reason_in_the_cards_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = CliRunner().invoke(job_card, ["model=/nowhere/r.onnx"])
    assert done.exit_code == 0
    assert "'/nowhere/r.onnx'" in str(decode_trouble(done.output.strip()))
    assert list(tmp_path.iterdir()) == []


def test_a_malformed_comment_is_an_error_for_those_who_ask_in_python() -> None:
    with pytest.raises(RequestError):
        card_of_comment("model=x,btch=1")


def test_the_cache_lies_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "gpusage" / "cards"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_folder() == tmp_path / ".cache" / "gpusage" / "cards"


def test_the_limit_ends_a_reader_that_hangs(tmp_path: Path) -> None:
    """A FIFO that nobody writes to would hang a reader for good; the process must be gone soon after the limit."""
    code = (
        "import time\nfrom gpusage.cli import job_card as subject\n"
        "subject._read_model = lambda wish: time.sleep(30)\nsubject.job_card()"
    )
    start_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, "--limit-s", "0.2", "model=r.onnx"],
        check=False,
        capture_output=True,
        text=True,
        timeout=20,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (-signal.SIGALRM, "")
    assert time.monotonic() - start_s < 10
