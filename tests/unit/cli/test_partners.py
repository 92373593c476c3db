"""`gpusage colocate TARGET --among FILE`: the best partner first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import main

EXAMPLES = Path(__file__).parents[3] / "examples"
TARGET = str(EXAMPLES / "models" / "resnet18.onnx") + ",batch=16"


def among(path: Path, *words: str) -> list[str]:
    return ["colocate", TARGET, "--among", str(path), "--gpu", "v100", *words]


def test_the_partner_with_which_most_work_is_done_comes_first() -> None:
    result = CliRunner().invoke(main, among(EXAMPLES / "candidates.txt", "--json"))
    partners = json.loads(result.stdout)["partners"]
    assert len(partners) == 4
    keys = [(not each["fits"], not each["recommended"], -each["throughput_sum"]["value"]) for each in partners]
    assert keys == sorted(keys)
    assert result.exit_code == (0 if partners[0]["recommended"] else 1)


def test_a_partner_does_what_colocate_says_of_the_pair() -> None:
    ranked = json.loads(CliRunner().invoke(main, among(EXAMPLES / "candidates.txt", "--json")).stdout)["partners"]
    dlrm = next(each for each in ranked if "dlrm" in each["model"])
    words = ["colocate", TARGET, str(EXAMPLES / "models" / "dlrm.onnx") + ",batch=8,mode=infer", "--gpu", "v100"]
    pair = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert dlrm["throughput_sum"] == pair["throughput_sum"]
    assert [dlrm["target"], dlrm["partner"]] == [job["normalised_throughput"] for job in pair["jobs"]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must have at least one model, one a line; got none."),
        ("# none\n\nabsent.onnx\n", "must be a model that can be read; got: "),
        (f"{'x' * 300}.onnx\n", "must be a model that can be read; got: "),
        ("resnet18.onnx,bacth=3\n", "must be a model that can be read; got: Key 'bacth'"),
    ],
)
def test_a_wrong_file_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "candidates.txt"
    file.write_text(text)
    result = CliRunner().invoke(main, among(file))
    assert result.exit_code == 1
    assert result.stderr.startswith("gpusage: error: ")
    assert sentence in result.stderr
    assert "3" in result.stderr or "absent" not in text  # the line's number


def test_more_than_one_target_is_a_wrong_command_line() -> None:
    words = ["colocate", TARGET, TARGET, "--among", str(EXAMPLES / "candidates.txt"), "--gpu", "v100"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert "Models with --among must be one, the target; got 2." in result.stderr


def test_a_file_that_is_not_there() -> None:
    result = CliRunner().invoke(main, among(EXAMPLES / "absent.txt"))
    assert result.exit_code == 1
    assert "must be a readable file; got: No such file or directory." in result.stderr
