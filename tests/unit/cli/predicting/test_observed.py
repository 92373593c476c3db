"""What is known of a job is said with its source wherever its step is explained, with what the GPU then waits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage.cli.predicting import explain
from gpusage.decisions.advisor import advisor
from gpusage.predictors.explanation import Explanation, explanation_of
from gpusage.predictors.intervals import exact_interval
from gpusage_hooks.types import Figure, ObservedFigures, Workload

MODEL = str(Path(__file__).parents[4] / "examples" / "models" / "resnet18.onnx")
COMMAND = ("predict", MODEL, "--batch", "32", "--gpu", "v100", "--explain")


@pytest.fixture(scope="module")
def plain() -> Explanation:
    return explanation_of(advisor().read(MODEL), Workload(batch_size=32), advisor().catalogue.find("v100"))


def printed_text(*options: str) -> str:
    """Return what the command prints, lines joined."""
    return " ".join(CliRunner().invoke(main, [*COMMAND, *options]).stdout.split())


def need_of(*options: str) -> dict[str, Any]:
    document = json.loads(CliRunner().invoke(main, [*COMMAND, *options, "--json"]).stdout)
    need: dict[str, Any] = document["predictions"][0]["needs"][0]
    return need


def with_observed(explanation: Explanation, **figures: float) -> Explanation:
    """Return *explanation* with *figures* that a run told."""
    reported = {name: Figure(interval=exact_interval(value), source="a run") for name, value in figures.items()}
    return replace(explanation, known=ObservedFigures(**reported))


def test_a_known_utilization_takes_the_place_of_the_usual_host_s_gaps() -> None:
    text = printed_text("--utilization", "60")
    assert "GPU busy is known from what you said: 60 %. Beside the step as predicted the GPU then waits" in text
    assert "usual host" not in text
    assert "is known" not in printed_text()


def test_json_has_known_figures_with_their_source_and_the_wait_that_they_tell() -> None:
    need = need_of("--utilization", "60")
    explained = need["explanation"]
    assert explained["known"]["gpu_utilization"] == {"value": 0.6, "source": "what you said"}
    together_s = explained["step_time_s"] + explained["known"]["waiting_s"]
    assert explained["busy_s"] / together_s == pytest.approx(need["gpu_utilization"]["value"], rel=1e-4)
    assert explained["sm_s"] / together_s == pytest.approx(need["sm_activity"]["value"], rel=1e-4)
    assert "known" not in need_of()["explanation"]


def test_a_share_s_row_says_that_its_busy_time_is_the_graph_s() -> None:
    note = "What is known of a whole GPU (GPU busy 60 %) counts in a share's slowdown and step time"
    assert note in printed_text("--share", "40", "--utilization", "60")
    assert "GPU busy is known from what you said: 60 %." in printed_text("--share", "40", "--utilization", "60")
    assert "What is known of a whole GPU" not in printed_text("--share", "40")
    assert "What is known of a whole GPU" not in printed_text("--share", "100", "--utilization", "60")


def test_a_known_step_time_is_said_beside_the_predicted_one_with_the_table_s_busy_time() -> None:
    text, need = printed_text("--step-time", "300ms@v100"), need_of("--step-time", "300ms@v100")
    reported = need["explanation"]["known"]
    assert "a step is predicted to take" in text
    assert "The step time is known from what you said: 300 ms. GPU busy is then" in text
    assert reported["gpu_utilization"]["value"] == pytest.approx(need["gpu_utilization"]["value"], rel=1e-4)
    assert reported["waiting_s"] == pytest.approx(0.3 * (1 - need["gpu_utilization"]["value"]), rel=1e-4)


def test_the_page_says_it_as_the_table_does(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    CliRunner().invoke(main, [*COMMAND, "--utilization", "60", "-o", str(page)])
    assert "GPU busy is known from what you said: 60 %." in page.read_text()


def test_a_gpu_that_is_known_to_be_busier_than_predicted_waits_for_nothing(plain: Explanation) -> None:
    slow_host = replace(plain, busy_s=plain.step_time_s / 2)
    assert explain.observed_wait_s(with_observed(slow_host, gpu_utilization=0.9)) == 0
    assert "That is more than the step as predicted has here." in explain.account(
        with_observed(slow_host, gpu_utilization=0.9)
    )


def test_a_known_peak_of_the_memory_stands_beside_the_predicted_one(plain: Explanation) -> None:
    assert (
        explain.observed_memory(with_observed(plain, memory_bytes=2**30).known)
        == " as predicted; known from a run: 1.0 GiB"
    )
    assert explain.observed_memory(plain.known) == ""
