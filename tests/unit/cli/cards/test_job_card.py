"""What the login node calls for each sbatch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage.cli.cards import cache
from gpusage.cli.cards import job_card as subject
from gpusage.cli.cards.cache import user_cache
from gpusage.cli.cards.job_card import cache_key, card_of, job_card
from gpusage.graphs.card.error import decode_error
from gpusage.graphs.card.text import encode
from gpusage_hooks.comment import parse_model
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import ModelGraph, Node
from waiting import LIMIT_S, wait_until

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
    write_atomically(tmp_path, f"model={path}")
    return path


def write_atomically(tmp_path: Path, comment: str, card: str | None = None) -> Path:
    entry = tmp_path / "cards" / cache_key(parse_model(comment))
    entry.parent.mkdir(exist_ok=True)
    entry.write_text((card if card is not None else encode(GRAPH)) + "\n")
    return entry


def test_a_card_that_was_kept_needs_no_reading(tmp_path: Path, model: Path) -> None:
    assert card_of(parse_model(f"model={model},batch=64"), tmp_path / "cards") == encode(GRAPH)


@pytest.mark.parametrize("comment", ["", "project=x", "gpusage=off", "model=r.onnx,gpusage=off"])
def test_a_comment_that_wants_no_card_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comment: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = CliRunner().invoke(job_card, [comment])
    assert (done.exit_code, done.output) == (0, "")


def test_a_changed_model_is_read_anew(tmp_path: Path, model: Path) -> None:
    before = cache_key(parse_model(str(model)))
    model.write_bytes(b"longer than it was")
    longer = cache_key(parse_model(str(model)))
    os.utime(model, ns=(1, 1))
    assert len({before, longer, cache_key(parse_model(str(model)))}) == 3
    with pytest.raises(GpuUsageError):  # it is no ONNX file
        card_of(parse_model(f"model={model}"), tmp_path / "cards")


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


@pytest.mark.parametrize("expected", ["", "\u00e9", "no card!", "A" * 20000, "AAAA\nBBBB"])
def test_a_damaged_entry_is_no_card(tmp_path: Path, model: Path, expected: str) -> None:
    write_atomically(tmp_path, f"model={model}", expected)
    with pytest.raises(GpuUsageError):  # so the model is read, and is no ONNX file
        card_of(parse_model(f"model={model}"), tmp_path / "cards")


def test_a_saved_card_is_read_and_kept_for_nobody_else_to_see(tmp_path: Path) -> None:
    from gpusage.graphs.card.text import write_file  # only this test writes one

    saved = tmp_path / "tiny.card.json"
    write_file(GRAPH, saved)
    card = card_of(parse_model(f"model={saved}"), tmp_path / "new" / "cards")
    assert card == encode(GRAPH)
    (entry,) = (tmp_path / "new" / "cards").iterdir()
    assert entry.read_text().strip() == card
    assert entry.stat().st_mode & 0o077 == 0


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    entry = tmp_path / "file" / "cards" / "x"
    cache.write_atomically(entry, b"QUJD")
    assert not entry.exists()


def test_the_command_prints_the_card_and_nothing_else(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "gpusage").mkdir()
    (tmp_path / "cards").rename(tmp_path / "gpusage" / "cards")
    done = CliRunner().invoke(job_card, [f"model={model}"])
    assert (done.exit_code, done.output) == (0, encode(GRAPH) + "\n")


def test_a_malformed_comment_is_left_to_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = CliRunner().invoke(job_card, ["model=x,btch=1"])
    assert (done.exit_code, done.output) == (0, "")


def test_a_model_that_cannot_be_read_sends_the_reason_in_the_cards_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = CliRunner().invoke(job_card, ["model=/nowhere/r.onnx"])
    assert done.exit_code == 0
    assert "'/nowhere/r.onnx'" in str(decode_error(done.output.strip()))
    assert list(tmp_path.iterdir()) == []


def test_the_cache_lies_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert user_cache() / "cards" == tmp_path / ".cache" / "gpusage" / "cards"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert user_cache() / "cards" == tmp_path / ".cache" / "gpusage" / "cards"


def test_a_site_may_keep_cards_for_all_of_its_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpusage.graphs.card.text import write_file

    saved = tmp_path / "tiny.card.json"
    write_file(GRAPH, saved)
    site = tmp_path / "etc" / "site"
    earlier = os.umask(0o077)  # as root's may be
    done = CliRunner().invoke(job_card, ["--keep-in", str(site), f"model={saved}"])
    os.umask(earlier)
    assert done.output == encode(GRAPH) + "\n"
    (entry,) = site.iterdir()
    assert [path.stat().st_mode & 0o777 for path in (entry, site, site.parent)] == [0o644, 0o755, 0o755]
    monkeypatch.setattr(subject, "SITE_FOLDER", site)
    monkeypatch.setattr(subject, "_read_model", lambda _: pytest.fail("it was kept"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    assert CliRunner().invoke(job_card, [f"model={saved}"]).output == encode(GRAPH) + "\n"


@pytest.mark.parametrize(
    ("model", "folder", "expected"),
    [
        ("/nowhere/r.onnx", "site", "/nowhere/r.onnx"),
        ("", "site", "model"),
        ("{}", "file/cards", "must be one that cards can be written to"),
        ("{}", "private", "must be readable by all users"),
    ],
)
def test_a_card_that_cannot_be_kept_for_all_is_told_in_a_sentence(
    tmp_path: Path, model: str, folder: str, expected: str
) -> None:
    from gpusage.graphs.card.text import write_file

    saved = tmp_path / "tiny.card.json"
    write_file(GRAPH, saved)
    (tmp_path / "file").touch()
    (tmp_path / "private").mkdir(mode=0o700)
    comment = f"model={model.format(saved)}"
    done = CliRunner().invoke(main, ["job-card", "--keep-in", str(tmp_path / folder), comment])
    assert done.exit_code == 1
    assert expected in done.output
    assert "Traceback" not in done.output


def test_the_start_of_python_counts_as_waiting(slow: Slow) -> None:
    """On a busy login node it alone may take long; the model is read all the same, for the second submission."""
    slow.environment["PYTHONSTARTUP_S"] = "6"
    start_s = time.monotonic()
    assert "takes longer than 7 s" in slow.card("r", limit_s=7)
    assert time.monotonic() - start_s < 6 + 7
    slow.release_readers()
    wait_until(lambda: slow.card("r", limit_s=15) == "QUJD")


SLOW = """
import os, time
time.sleep(float(os.environ.pop("PYTHONSTARTUP_S", "0")))
from pathlib import Path
from gpusage.cli.cards import job_card as subject
from gpusage_hooks.errors import GraphError

def read(wish):
    with open(os.environ["READS"], "a") as reads:
        reads.write(wish.model + "\\n")
    while not Path(os.environ["READS"] + ".go").exists():
        time.sleep(0.01)
    if "bad" in wish.model:
        raise GraphError("Model is bad.")
    return "QUJD"

subject.BACKGROUND_S = int(os.environ.get("BACKGROUND_S", "60"))
subject._read_model = read
subject.job_card()
"""


class Slow:
    """`gpusage job-card` with a reader that takes until it is let go."""

    def __init__(self, folder: Path) -> None:
        self.reads = folder / "reads"
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "READS": str(self.reads)}

    def card(self, model: str, limit_s: float = 0.3) -> str:
        """Return what it prints, a reason in words."""
        command = [sys.executable, "-c", SLOW, "--limit-s", str(limit_s), f"model={model}"]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=LIMIT_S, env=self.environment
        )  # it returns only when nobody holds its output any more: the child in the background does not
        assert done.stderr == ""
        return decode_error(done.stdout.strip()) or done.stdout.strip()

    def release_readers(self) -> None:
        """Let every reader end."""
        self.reads.with_name("reads.go").touch()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    """Return the slow reader; nothing of it is left behind."""
    slow = Slow(tmp_path)
    yield slow
    slow.release_readers()


def test_a_model_that_takes_too_long_is_read_on_and_the_second_submission_has_its_card(slow: Slow) -> None:
    start_s = time.monotonic()
    assert slow.card("r") == (
        "describing the model takes longer than 0.3 s, this site's limit; it continues in the background, "
        "so submit again in a moment"
    )
    assert time.monotonic() - start_s < 60
    slow.release_readers()
    wait_until(lambda: slow.card("r") == "QUJD")
    assert slow.reads.read_text() == "r\n"


def test_while_a_model_is_being_read_nobody_reads_it_again_or_waits_for_it(slow: Slow) -> None:
    slow.card("r")
    time.sleep(0.3)
    start_s = time.monotonic()
    assert "it continues in the background" in slow.card("r")
    assert time.monotonic() - start_s < 60
    assert slow.reads.read_text() == "r\n"


def test_a_user_has_one_reader_in_the_background(slow: Slow) -> None:
    slow.card("r")
    assert "another model is being read in the background" in slow.card("s", limit_s=2)
    slow.release_readers()
    wait_until(lambda: slow.card("s") == "QUJD")
    assert slow.reads.read_text() == "r\ns\ns\n"


def test_a_failure_that_came_too_late_is_remembered_for_a_while(slow: Slow, tmp_path: Path) -> None:
    slow.card("bad")
    slow.release_readers()
    wait_until(lambda: slow.card("bad") == "Model is bad.")
    assert slow.card("bad") == "Model is bad."
    assert slow.reads.read_text() == "bad\n"
    (note,) = (tmp_path / "gpusage" / "cards").glob("*.note")
    os.utime(note, (1, 1))
    assert slow.card("bad", limit_s=15) == "Model is bad."
    assert slow.reads.read_text() == "bad\nbad\n"


def test_a_failure_in_time_is_not_remembered(slow: Slow, tmp_path: Path) -> None:
    slow.release_readers()
    assert [slow.card("bad", limit_s=15) for _ in range(2)] == ["Model is bad."] * 2
    assert slow.reads.read_text() == "bad\nbad\n"
    assert list((tmp_path / "gpusage" / "cards").glob("*.note")) == []


def test_a_reader_in_the_background_ends_in_any_case(slow: Slow) -> None:
    """A FIFO that nobody writes to would hang it for good."""
    slow.environment["BACKGROUND_S"] = "1"
    slow.card("r")
    wait_until(lambda: "was ended after" in slow.card("r"))


def test_without_a_place_to_keep_anything_a_model_is_read_all_the_same(slow: Slow, tmp_path: Path) -> None:
    (tmp_path / "gpusage").write_text("in the way")
    slow.release_readers()
    assert slow.card("r", limit_s=15) == "QUJD"


def test_where_nothing_can_be_kept_nothing_goes_on_in_the_background(slow: Slow, tmp_path: Path) -> None:
    """Six submissions left six readers behind, and nobody ever got what they made."""
    (tmp_path / "gpusage").write_text("in the way")
    assert slow.card("r").endswith(f"{tmp_path}/gpusage/cards must be a folder that you own and may write")
    pattern = f"READS={slow.reads}\0".encode()
    wait_until(lambda: not any(pattern in environment_of(process) for process in Path("/proc").glob("[0-9]*")))


def environment_of(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:  # ended, or another user's
        return b""


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to])
def test_a_planted_note_costs_no_file_of_the_user(
    slow: Slow, tmp_path: Path, plant: Callable[[Path, Path], object]
) -> None:
    """Whoever may write in a shared cache made a note's name lead to a file of the user's, and that was overwritten."""
    precious = tmp_path / "thesis.tex"
    precious.write_text("three years of work")
    os.utime(precious, (1, 1))
    slow.release_readers()
    note = tmp_path / "gpusage" / "cards" / (cache_key(parse_model("model=bad")) + ".note")
    note.parent.mkdir(parents=True)
    plant(note, precious)
    assert slow.card("bad", limit_s=15) == "Model is bad."
    assert precious.read_text() == "three years of work"


def test_only_a_reason_is_taken_from_a_note(slow: Slow, tmp_path: Path) -> None:
    """A card comes from where cards are kept."""
    slow.release_readers()
    note = tmp_path / "gpusage" / "cards" / (cache_key(parse_model("model=r")) + ".note")
    note.parent.mkdir(parents=True)
    note.write_text("PLANTED==")
    assert slow.card("r", limit_s=15) == "QUJD"
