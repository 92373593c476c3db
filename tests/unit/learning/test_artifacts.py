from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from gpusage.learning import artifacts, zoo
from gpusage.learning.artifacts import Artifact, Card
from gpusage.learning.splits import family_of

CARD = Card(purpose="a test", fitted_on=("nothing",), licences=("none",), ranges={"batch": (1.0, 2.0)})


def test_an_artifact_has_the_same_bytes_whatever_order_its_parameters_stand_in(tmp_path: Path) -> None:
    first = Artifact(name="one", card=CARD, parameters={"b": np.array([1 / 3, 2.0]), "a": np.float64(0.1)})
    second = Artifact(name="one", card=CARD, parameters={"a": 0.1, "b": [0.333333, 2.0]})
    assert artifacts.rendered(first) == artifacts.rendered(second)
    path = artifacts.write(first, tmp_path)
    assert json.loads(path.read_text())["parameters"] == {"a": 0.1, "b": [0.333333, 2.0]}


def test_a_zoo_has_the_same_bytes_whatever_order_its_cards_were_made_in() -> None:
    one, other = {"a:x@1": "{}", "b:y@2": '{"k":1}'}, {"b:y@2": '{"k":1}', "a:x@1": "{}"}
    assert zoo.pack(one) == zoo.pack(other)
    assert dict(zoo.unpack(zoo.pack(one)).cards) == one


def test_models_of_one_family_are_one_family_in_every_source() -> None:
    assert {family_of(name) for name in ("ResNet-18", "resnext50_32x4d", "wide_resnet101_2")} == {"resnet"}
    assert family_of("gpt3_xl") == family_of("opt_13") == "gpt"
    assert family_of("something_else") == "something"
