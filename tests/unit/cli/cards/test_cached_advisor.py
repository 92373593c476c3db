"""An advisor that keeps what it has predicted."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from gpusage.cli.cards import cache
from gpusage.cli.cards.cached_advisor import _SOURCES, CachedAdvisor, with_cache
from gpusage.decisions.advisor import advisor
from gpusage.graphs.card.text import decode, encode
from gpusage.plugins.hooks import Hooks
from gpusage.plugins.loading import make_hooks
from gpusage_hooks.types import Gpu, GpuNeed, Workload
from graphs import perceptron_graph
from sites import announced

GRAPH = decode(encode(perceptron_graph()))
WORKLOAD = Workload(batch_size=8)


class Nobody:
    """Predicts nothing: whoever gets an answer all the same has it from before."""


@pytest.fixture
def gpus() -> tuple[Gpu, ...]:
    return tuple(advisor().catalogue.find(name) for name in ("v100", "h100"))


@pytest.fixture
def cached_advisor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CachedAdvisor:
    """Return an advisor whose user has an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    actual = with_cache(advisor(), encode(GRAPH))
    assert isinstance(actual, CachedAdvisor)
    return actual


def without_predictors(cached_advisor: CachedAdvisor) -> CachedAdvisor:
    return replace(cached_advisor, hooks=cast("Hooks", Nobody()))


def test_what_was_predicted_is_known_to_the_last_bit(cached_advisor: CachedAdvisor, gpus: Sequence[Gpu]) -> None:
    first = cached_advisor.predict(GRAPH, WORKLOAD, gpus)
    assert first == advisor().predict(GRAPH, WORKLOAD, gpus)
    assert without_predictors(cached_advisor).predict(GRAPH, WORKLOAD, gpus) == first


@pytest.mark.parametrize("change", ["card", "batch", "gpus", "figure"])
def test_another_question_is_predicted_anew(cached_advisor: CachedAdvisor, gpus: tuple[Gpu, ...], change: str) -> None:
    cached_advisor.predict(GRAPH, WORKLOAD, gpus)
    other = without_predictors(replace(cached_advisor, card="QUJD") if change == "card" else cached_advisor)
    workload = Workload(batch_size=16) if change == "batch" else WORKLOAD
    if change == "gpus":
        gpus = gpus[::-1]
    if change == "figure":
        gpus = (replace(gpus[0], memory_bytes=gpus[0].memory_bytes // 2), gpus[1])
    with pytest.raises(AttributeError):  # Nobody has no hooks
        other.predict(GRAPH, workload, gpus)


def test_other_predictors_of_ours_predict_anew(
    cached_advisor: CachedAdvisor, gpus: Sequence[Gpu], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cached_advisor.predict(GRAPH, WORKLOAD, gpus)
    package = tmp_path / "package"
    shutil.copytree(cache._PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(cache, "_PACKAGE", package)
    assert without_predictors(cached_advisor).predict(GRAPH, WORKLOAD, gpus), "a copy is the same"
    file = next((package / "predictors").glob("*.py"))
    file.write_text(file.read_text() + "\n")
    with pytest.raises(AttributeError):
        without_predictors(cached_advisor).predict(GRAPH, WORKLOAD, gpus)


def test_what_is_no_prediction_is_predicted_anew(cached_advisor: CachedAdvisor, gpus: Sequence[Gpu]) -> None:
    first = cached_advisor.predict(GRAPH, WORKLOAD, gpus)
    (entry,) = cached_advisor.folder.iterdir()
    for content in (b"", b"[]", b"[{}]", b"\xff", entry.read_bytes()[:-20]):
        entry.write_bytes(content)
        assert cached_advisor.predict(GRAPH, WORKLOAD, gpus) == first


def test_nothing_is_kept_where_somebody_else_predicts() -> None:
    theirs = replace(advisor(), hooks=make_hooks([announced(predict_needs=lambda: None)]))
    assert with_cache(theirs, encode(GRAPH)) is theirs


def test_a_cache_that_cannot_be_written_costs_nothing(cached_advisor: CachedAdvisor, gpus: Sequence[Gpu]) -> None:
    file = cached_advisor.folder.parent
    file.write_text("in the way")
    needs: tuple[GpuNeed, ...] = cached_advisor.predict(GRAPH, WORKLOAD, gpus)
    assert [need.gpu for need in needs] == [gpu.name for gpu in gpus]


def test_each_pattern_of_sources_has_files() -> None:
    """A prediction is kept for our sources as they are: a module that moved would no longer count."""
    assert all(list(cache.source_files([pattern])) for pattern in _SOURCES)
