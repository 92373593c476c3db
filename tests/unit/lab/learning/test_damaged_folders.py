"""A data folder from which files are missing, or in which they are not whole: one sentence that names what to do."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import gpusage_lab
from gpusage.cli import main
from gpusage.experience.profile_rows import COLUMNS as PROFILE_COLUMNS
from gpusage_hooks.errors import RequestError
from gpusage_lab.learning.profiled import profiled
from gpusage_lab.learning.splits import check_enough
from gpusage_lab.measurements.tables import COLUMNS, DataFolder
from measurements import write_measurements

pytest.importorskip("sklearn")

ROOMS = ("learning", "measurements", "networks", "published", "zoo")
FILE, PACKED = "timm_benchmark.csv", "neusight_ops.csv.gz"


def text_of(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()


def write(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def emptied(path: Path) -> None:
    write(path, "")


def header_alone(path: Path) -> None:
    write(path, text_of(path).splitlines()[0] + "\n")


def of_another_source(path: Path) -> None:
    write(path, "gpu,seconds\nv100,1\n")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-12])


def overwritten(path: Path) -> None:
    path.write_bytes(b"\x80\x04\xff\x00" * 100)


DAMAGES = [
    pytest.param(emptied, "one that cannot be read (", id="emptied"),
    pytest.param(header_alone, "one without rows.", id="header alone"),
    pytest.param(of_another_source, "one without the columns ", id="of another source"),
    pytest.param(overwritten, "one that cannot be read (", id="overwritten"),
]


@pytest.mark.parametrize("file", [FILE, PACKED])
@pytest.mark.parametrize(
    ("damage", "expected"), [*DAMAGES, pytest.param(cut, ("one that stops", "one that cannot be read ("), id="cut")]
)
def test_a_file_that_is_not_whole_is_named_with_what_was_found(
    tmp_path: Path, file: str, damage: Callable[[Path], None], expected: str | tuple[str, ...]
) -> None:
    data = DataFolder(write_measurements(tmp_path))
    damage(tmp_path / file)
    with pytest.raises(RequestError) as refusal:
        data.read(file)
    rule, _, rest = str(refusal.value).partition(" must be the whole table that SOURCES.md describes; got ")
    assert rule == f"File '{tmp_path / file}'"
    assert rest.startswith(expected)
    assert rest.endswith(". Copy it again.")


def test_a_file_is_whole_with_columns_beside_those_that_are_read(tmp_path: Path) -> None:
    header = ",".join(sorted(COLUMNS["timm_static_features.csv"]))
    (tmp_path / "timm_static_features.csv").write_text(f"{header},mine\n1,2,3\n")
    assert DataFolder(tmp_path).read("timm_static_features.csv")["mine"].tolist() == [3]


def test_the_columns_of_every_file_that_is_read_are_known_and_each_of_them_is_read() -> None:
    rooms = [Path(gpusage_lab.__path__[0]) / room for room in ROOMS]
    sources = [path for room in rooms for path in room.glob("*.py") if path.name != "columns.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    assert set(re.findall(r"\"(\w+\.csv(?:\.gz)?)\"", text)) == COLUMNS.keys()
    words = set(re.findall(r"\w+", text))
    assert {column for columns in COLUMNS.values() for column in columns} <= words


def refusal(*arguments: str | Path) -> str:
    """The one sentence of a command that ends because of its input."""
    result = CliRunner().invoke(main, [str(word) for word in arguments])
    assert result.exit_code == 1, result.output
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["train", "evaluate"])
@pytest.mark.parametrize("target", ["step_time", "memory", "activity", "colocation", "slowdown"])
def test_each_target_says_what_an_empty_folder_lacks(tmp_path: Path, command: str, target: str) -> None:
    output = ("--output", tmp_path / "made") if command == "train" else ()
    sentence = refusal(command, "--data", tmp_path, "--target", target, *output)
    lacking = r"Data folder '.*' must have the file \w+\.csv(?:\.gz)?; got none\. Name"
    wanted = f"{lacking}|Measurements must be of at least 2 kinds"
    assert re.match(f"gpusage: error: ({wanted})", sentence)
    assert not list(tmp_path.rglob("*.*"))


def test_an_output_that_cannot_be_written_is_told_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    output = tmp_path / "file" / "made"
    sentence = refusal("train", "--data", tmp_path, "--output", output)
    assert sentence.startswith(f"gpusage: error: Folder '{output}' must be writable; got: ")
    assert sentence.endswith(". Name another with --output.")


@pytest.mark.parametrize(
    ("file", "target", "groups"),
    [
        ("gpumemnet_timm_memory.csv", "memory", "families, with usable rows, so"),
        ("gpumemnet_cnn.csv", "activity", "kinds of network, with 13 usable rows each, so"),
        ("gavel_pairs.csv", "colocation", "models, with usable rows, so"),
    ],
)
def test_rows_too_few_to_leave_a_group_out_are_refused_before_anything_is_fitted(
    tmp_path: Path, file: str, target: str, groups: str
) -> None:
    path = write_measurements(tmp_path) / file
    write(path, "".join(line + "\n" for line in path.read_text().splitlines()[:2]))
    sentence = refusal("train", "--data", tmp_path, "--target", target, "--output", tmp_path / "made")
    assert f"Measurements must be of at least 2 {groups} that one can be left out; got " in sentence


def test_a_group_counts_where_it_has_rows_enough() -> None:
    check_enough(["a", "b", "b"], "letters")
    with pytest.raises(RequestError, match=r"at least 2 letters, with 2 usable rows each, so .*; got 1"):
        check_enough(["a", "b", "b"], "letters", least_rows=2)


HEADER, ROW = (
    ",".join(PROFILE_COLUMNS),
    {"device": "cuda", "status": "ok", "gpu": "v100", "model": "torchvision:resnet50"},
)
"""A row of a model that the zoo has; every other value is no number."""
NO_NUMBERS = ",".join(ROW.get(name, "" if name == "shape" else "x") for name in PROFILE_COLUMNS)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"\x80\x04\xff", "what cannot be read ('utf-8' codec", id="not text"),
        pytest.param(b"model,ms\nresnet50,12\n", "other columns.", id="another table"),
        pytest.param(
            f"{HEADER}\n{NO_NUMBERS}\n".encode(),
            "what cannot be read (invalid literal for int() with base 10: 'x')",
            id="no numbers",
        ),
    ],
)
def test_a_table_of_gpusage_profile_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "profile" / "mine.csv"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(RequestError) as refusal:
        profiled(DataFolder(tmp_path))
    assert str(refusal.value).startswith(
        f"Table '{path}' must be one that 'gpusage profile' of this version wrote; got {expected}"
    )
