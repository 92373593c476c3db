"""A few hundred mutants for each reader, the same ones each time; CONTRIBUTING.md says how to try more."""

from __future__ import annotations

import pytest

from fuzz.driver import fuzz
from fuzz.targets import TARGETS

COUNTS = {"onnx": 300, "pt2": 400, "card": 400, "socket": 300}


@pytest.mark.parametrize("name", COUNTS)
def test_a_mutant_is_read_or_refused_in_one_sentence(name: str) -> None:
    """No traceback, no minute, no gigabyte; the examples themselves are read."""
    outcome = fuzz(TARGETS[name], seed=9, count=COUNTS[name])
    assert outcome.faults == []
    assert outcome.taken > 0
    assert outcome.tried == COUNTS[name]


@pytest.mark.torch
def test_a_mutated_configuration_is_read_or_refused_in_one_sentence() -> None:
    """Fewer, because each builds a model."""
    pytest.importorskip("transformers")
    outcome = fuzz(TARGETS["configuration"], seed=9, count=12)
    assert outcome.faults == []
    assert outcome.taken > 0
