from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import analyze
from gpusage.predictors.artifacts import (
    SHIPPED,
    Card,
    HostUncertainty,
    SlowdownParameters,
    SlowdownRule,
    pretrained,
)
from gpusage_hooks.types import Workload
from gpusage_lab.learning import artifacts
from gpusage_lab.learning.artifacts import Artifact
from gpusage_lab.learning.splits import family_of
from gpusage_lab.learning.targets import TARGETS
from gpusage_planning import zoo as cards
from graphs import convolution_graph

ARTIFACTS = sorted(TARGETS.keys() - {"intervals"})  # which widens those of step_time

CARD = Card(purpose="a test", fitted_on=("nothing",), licences=("none",), ranges={"batch": (1.0, 2.0)})


def test_an_artifact_has_the_same_bytes_whatever_order_its_parameters_stand_in(tmp_path: Path) -> None:
    first, second = {"b": [1 / 3, 2.0], "a": [0.0, np.float64(0.1)]}, {"a": [0.0, 0.1], "b": [0.333333, 2.0]}
    host, partners = HostUncertainty(launch_s=1e-5, host=0.1, own=0.1), (0.1, 0.2)
    rules = (
        SlowdownRule(growth=0.1, noise=0.2, working=working, host=host, filling_blocks=None, partners=partners)
        for working in (first, second)
    )
    ours, theirs = (
        Artifact(name="one", card=CARD, parameters=SlowdownParameters(eager=rule, proportional=rule)) for rule in rules
    )
    assert artifacts.rendered(ours) == artifacts.rendered(theirs)
    path = artifacts.write(ours, tmp_path)
    assert json.loads(path.read_text())["parameters"]["eager"]["working"] == second


@pytest.mark.parametrize("name", ARTIFACTS)
def test_what_is_read_of_a_shipped_artifact_is_written_as_the_same_bytes(name: str) -> None:
    """Reader and writer have one definition."""
    artifact = Artifact(name=name, card=SHIPPED.card(name), parameters=getattr(SHIPPED, name))
    assert artifacts.rendered(artifact).encode() == (artifacts.FOLDER / f"{name}.json").read_bytes()


def test_a_zoo_has_the_same_bytes_whatever_order_its_cards_were_made_in() -> None:
    one, other = {"a:x@1": "{}", "b:y@2": '{"k":1}'}, {"b:y@2": '{"k":1}', "a:x@1": "{}"}
    assert cards.pack(one) == cards.pack(other)
    assert dict(cards.unpack(cards.pack(one)).cards) == one


def test_models_of_one_family_are_one_family_in_every_source() -> None:
    assert {family_of(name) for name in ("ResNet-18", "resnext50_32x4d", "wide_resnet101_2")} == {"resnet"}
    assert family_of("gpt3_xl") == family_of("opt_13") == "gpt"
    assert family_of("something_else") == "something"


def test_all_artifacts_together_are_small_and_each_has_a_whole_card() -> None:
    paths = sorted(artifacts.FOLDER.glob("*.json"))
    assert [path.stem for path in paths] == ARTIFACTS
    assert sum(path.stat().st_size for path in paths) <= 5_000_000
    for path in paths:
        card = json.loads(path.read_text())["card"]
        assert card["purpose"].endswith(".")
        ranges = () if path.stem == "colocation" else ("ranges",)  # no pair is shipped, so no batch sizes of any
        assert all(card[field] for field in ("fitted_on", "licences", *ranges, "errors", "notes")), path.stem
        assert all(low <= high for low, high in card["ranges"].values()), path.stem


def test_other_artifacts_are_read_instead_of_the_shipped_ones_and_no_longer_than_asked(tmp_path: Path) -> None:
    weights = [[2.0 * weight for weight in row] for row in SHIPPED.memory.weights]
    doubled = Artifact(name="memory", card=CARD, parameters=replace(SHIPPED.memory, weights=weights))
    paths = {"memory": artifacts.write(doubled, tmp_path)}

    def predicted() -> float:
        workload = Workload(batch_size=512)
        return analyze(convolution_graph(), workload).memory_bytes([builtin_catalogue().find("a100")])[0].value

    before = predicted()
    with artifacts.reading(paths):
        assert predicted() > before
        assert pretrained().card("memory").purpose == "a test"
    assert predicted() == before
