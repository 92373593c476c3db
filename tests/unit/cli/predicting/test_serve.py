"""`gpusage predict --serve`: what each GPU serves of a language model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpusage.cli import main

GPT2 = str(Path(__file__).parents[4] / "examples" / "models" / "gpt2.onnx")
SERVED = ("predict", GPT2, "--serve", "--generate", "512+128", "--precision", "fp16")


def served(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*SERVED, "--json", *words])
    assert result.exit_code == 0, result.stderr
    (model,) = json.loads(result.stdout)["models"]
    return dict(model)


def test_each_gpu_has_its_answers_and_the_engine_serves() -> None:
    model = served("--gpu", "a100", "--gpu", "t4")
    assert model["workload"]["engine"] == "vllm"
    fast, slow = model["gpus"]
    assert (fast["gpu"], slow["gpu"]) == ("a100-sxm4-40gb", "t4")
    assert fast["tokens_per_s"]["value"] > slow["tokens_per_s"]["value"]
    per_user = fast["tokens_per_s_per_user"]["value"]
    assert fast["tokens_per_s"]["value"] == pytest.approx(fast["answers"] * per_user, rel=1e-4)
    assert "gpu_count" not in fast
    assert "cost_per_million_tokens" not in fast


def test_a_model_that_leaves_no_room_for_an_answer_says_so() -> None:
    words = ["predict", "hf:meta-llama/Llama-2-7b-hf", *SERVED[2:], "--gpu", "t4,a100"]
    shown = CliRunner().invoke(main, words).stdout
    assert "No answer fits beside the weights on t4. Use a GPU with more memory" in shown
    narrow = CliRunner().invoke(main, [*words[:2], *SERVED[2:5], "--precision", "int4", "--gpu", "t4"]).stdout
    assert "t4" in narrow
    assert "No answer" not in narrow


@pytest.mark.parametrize(
    ("engine", "gpu", "rule"),
    [
        ("vllm", "p100-pcie-16gb", "Nvidia's since Volta, or AMD's since MI200"),
        ("vllm", "mi100-32gb", "Nvidia's since Volta, or AMD's since MI200"),
        ("tensorrt-llm", "p100-pcie-16gb", "Nvidia's since Volta"),
        ("tensorrt-llm", "mi300x-192gb", "Nvidia's since Volta"),
        ("tensorrt", "mi300x-192gb", "Nvidia's"),
    ],
)
def test_an_engine_is_refused_on_a_gpu_on_which_it_does_not_run(engine: str, gpu: str, rule: str) -> None:
    result = CliRunner().invoke(main, [*SERVED, "--gpu", gpu, "--engine", engine])
    assert result.exit_code == 1
    assert f"GPU of engine {engine} must be {rule}; got {gpu}. Name another GPU, or add --engine" in result.stderr


def test_amds_gpus_serve_with_vllm() -> None:
    assert [row["gpu"] for row in served("--gpu", "mi210", "--gpu", "mi300x")["gpus"]] == ["mi210-64gb", "mi300x-192gb"]


def test_servers_run_on_no_gpu_before_volta_and_such_a_gpu_has_no_share() -> None:
    assert {"k80", "p100-pcie-16gb"}.isdisjoint(row["gpu"] for row in served()["gpus"])
    (old,) = served("--gpu", "p100", "--engine", "eager", "--rate", "0.01/s")["gpus"]
    assert (old["gpu_count"], old["share_percent"]) == (1, 100)


def test_a_named_engine_stays() -> None:
    assert served("--gpu", "a100", "--engine", "tensorrt-llm")["workload"]["engine"] == "tensorrt-llm"


def test_a_million_tokens_cost_what_the_hours_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gpusage.toml"
    file.write_text("[money]\nprice_per_hour = { t4 = 0.5 }\n")
    monkeypatch.setenv("GPUSAGE_CONFIG", str(file))
    (slow,) = served("--gpu", "t4")["gpus"]
    cost = 0.5 * 1e6 / slow["tokens_per_s"]["value"] / 3600
    assert slow["cost_per_million_tokens"]["value"] == pytest.approx(cost, rel=1e-4)
    shown = CliRunner().invoke(main, [*SERVED, "--gpu", "t4"])
    assert "cost" in shown.stdout


def test_a_rate_says_how_many_gpus_or_which_share() -> None:
    few, many = (served("--gpu", "a100", "--rate", rate)["gpus"][0] for rate in ("0.1/s", "100000/s"))
    assert (few["gpu_count"], few["share_percent"]) == (1, 25)
    assert many["gpu_count"] > 1
    assert many["share_percent"] == 100
    shown = CliRunner().invoke(main, [*SERVED, "--gpu", "a100", "--rate", "0.1/s", "--p99", "1us"])
    assert shown.exit_code == 0, shown.stderr
    assert "none will do" in shown.stdout
    assert "25 % of one" in CliRunner().invoke(main, [*SERVED, "--gpu", "a100", "--rate", "0.1/s"]).stdout


@pytest.mark.parametrize("key", ["batch=8", "steps=100", "utilization=50", "slo=1s"])
def test_a_key_of_one_job_is_refused_in_the_models_text(key: str) -> None:
    result = CliRunner().invoke(main, ["predict", f"{GPT2},mode=infer,{key}", *SERVED[2:], "--gpu", "a100"])
    assert result.exit_code == 1
    assert f"Key '{key.partition('=')[0]}' of model '{GPT2}' must stand without --serve; got both." in result.stderr


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("--serve",), "must come with --generate; got none. Add --generate 512+128."),
        (("--rate", "5/s"), "Option --rate needs --serve"),
        (("--serve", "--p99", "1s"), "Option --p99 needs --rate"),
        (("--serve", "--generate", "512+128", "--share", "50"), "Option --share must stand without --serve"),
        (("--serve", "--generate", "512+128", "--batch", "8"), "Option --batch must stand without --serve"),
        (("--serve", "--generate", "512+128", "--utilization", "9"), "Option --utilization must stand without"),
        (("--serve", "--generate", "512+128", "--explain"), "must stand without --explain and -o"),
        (("--batched-tokens", "512"), "Option --batched-tokens needs --serve"),
        (("--serve", "--rate", "often"), "must be requests per second above 0; got 'often'"),
        (("--serve", "--rate", "5", "--p99", "soon"), "must be a time above 0 in us, ms or s; got 'soon'"),
    ],
)
def test_what_stands_alone_gets_a_sentence(words: tuple[str, ...], rule: str) -> None:
    result = CliRunner().invoke(main, ["predict", GPT2, "--mode", "infer", *words])
    assert result.exit_code != 0
    assert rule in " ".join(result.stderr.split())


def test_the_caches_blocks_have_an_interval_and_options() -> None:
    (plain,), (narrow,), (small,) = (
        served("--gpu", "a100", *words)["gpus"] for words in ((), ("--fp8-cache",), ("--batched-tokens", "640"))
    )
    assert plain["kv_block_count"]["low"] < plain["kv_block_count"]["value"] <= plain["kv_block_count"]["high"]
    assert narrow["longest_tokens"]["value"] == pytest.approx(2 * plain["longest_tokens"]["value"], rel=1e-3)
    assert small["kv_block_count"]["low"] > plain["kv_block_count"]["low"]
    wide = CliRunner(env={"COLUMNS": "200"})
    assert "longest (tokens)" in " ".join(wide.invoke(main, [*SERVED, "--gpu", "a100"]).stdout.split())


def test_blocks_are_counted_in_whole_ones() -> None:
    """Where nothing fits, cells were 0.00."""
    words = ["predict", "hf:meta-llama/Llama-2-7b-hf", *SERVED[2:], "--gpu", "rtx3060,t4"]
    lines = CliRunner(env={"COLUMNS": "200"}).invoke(main, words).stdout.splitlines()
    none, few = (next(line.split() for line in lines if line.startswith(name)) for name in ("rtx-3060", "t4"))
    assert none[1:] == ["0", "0", "0"]
    assert (few[1:3], "." in "".join(few)) == (["0", "0"], False)
