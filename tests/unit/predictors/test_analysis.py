from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import CACHED_ANALYSES, WorkloadAnalysis, analyze
from gpusage.predictors.artifacts import ACTIVE_ARTIFACTS, Pretrained
from gpusage_hooks.types import Slo, Workload
from graphs import perceptron_graph

GPUS = [builtin_catalogue().find(name) for name in ("v100", "a100")]


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_a_question_is_answered_once_while_its_graph_lives() -> None:
    graph, workload = perceptron_graph(), Workload(batch_size=8)
    analysis = analyze(graph, workload)
    assert analyze(graph, workload) is analysis
    assert analyze(perceptron_graph(), workload) is not analysis, "an equal graph is another one"
    assert analysis.timing(GPUS) is analysis.timing(list(GPUS))
    assert analysis.activity(GPUS) is analysis.activity(list(GPUS))


def test_only_what_changes_the_figures_makes_another_question() -> None:
    graph, workload = perceptron_graph(), Workload(batch_size=8)
    analysis = analyze(graph, workload)
    assert analyze(graph, replace(workload, steps=100, slo=Slo(latency_s=0.1), forbidden_gpus=("t4",))) is analysis
    others = {"batch_size": 9, "mode": "infer", "precision": "fp16", "optimizer": "adam"}
    for name, other in others.items():
        assert analyze(graph, replace(workload, **{name: other})) is not analyze(graph, workload), name


def test_a_graph_keeps_the_newest_questions() -> None:
    graph = perceptron_graph()
    first = analyze(graph, Workload(batch_size=1))
    for batch_size in range(2, CACHED_ANALYSES + 1):
        analyze(graph, Workload(batch_size=batch_size))
    assert analyze(graph, Workload(batch_size=1)) is first
    analyze(graph, Workload(batch_size=CACHED_ANALYSES + 1))
    assert analyze(graph, Workload(batch_size=1)) is not first


@pytest.mark.usefixtures("without_collector")
def test_what_was_worked_out_for_a_graph_is_freed_with_it() -> None:
    """Gpusaged keeps a bounded weight of graphs; what predictors work out must not outlive them."""
    graph = perceptron_graph()
    analysis = analyze(graph, Workload(precision="fp16"))
    assert analysis.step_time_s(GPUS)
    assert analysis.memory_bytes(GPUS)
    assert analysis.activity(GPUS)
    assert analysis.warnings(GPUS)
    freed = weakref.ref(analysis)
    del analysis
    assert freed() is not None
    del graph
    assert freed() is None


def test_a_graph_is_equal_to_one_that_nobody_asked_about() -> None:
    graph = perceptron_graph()
    analyze(graph, Workload())
    assert graph.derived
    assert graph == perceptron_graph()
    assert hash(graph) == hash(perceptron_graph())
    assert not replace(graph).derived


def test_other_artifacts_answer_anew() -> None:
    graph = perceptron_graph()
    analysis = analyze(graph, Workload())
    before = ACTIVE_ARTIFACTS.set(Pretrained())
    assert analyze(graph, Workload()) is not analysis
    ACTIVE_ARTIFACTS.reset(before)
    assert analyze(graph, Workload()) is analysis


def test_a_question_shares_what_no_workload_changes() -> None:
    graph = perceptron_graph()
    first, second = (WorkloadAnalysis(graph, Workload(batch_size=size)) for size in (1, 2))
    assert first.lowering.structure is second.lowering.structure
