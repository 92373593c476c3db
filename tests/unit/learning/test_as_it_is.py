from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpusage.learning import as_it_is
from gpusage.learning.artifacts import FOLDER
from gpusage.learning.targets import TARGETS
from gpusage.predictors.pretrained import load
from gpusage_hooks.errors import RequestError

SHIPPED = {name: FOLDER / f"{name}.json" for name in TARGETS}


def test_every_shipped_artifact_can_be_read() -> None:
    as_it_is.check_readable(SHIPPED)


@pytest.mark.parametrize(
    ("name", "spoil", "found"),
    [
        pytest.param(
            "step_time",
            lambda found: found["parameters"]["deviations"].pop("shared"),
            "none called 'shared'",
            id="shared",
        ),
        pytest.param(
            "step_time", lambda found: found["parameters"].pop("residual"), "none called 'residual'", id="residual"
        ),
        pytest.param(
            "colocation", lambda found: found["parameters"].pop("average"), "none called 'average'", id="average"
        ),
        pytest.param("step_time", lambda found: found["card"].pop("ranges"), "none called 'ranges'", id="ranges"),
        pytest.param(
            "activity", lambda found: found["card"].pop("fitted_on"), "none called 'fitted_on'", id="fitted on"
        ),
        pytest.param(
            "memory",
            lambda found: [row.append(0.0) for row in found["parameters"]["weights"]],
            "others (",
            id="one term more",
        ),
        pytest.param("memory", lambda found: found.update(parameters=[]), "others (", id="a list"),
    ],
)
def test_an_artifact_of_another_version_is_refused_in_one_sentence_and_the_shipped_one_is_read_again(
    tmp_path: Path, name: str, spoil: Callable[[dict[str, Any]], object], found: str
) -> None:
    document = json.loads(SHIPPED[name].read_text())
    spoil(document)
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(document))
    with pytest.raises(RequestError) as refusal:
        as_it_is.check_readable({name: path})
    sentence = str(refusal.value)
    assert sentence.startswith(
        f"Artifact '{path}' must have the figures that this version of gpusage reads; got {found}"
    )
    assert sentence.endswith("Train it again with this version.")
    assert load(name) == json.loads(SHIPPED[name].read_text())
