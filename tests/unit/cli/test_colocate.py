"""`gpusage colocate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from gpusage.cli import main
from gpusage.graphs.card.text import compact_json, to_document
from graphs import perceptron_graph

MODELS = Path(__file__).parents[3] / "examples" / "models"
PAIR = [f"{MODELS}/resnet18.onnx,batch=16", f"{MODELS}/dlrm.onnx,batch=8,mode=infer"]


def colocate(*words: str) -> list[dict[str, object]]:
    result = CliRunner().invoke(main, ["colocate", *PAIR, "--gpu", "h100", "--json", *words])
    return list(json.loads(result.stdout)["jobs"])


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
