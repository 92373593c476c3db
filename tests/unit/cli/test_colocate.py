"""`gpusage colocate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage.graphs.card.text import compact_json, to_document
from graphs import perceptron_graph

MODELS = Path(__file__).parents[3] / "examples" / "models"
PAIR = [f"{MODELS}/resnet18.onnx,batch=16", f"{MODELS}/dlrm.onnx,batch=8,mode=infer"]


def colocate(*words: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(main, ["colocate", *PAIR, "--gpu", "h100", "--json", *words])
    return list(json.loads(result.stdout)["jobs"])


def test_measured_pairs_are_what_is_predicted_of_their_jobs_and_nothing_is_learned_for_good(tmp_path: Path) -> None:
    """0.4 and 0.8 of the throughput alone; a ridge keeps a little of the rule, which expects 0.9 and more."""
    pairs, before = tmp_path / "pairs.csv", colocate()
    pairs.write_text(
        f'model,beside,slowdown,gpu_type\n"{PAIR[0]}","{PAIR[1]}",2.5,h100\n"{PAIR[1]}","{PAIR[0]}",1.25,\n'
        f'"{PAIR[0]}","{PAIR[1]}",1,v100\n'
    )
    learned = colocate("--pairs", str(pairs))
    assert [each["normalised_throughput"]["value"] for each in learned] == pytest.approx([0.4, 0.8], abs=0.05)
    assert colocate() == before


def test_a_pair_that_was_measured_tells_nothing_certain_of_other_batches_and_modes(tmp_path: Path) -> None:
    """One co-run made intervals of all runs of its two models as narrow as its own."""
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(f'model,beside,slowdown\n"{PAIR[0]}","{PAIR[1]}",2.5\n"{PAIR[1]}","{PAIR[0]}",1.25\n')
    others = [f"{MODELS}/resnet18.onnx,batch=1,mode=infer", f"{MODELS}/dlrm.onnx,batch=512"]

    def widths(*words: str) -> list[float]:
        result = CliRunner().invoke(main, ["colocate", *words, "--gpu", "h100", "--json"])
        each = [job["normalised_throughput"] for job in json.loads(result.stdout)["jobs"]]
        return [one["value"] / one["low"] for one in each]

    assert widths(*others, "--pairs", str(pairs)) == pytest.approx(widths(*others), rel=1e-3)
    assert min(widths(*PAIR, "--pairs", str(pairs))) > 1.1 * max(widths(*PAIR))  # these two are known, and not well


def test_a_partner_that_resembles_a_measured_one_is_ranked_by_it(tmp_path: Path) -> None:
    """The same model at another batch size takes over most of what was measured, another model less."""
    (tmp_path / "candidates.txt").write_text(f"{MODELS}/dlrm.onnx,batch=16,mode=infer\n{MODELS}/gpt2.onnx,batch=4\n")
    (tmp_path / "pairs.csv").write_text(
        f'model,beside,slowdown\n"{PAIR[0]}","{PAIR[1]}",4\n"{PAIR[1]}","{PAIR[0]}",4\n'
    )
    words = ["colocate", PAIR[0], "--gpu", "h100", "--json", "--among", str(tmp_path / "candidates.txt")]
    first = []
    for more in ([], ["--pairs", str(tmp_path / "pairs.csv")]):
        result = CliRunner().invoke(main, [*words, *more], catch_exceptions=False)
        first.append(json.loads(result.stdout)["partners"][0]["model"])
    assert [Path(name).name for name in first] == ["dlrm.onnx,batch=16,mode=infer", "gpt2.onnx,batch=4"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "model,beside,slowdown,gpu_type\na,b,2,v100\n",
            "must have a pair on h100-sxm5-80gb; got pairs on other GPUs.",
        ),
        ("model,beside,slowdown\nabsent.onnx,b.onnx,2\n", "absent.onnx"),
        ("model,beside,slowdown\na,b,0.2\n", "must be from 0.5 to 10000 times as long as alone; got '0.2'."),
    ],
)
def test_a_wrong_pairs_file_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text(text)
    words = ["colocate", *PAIR, "--gpu", "h100", "--pairs", str(tmp_path / "pairs.csv")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert sentence in " ".join(result.output.split())


def test_a_job_s_row_tells_what_is_not_as_usual_in_it() -> None:
    unusual = f"{MODELS}/resnet18.onnx,batch=16,precision=bf16,checkpointing=on"
    result = CliRunner().invoke(main, ["colocate", unusual, PAIR[1], "--gpu", "h100"], env={"COLUMNS": "250"})
    assert "resnet18.onnx, train, batch 16, bf16, checkpointing on " in result.stdout
    assert "dlrm.onnx, infer, batch 8 " in result.stdout


def test_a_job_s_row_tells_what_its_model_settles(tmp_path: Path) -> None:
    card = tmp_path / "quantised.card.json"
    graph = replace(perceptron_graph(), precision="int4")
    card.write_text(compact_json(to_document(graph)))
    words = ["colocate", f"{card},mode=infer", PAIR[1], "--gpu", "h100"]
    result = CliRunner().invoke(main, words, env={"COLUMNS": "250"})
    assert "quantised.card.json, infer, batch 1, int4 " in result.stdout
