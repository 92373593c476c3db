"""Predictions, co-location and cards on the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import gpusage
from gpusage.cli import main
from gpusage.cli.predicting import need_table
from gpusage.decisions.advisor import advisor
from gpusage.graphs.card.text import decode
from gpusage_hooks.types import Interval, Workload

MODELS = Path(__file__).parents[4] / "examples" / "models"
RESNET, LSTM = str(MODELS / "resnet18.onnx"), str(MODELS / "lstm_lm.onnx")


def test_without_a_gpu_one_of_each_generation_of_nvidia_is_predicted_oldest_first() -> None:
    (prediction,) = _json("predict", RESNET)["predictions"]
    gpus = {row["name"]: row for row in _json("gpus")["gpus"]}
    rows = [gpus[need["gpu"]] for need in prediction["needs"]]
    of_nvidia = {row["generation"] for row in gpus.values() if row["vendor"] == "nvidia"}
    assert {row["generation"] for row in rows} == of_nvidia
    assert len(rows) == len({row["generation"] for row in rows})
    assert [row["launch_year"] for row in rows] == sorted(row["launch_year"] for row in rows)


def test_the_speedup_is_against_the_first_gpu_asked_for() -> None:
    (prediction,) = _json("predict", RESNET, "--gpu", "h100", "--gpu", "v100")["predictions"]
    hopper, volta = prediction["needs"]
    assert hopper["speedup"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    ratio = hopper["step_time_s"]["value"] / volta["step_time_s"]["value"]
    assert volta["speedup"]["value"] == pytest.approx(ratio, rel=1e-4)  # both were rounded
    assert _json("predict", RESNET, "--gpu", "h100,v100")["predictions"] == [prediction]


def test_the_command_and_the_python_api_say_the_same() -> None:
    (prediction,) = _json("predict", RESNET, "--batch", "32", "--mode", "infer", "--gpu", "a100")["predictions"]
    need = gpusage.predict(gpusage.read_model(RESNET), gpu="a100", batch_size=32, mode="infer")
    assert prediction["needs"][0]["step_time_s"]["value"] == pytest.approx(need.step_time_s.value, rel=1e-5)
    assert prediction["needs"][0]["memory_bytes"]["high"] == pytest.approx(need.memory_bytes.high, rel=1e-5)


def test_each_model_is_run_as_its_own_word_says() -> None:
    predictions = _json("predict", f"{RESNET},batch=4,precision=bf16", RESNET, "--batch", "8", "--gpu", "t4")[
        "predictions"
    ]
    assert [(one["workload"]["batch_size"], one["workload"]["precision"]) for one in predictions] == [
        (4, "bf16"),
        (8, "fp32"),
    ]


def test_a_gpu_that_does_not_exist_is_told_with_the_nearest() -> None:
    result = CliRunner().invoke(main, ["predict", RESNET, "--gpu", "v1000"])
    assert result.exit_code == 1
    assert result.stderr.startswith("gpusage: error: GPU 'v1000' must be a name of the catalogue")
    assert "Did you mean 'v100" in result.stderr


def test_a_model_that_does_not_fit_is_said_not_to() -> None:
    result = CliRunner().invoke(main, ["predict", RESNET, "--batch", "100000", "--gpu", "p4", "--json"])
    assert json.loads(result.stdout)["predictions"][0]["needs"][0]["fits"] is False
    assert result.exit_code == 0  # the question was answered


def test_jobs_that_do_not_fit_together_are_not_recommended_and_the_status_says_so() -> None:
    result = CliRunner().invoke(main, ["colocate", RESNET, RESNET, "--batch", "100000", "--gpu", "p4", "--json"])
    document = json.loads(result.stdout)
    assert (document["fits"], document["recommended"]) == (False, False)
    assert result.exit_code == 1
    words = CliRunner().invoke(main, ["colocate", RESNET, RESNET, "--batch", "100000", "--gpu", "p4"]).stdout
    assert words.endswith("Their memory does not fit on one GPU.\nSharing is not recommended.\n")


def test_a_card_decodes_to_the_graph_of_the_file() -> None:
    (card,) = _json("card", RESNET)["cards"]
    assert len(card["card"]) == card["byte_count"] <= 4096
    assert decode(card["card"]).nodes == gpusage.read_model(RESNET).nodes


def test_a_saved_card_predicts_what_the_file_does(tmp_path: Path) -> None:
    saved = tmp_path / "resnet18.card.json"
    assert CliRunner().invoke(main, ["card", RESNET, "-o", str(saved)]).exit_code == 0
    (of_card,) = _json("predict", str(saved), "--batch", "16", "--gpu", "v100")["predictions"]
    (of_file,) = _json("predict", RESNET, "--batch", "16", "--gpu", "v100")["predictions"]
    assert of_card["needs"] == of_file["needs"]


def test_several_cards_go_into_a_folder(tmp_path: Path) -> None:
    assert CliRunner().invoke(main, ["card", RESNET, LSTM, "-o", str(tmp_path)]).exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lstm_lm.card.json", "resnet18.card.json"]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ([RESNET, LSTM, "-o", "both.card.json"], "must be a folder where there are several models"),
        ([RESNET, "-o", "resnet.json"], "must end with '.card.json'"),
    ],
)
def test_a_card_is_not_saved_where_it_would_not_be_found(words: list[str], rule: str) -> None:
    result = CliRunner().invoke(main, ["card", *words])
    assert result.exit_code == 2
    assert rule in result.stderr


def _json(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*words, "--json"])
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_what_is_known_of_a_run_counts_without_a_share() -> None:
    word, option = f"{RESNET},batch=8,utilization=60@32", [RESNET, "--batch", "8", "--utilization", "60@32"]
    (of_word,), (of_option,) = (_json("predict", *one, "--gpu", "v100")["predictions"] for one in ([word], option))
    assert of_option["needs"] == of_word["needs"]
    assert any("known from what you said of batch 32" in note for note in of_option["needs"][0]["notes"])


def test_shares_are_of_gpus_whose_threads_mps_can_divide() -> None:
    (prediction,) = _json("predict", RESNET, "--share", "50")["predictions"]
    assert {"k80", "p100-pcie-16gb"}.isdisjoint(need["gpu"] for need in prediction["needs"])
    for name, why in (("k80", "older than Volta"), ("mi100", "not of Nvidia")):
        result = CliRunner().invoke(main, ["predict", RESNET, "--share", "50", "--gpu", name])
        assert (result.exit_code, why in result.stderr) == (1, True)


def test_a_share_that_is_too_small_says_what_it_has_and_what_the_job_must_have() -> None:
    (prediction,) = _json("predict", RESNET, "--batch", "128", "--gpu", "v100", "--share", "25")["predictions"]
    (need,) = prediction["needs"]
    assert not need["fits"]
    assert need["notes"][-1].startswith("A share of 25 % of v100-sxm2-16gb may use 3.8 GiB; this job must have ")


def test_a_share_that_fits_only_behind_a_wall_says_so() -> None:
    """Under a cap, a program sees a free GPU and takes what libraries take there."""
    (prediction,) = _json("predict", RESNET, "--batch", "128", "--gpu", "a100", "--share", "25")["predictions"]
    (need,) = prediction["needs"]
    assert need["fits"]
    assert need["share_memory_bytes"] < 9.6 * 2**30 < need["memory_bytes"]["high"]
    assert need["notes"][-1].endswith("of a free GPU, so it fits only behind a wall.")


def test_no_run_takes_more_memory_than_the_gpu_has() -> None:
    (prediction,) = _json("predict", RESNET, "--max-batch", "--gpu", "h100")["predictions"]
    (need,) = prediction["needs"]
    (row,) = (row for row in _json("gpus")["gpus"] if row["name"] == need["gpu"])
    assert need["memory_bytes"]["high"] <= row["memory_bytes"] * (1 + 1e-5)
    (prediction,) = _json("predict", RESNET, "--batch", "100000", "--gpu", "h100")["predictions"]
    (need,) = prediction["needs"]
    assert not need["fits"]
    assert need["memory_bytes"]["value"] == need["required_memory_bytes"]["value"]


def test_a_share_is_shown_with_what_it_costs_beside_the_whole_gpu() -> None:
    (prediction,) = _json("predict", RESNET, "--batch", "64", "--gpu", "v100", "--share", "100", "--share", "50")[
        "predictions"
    ]
    whole, half = prediction["needs"]
    assert (whole["share_percent"], half["share_percent"]) == (100, 50)
    assert whole["slowdown"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert half["step_time_s"]["value"] == pytest.approx(
        whole["step_time_s"]["value"] * half["slowdown"]["value"], rel=1e-4
    )  # each was rounded
    assert half["speedup"]["value"] == pytest.approx(1 / half["slowdown"]["value"], rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--share", "50", "--utilization", "0"], "must be percent above 0, at most 100; got '0'."),
        (["--share", "50", "--utilization", "60@x"], "must have a batch size after '@'; got '60@x'."),
        (["--batch", "8,16", "--step-time", "9ms@v100"], "must say of which of several batches it is"),
        (["--max-batch", "--step-time", "9ms@v100"], "must say of which of several batches it is"),
        (["--step-time", "9ms@v9"], "GPU 'v9' must be a name of the catalogue"),
        (
            ["--share", "50", "--step-time", "9ms"],
            "must name the GPU that it was measured on; got '9ms'. Write 'step_time=30ms@a100'.",
        ),
    ],
)
def test_what_is_known_of_a_job_and_cannot_be_used_is_refused(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, ["predict", RESNET, *arguments])
    assert result.exit_code in (1, 2)
    assert sentence in result.stderr


def test_a_step_that_is_known_on_a_gpu_which_is_not_asked_for_moves_those_that_are() -> None:
    words = ["predict", RESNET, "--batch", "32", "--gpu", "a100", "--json"]
    usual, known = (
        json.loads(CliRunner().invoke(main, [*words, *more]).stdout)["predictions"][0]["needs"][0]
        for more in ([], ["--step-time", "15ms@v100"])
    )
    assert known["step_time_s"]["value"] < 0.6 * usual["step_time_s"]["value"]
    assert "The step time is known from the step on v100-sxm2-16gb" in " ".join(known["notes"])


def test_several_batches_are_one_table_and_one_prediction_each() -> None:
    words = ["predict", RESNET, f"{LSTM},batch=4", "--batch", "8,16,8", "--gpu", "v100", "--gpu", "t4"]
    predictions = _json(*words)["predictions"]
    # a word's own batch counts
    assert [one["workload"]["batch_size"] for one in predictions] == [8, 16, 4]
    assert predictions[1] == _json("predict", RESNET, "--batch", "16", "--gpu", "v100", "--gpu", "t4")["predictions"][0]
    lines = CliRunner().invoke(main, words).stdout.splitlines()
    batches = [line.split()[1] for line in lines if line.startswith(("v100-sxm2", "t4"))]
    assert batches[:4] == ["8", "8", "16", "16"]
    assert sum(line.startswith("GPU ") for line in lines) == 2


def test_the_largest_batch_of_each_gpu_fits_and_the_next_does_not() -> None:
    predictions = _json("predict", f"{RESNET},batch=3", "--max-batch", "--gpu", "v100", "--gpu", "h100")["predictions"]
    for one in predictions:
        (need,) = one["needs"]
        largest = one["workload"]["batch_size"]
        (beyond,) = _json("predict", RESNET, "--batch", str(largest + 1), "--gpu", need["gpu"])["predictions"]
        assert (need["fits"], beyond["needs"][0]["fits"]) == (True, False)
    volta, hopper = (one["needs"][0] for one in predictions)
    rates = [need["throughput_samples_per_s"]["value"] for need in (volta, hopper)]
    assert volta["speedup"]["value"] == 1.0
    assert hopper["speedup"]["value"] == pytest.approx(rates[1] / rates[0], rel=1e-4)


@pytest.mark.parametrize(("batch", "status"), [("1", 0), ("1,100000", 1)])
def test_the_status_says_that_something_does_not_fit_where_that_is_asked(batch: str, status: int) -> None:
    result = CliRunner().invoke(main, ["predict", RESNET, "--batch", batch, "--gpu", "p4", "--fail-if-not-fits"])
    assert (result.exit_code, result.stderr) == (status, "")


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["--batch", "8,x"], "Invalid value for '--batch'"),
        (["--batch", "8,"], "Invalid value for '--batch'"),
        (["--batch", "8", "--max-batch"], "Option --max-batch looks for the batch itself"),
        (["--max-batch", "--steps", "10"], "Option --steps counts steps of one batch"),
        (["--batch", "8,16", "--steps", "10"], "Option --steps counts steps of one batch"),
    ],
)
def test_batches_that_are_none_are_refused(words: list[str], rule: str) -> None:
    result = CliRunner().invoke(main, ["predict", RESNET, *words])
    assert result.exit_code == 2
    assert rule in result.stderr


def test_each_batch_is_explained_under_its_name(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["--batch", "8,16", "--gpu", "v100", "--explain", "-o", str(page)]
    result = CliRunner().invoke(main, ["predict", RESNET, *words])
    assert all(f", batch {batch}</a>" in page.read_text() for batch in (8, 16))
    assert [line for line in result.stdout.splitlines() if line.startswith("Batch ")] == ["Batch 8.", "Batch 16."]


def test_other_words_mean_the_usual_ones_and_capitals_do_not_matter() -> None:
    output = ["--precision", "Float16", "--mode", "inference"]
    in_a_word = f"{RESNET},precision=HALF,mode=Infer"
    usual = _json("predict", RESNET, "--precision", "fp16", "--mode", "infer", "--gpu", "a100")
    assert _json("predict", RESNET, *output, "--gpu", "a100") == usual
    assert _json("predict", in_a_word, "--gpu", "a100") == usual
    need = gpusage.predict(RESNET, gpu="a100", precision="float16", mode="inference")  # type: ignore[arg-type]
    assert need == gpusage.predict(RESNET, gpu="a100", precision="fp16", mode="infer")


def test_a_file_of_json_gets_what_json_prints(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    printed = _json("predict", RESNET, "--gpu", "a100", "-o", str(path))
    assert json.loads(path.read_text()) == printed


@pytest.mark.parametrize(
    ("word", "names"),
    [("resnet50", "timm:resnet50 or torchvision:resnet50"), ("GPT2", "hf:gpt2"), ("Qwen/Qwen3-8B", "hf:Qwen/Qwen3-8B")],
)
def test_a_name_without_its_library_is_told_with_it(word: str, names: str) -> None:
    result = CliRunner().invoke(main, ["predict", word])
    assert result.exit_code == 1
    assert f"got a name alone. Did you mean {names}?" in result.stderr


@pytest.mark.parametrize(
    ("value", "high", "percent", "word"),
    [
        (0.5, 0.9, 100, "yes"),
        (0.9, 1.1, 100, "tight"),
        (1.1, 1.2, 100, "no"),
        (0.4, 0.6, 50, "tight"),
        (0.5, 0.6, 50, "no"),
    ],
)
def test_memory_is_tight_where_its_point_fits_and_its_upper_end_does_not(
    value: float, high: float, percent: int, word: str
) -> None:
    """A share of half has less than half: a part stays free."""
    gpu = advisor().catalogue.find("t4")
    (need,) = advisor().predict(advisor().read(RESNET), Workload(), [gpu])
    room = gpu.memory_bytes
    required = Interval(value=value * room, low=0.0, high=high * room)
    fits = high <= percent / 100
    one = replace(need, required_memory_bytes=required, fits=fits, share_percent=percent)
    assert need_table.cells(one, one, is_shared=False)[3] == word


def test_adapters_are_predicted_with_a_word_on_the_frozen_weights_and_one_for_the_other_size() -> None:
    words = ["predict", "hf:gpt2", "--lora", "8", "--gpu", "a100", "--precision"]
    narrow, wide = (CliRunner().invoke(main, [*words, precision]) for precision in ("bf16", "bf16-mixed"))
    assert "Frozen weights count with 2 bytes." in " ".join(narrow.stdout.split())
    assert "write precision=bf16-mixed" in " ".join(narrow.stdout.split())
    assert "Frozen weights count with 4 bytes" in " ".join(wide.stdout.split())
