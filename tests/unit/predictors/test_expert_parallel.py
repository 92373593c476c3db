"""Training where the experts of a mixture are divided among GPUs, by hand for one layer of two experts per token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.needs import predicted
from gpusage.predictors.parallel.data_parallel import gradient_traffic, sharding_of
from gpusage.predictors.parallel.division import several_gpu_notes
from gpusage.predictors.parallel.expert_parallel import own_share, part_of_experts
from gpusage.predictors.parallel.links import EXCHANGE_S, allreduce_s_per_byte, exchange_s_per_byte
from gpusage.predictors.work.lowering import step_flop
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Workload
from graphs import language_model, node

HIDDEN, INNER, WORDS, LENGTH, EXPERTS = 512, 256, 1000, 128, 8
A100 = builtin_catalogue().find("a100-sxm4-80gb")
WHOLE = Workload(batch_size=2, precision="bf16", optimizer="adam", strategy="zero1", gpus=8)
DIVIDED = replace(WHOLE, expert=4)
DENSE, OF_EXPERTS = 2 * WORDS * HIDDEN + HIDDEN * EXPERTS, 2 * EXPERTS * HIDDEN * INNER
"""Weights: words in and out and the router, and those of all experts."""


def mixture() -> ModelGraph:
    """Return an embedding, a router, and experts of two products, to two of which each token goes."""
    tokens, rows = (-1, LENGTH, HIDDEN), -2 * LENGTH
    return ModelGraph(
        name="mixture",
        source="test:mixture",
        nodes=(
            node("Gather", [(-1, LENGTH)], tokens, (WORDS, HIDDEN)),
            node("MatMul", [tokens], (-1, LENGTH, EXPERTS), (HIDDEN, EXPERTS)),
            node("Softmax", [(-1, LENGTH, EXPERTS)], (-1, LENGTH, EXPERTS)),
            node("Expand", [tokens], (rows, HIDDEN)),
            node("GroupedMatMul", [(rows, HIDDEN)], (rows, INNER), (EXPERTS, HIDDEN, INNER)),
            node("Gelu", [(rows, INNER)], (rows, INNER)),
            node("GroupedMatMul", [(rows, INNER)], (rows, HIDDEN), (EXPERTS, INNER, HIDDEN)),
            node("ReduceSum", [(rows, HIDDEN)], tokens),
            node("MatMul", [tokens], (-1, LENGTH, WORDS), (HIDDEN, WORDS)),
        ),
        producers=((-1,), (0,), (1,), (0,), (3,), (4,), (5,), (6,), (7,)),
        inputs=(("input_ids", (-1, LENGTH)),),
        parameter_count=DENSE + OF_EXPERTS,
    )


MODEL = mixture()


def test_each_gpu_has_its_part_of_the_experts_and_as_much_to_do() -> None:
    whole = WorkloadAnalysis(MODEL, WHOLE).lowering
    part = part_of_experts(whole, MODEL, DIVIDED)
    assert part.parameter_count == DENSE + OF_EXPERTS / 4
    assert step_flop(part) == step_flop(whole)
    read = whole.parameter_bytes @ whole.structure.counts - part.parameter_bytes @ part.structure.counts
    assert read == 2 * OF_EXPERTS * 3 / 4
    less, more = (predicted(MODEL, run, [A100])[0] for run in (DIVIDED, WHOLE))
    assert less.required_memory_bytes.value < more.required_memory_bytes.value


def test_state_is_divided_among_those_with_the_same_weights() -> None:
    """Of 8 GPUs, all have the dense weights, and two the same experts: an eighth of all, as without."""
    lowering = analyze(MODEL, DIVIDED).lowering
    own = DENSE / 8 + OF_EXPERTS / 4 / 2
    assert own_share(lowering, DIVIDED) * lowering.parameter_count == pytest.approx(own)
    assert sharding_of(lowering, DIVIDED).state == own_share(lowering, DIVIDED)
    fully = replace(DIVIDED, strategy="fsdp")
    assert sharding_of(lowering, fully).weights * lowering.parameter_count == pytest.approx(own)


def test_tokens_go_to_their_experts_and_back_in_each_pass() -> None:
    """Two samples of 128 tokens, each to two experts: rows of 512 numbers of 2 bytes, there and back."""
    traffic = analyze(MODEL, DIVIDED).division.copy_traffic.experts
    row_bytes = 2 * 2 * 128 * 512 * 2
    assert traffic == (2 * 2, 2 * 2 * row_bytes)  # forward and backward
    halves = replace(DIVIDED, context=2)
    assert analyze_traffic_bytes(halves) == traffic.sent_bytes / 2
    there = analyze(MODEL, DIVIDED).on([A100])
    seconds = 4 * EXCHANGE_S + traffic.sent_bytes * exchange_s_per_byte(A100, 4)
    assert there._waits_in_copy_s[0] == pytest.approx(seconds)


def analyze_traffic_bytes(workload: Workload) -> float:
    """Return what a GPU sends to experts; the model of `MODEL` beside an attention, as `context` needs one."""
    attention = language_model(HIDDEN, 8, 8, INNER, WORDS, LENGTH)
    behind = [tuple(source + len(attention.nodes) if source >= 0 else -1 for source in row) for row in MODEL.producers]
    both = replace(MODEL, nodes=(*attention.nodes, *MODEL.nodes), producers=(*attention.producers, *behind))
    return analyze(both, workload).division.copy_traffic.experts.sent_bytes


def test_an_exchange_takes_the_links_and_each_gpus_card() -> None:
    """A100s send 240 GB/s to boards of their host, and 20 GB/s beyond it: of 16, to 7 and to 8 others."""
    assert exchange_s_per_byte(A100, 1) == 0
    assert exchange_s_per_byte(A100, 4) == pytest.approx(3 / 4 / 240e9)
    assert exchange_s_per_byte(A100, 16) == pytest.approx(8 / 16 / 20e9)


def test_gradients_of_experts_are_summed_over_those_that_have_them() -> None:
    lowering = analyze(MODEL, DIVIDED).lowering
    gradients = gradient_traffic(lowering, replace(DIVIDED, strategy="ddp"))
    assert sum(gradients) == 4 * (DENSE + OF_EXPERTS / 4)
    assert gradients.expert_bytes == pytest.approx(min(OF_EXPERTS, sum(gradients) - gradients.late_bytes))
    nobody = replace(DIVIDED, expert=8)
    assert allreduce_s_per_byte(A100, nobody.weight_copies // nobody.expert) == 0


def test_experts_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(GraphError, match=r"got 8 experts, 3 GPUs\. Write 'expert=N' with N one of 2, 4, 8\.$"):
        predicted(MODEL, replace(WHOLE, gpus=3, expert=3), [A100])
    dense = language_model(HIDDEN, 8, 8, INNER, WORDS, LENGTH)
    with pytest.raises(GraphError, match=r"must have routed experts for 'expert'; got none\. Remove 'expert'\.$"):
        predicted(dense, DIVIDED, [A100])


def test_a_note_counts_the_copies_of_each_expert() -> None:
    note, _ = several_gpu_notes(replace(DIVIDED, context=2), A100, 1.0, 0.1)
    assert note.endswith("pipeline 1). 4 copies train by zero1, with 2 of each expert (expert 4).")
