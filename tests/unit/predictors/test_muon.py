"""Muon: products of the update, whatever the batch; hidden matrices have one moment, all other weights two."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.decisions.advisor import advisor
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.explanation import explanation_of
from gpusage.predictors.times.kernels import BF16_UNITS
from gpusage.predictors.work.lowering import hidden_matrices, with_adapters
from gpusage_hooks.comment import parse_model
from gpusage_hooks.types import ModelGraph, Node, Precision, Workload
from graphs import chain, node

A100 = builtin_catalogue().find("a100")
WIDE, TALL = (256, 1024), (1024, 512)
LOGITS = (-1, 1000)
# A bias of each product, and a last layer of 512 x 1000.
HIDDEN, OTHERS = 256 * 1024 + 1024 * 512, 1024 + 512 + 512 * 1000
GRAPH = chain(
    "hidden",
    [
        node("Gemm", [(-1, 256)], (-1, 1024), WIDE, (1024,)),
        node("Gemm", [(-1, 1024)], (-1, 512), TALL, (512,)),
        node("Gemm", [(-1, 512)], (-1, 1000), (512, 1000)),
    ],
    (-1, 256),
)
GPT2 = Path(__file__).parents[3] / "examples" / "models" / "gpt2.onnx"


def with_muon(precision: Precision = "bf16", batch: int = 8, **run: int) -> Workload:
    return Workload(batch_size=batch, precision=precision, optimizer="muon", **run)


def products_flop(graph: ModelGraph, workload: Workload) -> float:
    kernels = analyze(graph, workload).kernels
    of_update = kernels.matrix_units == BF16_UNITS
    return float(kernels.flop[of_update] @ kernels.counts[of_update])


def test_five_steps_multiply_as_published_whatever_the_batch() -> None:
    expected = sum(5 * (4 * n * n * m + 2 * n**3) for n, m in (sorted(WIDE), sorted(TALL)))
    assert products_flop(GRAPH, with_muon()) == expected
    assert products_flop(GRAPH, with_muon(batch=64)) == expected
    assert products_flop(GRAPH, with_muon(accumulate=4)) == expected / 4
    assert products_flop(GRAPH, Workload(optimizer="adamw")) == 0


def test_hidden_matrices_have_one_moment() -> None:
    (state,) = (part for part in explanation_of(GRAPH, with_muon(), A100).memory if part.name == "optimizer")
    assert state.memory_bytes == pytest.approx(4 * HIDDEN + 8 * OTHERS)


def test_a_step_takes_longer_than_with_adamw_and_less_memory() -> None:
    graph = advisor().read(str(GPT2))
    needs = [advisor().predict(graph, with_muon(), [A100])[0]]
    needs += advisor().predict(graph, Workload(batch_size=8, precision="bf16", optimizer="adamw"), [A100])
    muon, adamw = needs
    assert adamw.step_time_s.value < muon.step_time_s.value < 2 * adamw.step_time_s.value
    assert muon.memory_bytes.value < adamw.memory_bytes.value


def test_the_products_are_of_bf16_in_every_precision() -> None:
    graph = advisor().read(str(GPT2))
    of_update = []
    for precision in ("fp32", "bf16"):
        parts = explanation_of(graph, with_muon(precision), A100).classes
        of_update += [part.seconds.total_s for part in parts if part.name == "products of the update"]
    assert of_update[0] == pytest.approx(of_update[1], rel=0.5)


def test_muon_is_a_word_of_its_own() -> None:
    assert parse_model("a.onnx,optimizer=Muon").workload.optimizer == "muon"


def matrices(graph: ModelGraph) -> dict[tuple[float, float], float]:
    numbers: Counter[tuple[float, float]] = Counter()
    for number, short, long in hidden_matrices(WorkloadAnalysis(graph, with_muon()).lowering).tolist():
        numbers[short, long] += number
    return dict(numbers)


def test_the_outputs_matrix_is_apart_where_hidden_ones_have_its_sizes() -> None:
    square = node("Gemm", [(-1, 64)], (-1, 64), (64, 64))
    assert matrices(chain("nine", [square] * 9, (-1, 64))) == {(64, 64): 8}


@pytest.mark.parametrize("last", [node("Add", [LOGITS], LOGITS, (1000,)), node("Softmax", [LOGITS], LOGITS)])
def test_the_outputs_matrix_is_apart_whatever_follows_it(last: Node) -> None:
    first = node("MatMul", [(-1, 256)], (-1, 512), (256, 512))
    output = node("MatMul", [(-1, 512)], LOGITS, (512, 1000))
    assert matrices(chain("last", [first, output, last], (-1, 256))) == {(256, 512): 1}


def test_a_matrix_that_several_layers_use_is_updated_once() -> None:
    tokens, words = (-1, 8, 64), (-1, 8, 500)
    layer = node("MatMul", [tokens], tokens, (64, 64))
    nodes = [node("Gather", [(-1, 8)], tokens, (500, 64)), *[layer] * 12, node("MatMul", [tokens], words, (64, 500))]
    shared = replace(chain("shared", nodes, (-1, 8)), parameter_count=500 * 64 + 64 * 64)  # the output is tied, too
    assert matrices(shared) == {(64, 64): pytest.approx(1)}
    assert matrices(replace(shared, parameter_count=500 * 64 + 12 * 64 * 64)) == {(64, 64): 12}
    (state,) = (part for part in explanation_of(shared, with_muon(), A100).memory if part.name == "optimizer")
    assert state.memory_bytes == pytest.approx(4 * 64 * 64 + 8 * 500 * 64)


def test_with_adapters_the_update_multiplies_theirs_alone() -> None:
    # The last layer makes the output and has none.
    expected = sum(5 * (4 * n * n * m + 2 * n**3) for n, m in ((8, 256), (8, 1024), (8, 1024), (8, 512)))
    trainable = with_adapters(GRAPH, 8).trainable
    assert products_flop(GRAPH, with_muon(lora=8, trainable=trainable)) == pytest.approx(expected)
