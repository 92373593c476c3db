from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.learned.artifacts import IN_USE, Pretrained
from gpusage.predictors.question import KEPT_QUESTIONS, Question, question_of
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
    question = question_of(graph, workload)
    assert question_of(graph, workload) is question
    assert question_of(perceptron_graph(), workload) is not question, "an equal graph is another one"
    assert question.timing(GPUS) is question.timing(list(GPUS))
    assert question.activity(GPUS) is question.activity(list(GPUS))


def test_only_what_changes_the_figures_makes_another_question() -> None:
    graph, workload = perceptron_graph(), Workload(batch_size=8)
    question = question_of(graph, workload)
    assert question_of(graph, replace(workload, steps=100, slo=Slo(latency_s=0.1))) is question
    others = {"batch_size": 9, "mode": "infer", "precision": "fp16", "optimizer": "adam"}
    for name, other in others.items():
        assert question_of(graph, replace(workload, **{name: other})) is not question_of(graph, workload), name


def test_a_graph_keeps_the_newest_questions() -> None:
    graph = perceptron_graph()
    first = question_of(graph, Workload(batch_size=1))
    for batch_size in range(2, KEPT_QUESTIONS + 1):
        question_of(graph, Workload(batch_size=batch_size))
    assert question_of(graph, Workload(batch_size=1)) is first
    question_of(graph, Workload(batch_size=KEPT_QUESTIONS + 1))
    assert question_of(graph, Workload(batch_size=1)) is not first


@pytest.mark.usefixtures("without_collector")
def test_what_was_worked_out_for_a_graph_is_freed_with_it() -> None:
    """Gpusaged keeps a bounded weight of graphs; what predictors work out must not outlive them."""
    graph = perceptron_graph()
    question = question_of(graph, Workload(precision="fp16"))
    assert question.step_time_s(GPUS)
    assert question.memory_bytes(GPUS)
    assert question.activity(GPUS)
    assert question.doubts(GPUS)
    freed = weakref.ref(question)
    del question
    assert freed() is not None
    del graph
    assert freed() is None


def test_a_graph_is_equal_to_one_that_nobody_asked_about() -> None:
    graph = perceptron_graph()
    question_of(graph, Workload())
    assert graph.derived
    assert graph == perceptron_graph()
    assert hash(graph) == hash(perceptron_graph())
    assert not replace(graph).derived


def test_other_artifacts_answer_anew() -> None:
    graph = perceptron_graph()
    question = question_of(graph, Workload())
    before = IN_USE.set(Pretrained())
    assert question_of(graph, Workload()) is not question
    IN_USE.reset(before)
    assert question_of(graph, Workload()) is question


def test_a_question_shares_what_no_workload_changes() -> None:
    graph = perceptron_graph()
    first, second = (Question(graph, Workload(batch_size=size)) for size in (1, 2))
    assert first.lowering.structure is second.lowering.structure
