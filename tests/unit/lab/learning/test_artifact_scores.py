from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpusage.predictors import artifacts
from gpusage.predictors.artifacts import pretrained
from gpusage_hooks.errors import RequestError
from gpusage_lab.learning import artifact_scores
from gpusage_lab.learning.artifacts import FOLDER, reading
from gpusage_lab.learning.targets import TARGETS

SHIPPED = {name: FOLDER / f"{name}.json" for name in TARGETS}


def test_every_shipped_artifact_can_be_read() -> None:
    artifact_scores.check_readable(SHIPPED)


@pytest.mark.parametrize(
    ("name", "spoil", "expected"),
    [
        pytest.param(
            "step_time",
            lambda document: document["parameters"]["deviations"].pop("shared"),
            "none called 'shared'",
            id="shared",
        ),
        pytest.param(
            "step_time",
            lambda document: document["parameters"].pop("residual"),
            "none called 'residual'",
            id="residual",
        ),
        pytest.param(
            "colocation", lambda document: document["parameters"].pop("average"), "none called 'average'", id="average"
        ),
        pytest.param("step_time", lambda document: document["card"].pop("ranges"), "none called 'ranges'", id="ranges"),
        pytest.param(
            "activity", lambda document: document["card"].pop("fitted_on"), "none called 'fitted_on'", id="fitted on"
        ),
        pytest.param(
            "memory",
            lambda document: [row.append(0.0) for row in document["parameters"]["weights"]],
            "others (",
            id="one term more",
        ),
        pytest.param("memory", lambda document: document.update(parameters=[]), "others (", id="a list"),
    ],
)
def test_an_artifact_of_another_version_is_refused_in_one_sentence_and_the_shipped_one_is_read_again(
    tmp_path: Path, name: str, spoil: Callable[[dict[str, Any]], object], expected: str
) -> None:
    document = json.loads(SHIPPED[name].read_text())
    spoil(document)
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(document))
    with pytest.raises(RequestError) as refusal:
        artifact_scores.check_readable({name: path})
    sentence = str(refusal.value)
    assert sentence.startswith(
        f"Artifact '{path}' must have the figures that this version of gpusage reads; got {expected}"
    )
    assert sentence.endswith("Train it again with this version.")
    assert pretrained() is artifacts.SHIPPED


CITED = ("neusight: 34 rows", "profile h200 train: 5 rows", "a.csv, gpumemnet_mlp_step1.csv: 6 rows", "b.csv, the V100")


def test_a_source_is_fitted_on_where_the_card_names_it_and_not_where_a_longer_name_has_it_inside(
    tmp_path: Path,
) -> None:
    path, card = tmp_path / "memory.json", json.loads(SHIPPED["memory"].read_text())["card"]
    path.write_text(json.dumps({"card": {**card, "fitted_on": [*CITED, "left out: 3 rows of V100"]}, "parameters": {}}))
    named = ("neusight", "profile h200 train", "gpumemnet_mlp", "b.csv")
    others = ("profile h200", "h200 train", "gpumemnet_cnn", "V100", "left out")
    with reading({"memory": path}):
        assert [source for source in (*named, *others) if artifact_scores._is_seen("memory", source, "")] == list(named)
        assert not artifact_scores._is_seen("memory", "neusight", "DRAM activity")
