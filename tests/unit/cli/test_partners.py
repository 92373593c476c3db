"""`gpusage colocate TARGET --among FILE`: the best partner first."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import decisions, main
from gpusage.store.opening import open_store
from gpusage_hooks.types import AnnotatedJob
from records import NEED, RECORD, annotation_of_record

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
        ("", "must have at least one model, one per line; got none."),
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
    assert "Models with --among, --running or --queue must be one, the target; got 2." in result.stderr


def test_a_file_that_is_not_there() -> None:
    result = CliRunner().invoke(main, among(EXAMPLES / "absent.txt"))
    assert result.exit_code == 1
    assert "must be a readable file; got: No such file or directory." in result.stderr


RECORDED = replace(RECORD, number="69215f4a0c3e")
OF_A100 = replace(RECORDED.decision, need=replace(NEED, gpu="a100-sxm4-80gb"))
JOBS = [
    AnnotatedJob(job_id="7", manager="slurm", user="ada", state="running", mark=str(annotation_of_record(RECORDED))),
    AnnotatedJob(job_id="8", manager="slurm", user="bob", state="waiting", mark=str(annotation_of_record(RECORDED))),
    AnnotatedJob(job_id="9", manager="slurm", user="bob", state="running"),
    AnnotatedJob(
        job_id="10", manager="slurm", user="eve", state="running", mark="gpusage 69215f4a0c3f KEEP gres/gpu:1"
    ),
]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return an empty store; the only manager shows `JOBS` to the caller."""
    (tmp_path / "c.toml").write_text(f'[store]\nurl = "sqlite:///{tmp_path}/d.db"\n')
    monkeypatch.setenv("GPUSAGE_CONFIG", str(tmp_path / "c.toml"))
    monkeypatch.setattr(decisions, "_managed_jobs", lambda **_: JOBS)
    return tmp_path / "d.db"


@pytest.mark.parametrize(("option", "job", "user"), [("--running", "7", "ada"), ("--queue", "8", "bob")])
def test_jobs_are_ranked_by_the_need_that_was_recorded(store: Path, option: str, job: str, user: str) -> None:
    """One has no mark, and one's need is of another GPU, which is said: they are left out."""
    with closing(open_store(f"sqlite:///{store}")) as opened:
        opened.record_all([RECORDED, replace(RECORDED, number="69215f4a0c3f", decision=OF_A100)])
    result = CliRunner().invoke(main, ["colocate", TARGET, option, "--gpu", "v100", "--json"])
    ranked = json.loads(result.stdout)
    (partner,) = ranked["partners"]
    assert (partner["job_id"], partner["user"], partner["model"]) == (job, user, "resnet50.onnx")
    other = {"job_id": "10", "user": "eve", "why": "predicted for a100-sxm4-80gb"}
    assert ranked["left_out"] == [other] * (option == "--running")
    assert 0 < partner["partner"]["value"] <= 1
    shown = CliRunner().invoke(main, ["colocate", TARGET, option, "--gpu", "v100"], env={"COLUMNS": "200"})
    assert f"job {job} of {user}: resnet50.onnx" in shown.stdout
    assert ("1 job is left out, with no prediction for v100" in shown.stdout) == (option == "--running")


def test_jobs_without_a_prediction_for_the_gpu_are_counted(store: Path) -> None:
    """They were left out without a word, as if nobody ran."""
    with closing(open_store(f"sqlite:///{store}")) as opened:
        opened.record(replace(RECORDED, decision=OF_A100))
    shown = CliRunner().invoke(main, ["colocate", TARGET, "--running", "--gpu", "v100"], env={"COLUMNS": "200"})
    reasons = "1 predicted for a100-sxm4-80gb, 1 with no record that you may read."
    assert f"2 jobs are left out, with no prediction for v100-sxm2-16gb in the store: {reasons}" in shown.stdout
    assert shown.exit_code == 1


@pytest.mark.usefixtures("store")
def test_without_a_record_that_the_caller_may_read_there_is_one_sentence() -> None:
    result = CliRunner().invoke(main, ["colocate", TARGET, "--running", "--gpu", "v100"])
    assert result.exit_code == 1
    assert "must have records that you may read; of 2 none has. Run this as root or as" in result.stderr


def test_one_kind_of_candidates_at_a_time() -> None:
    for words in (("--among", "x", "--queue"), ("--queue", "--running")):
        result = CliRunner().invoke(main, ["colocate", TARGET, *words, "--gpu", "v100"])
        assert result.exit_code == 2
        assert "must not be combined; got both. Leave one out." in result.stderr
