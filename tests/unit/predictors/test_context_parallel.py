"""Training where each sequence is divided among several GPUs, by hand for a small language model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpusage
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.needs import predicted
from gpusage.predictors.parallel.context_parallel import part_of_tokens
from gpusage.predictors.parallel.data_parallel import sharding_of
from gpusage.predictors.parallel.links import EXCHANGE_S, allreduce_s_per_byte, send_s_per_byte
from gpusage.predictors.work.lowering import step_flop
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Workload
from graphs import language_model, with_layers

MODELS = Path(__file__).parents[3] / "examples" / "models"
HIDDEN, HEADS, INNER, WORDS, LENGTH, LAYERS = 512, 8, 2048, 1000, 128, 8
MODEL = with_layers(language_model(HIDDEN, HEADS, HEADS, INNER, WORDS, LENGTH), LAYERS)
A100 = builtin_catalogue().find("a100-sxm4-80gb")
ALONE = Workload(batch_size=64, precision="bf16", optimizer="adam", strategy="zero1")
CONTEXT = replace(ALONE, gpus=4, context=4)


def waits_s(workload: Workload) -> float:
    return analyze(MODEL, workload).on([A100]).waiting_s[0]


def test_each_gpu_has_its_part_of_the_tokens_and_all_weights() -> None:
    whole = WorkloadAnalysis(MODEL, replace(ALONE, gpus=4)).lowering
    part = part_of_tokens(whole, MODEL, CONTEXT)
    assert step_flop(part) == step_flop(whole) / 4  # attentions as well: a quarter of the queries, all keys
    assert part.output_bytes.tolist() == (whole.output_bytes / 4).tolist()
    assert part.output_elements_of_model == 64 * LENGTH * WORDS / 4
    assert part.parameter_count == whole.parameter_count
    assert part.parameter_bytes is whole.parameter_bytes
    less, more = (predicted(MODEL, run, [A100])[0] for run in (CONTEXT, replace(ALONE, gpus=4)))
    assert less.required_memory_bytes.value < more.required_memory_bytes.value
    assert less.step_time_s.value < more.step_time_s.value
    assert less.throughput_samples_per_s.value > more.throughput_samples_per_s.value  # of all four, not of one


def test_keys_and_values_come_round_forward_and_backward_with_their_gradients() -> None:
    """Of 8 layers 2 x 128 x 512 numbers of 2 bytes for each of 64 samples, of which 3 of 4 parts come from others."""
    round_bytes = 8 * 2 * 128 * 512 * 2 * 64 * 3 / 4
    assert analyze(MODEL, CONTEXT).division.copy_traffic.ring.sent_bytes == 3 * round_bytes
    assert analyze(MODEL, replace(CONTEXT, checkpointing=True)).division.copy_traffic.ring.sent_bytes == 4 * round_bytes
    both = replace(CONTEXT, gpus=8, tensor=2)
    assert analyze(MODEL, both).division.copy_traffic.ring.sent_bytes == 3 * round_bytes / 2  # half of the heads
    sums = analyze(MODEL, replace(ALONE, gpus=2, tensor=2)).division.copy_traffic.sum_bytes
    assert analyze(MODEL, both).division.copy_traffic.sum_bytes == sums / 4


def test_what_does_not_travel_behind_attentions_is_waited_for() -> None:
    slow = replace(CONTEXT, gpus=16, context=16, network_bytes_per_s=1e9)
    there = analyze(MODEL, slow).on([A100])
    attends = np.isin(there.kernels.operator_class, (OperatorClass.BATCHED_PRODUCT, OperatorClass.ATTENTION))
    attention_s = float((there.kernels.counts * attends) @ there.kernel_times.total_s[:, 0])
    assert 0 < attention_s < there.timing.step_s[0]
    traffic = analyze(MODEL, slow).division.copy_traffic.ring
    assert traffic.hop_count == 2 * LAYERS * 15  # forward, and backward with the gradients
    assert analyze(MODEL, replace(slow, checkpointing=True)).division.copy_traffic.ring.hop_count == 3 * LAYERS * 15
    ring_s = traffic.hop_count * EXCHANGE_S + traffic.sent_bytes * send_s_per_byte(A100, 16, 1e9, 1)
    assert there._waits_in_copy_s[0] == pytest.approx(ring_s - attention_s * 15 / 16)
    long = with_layers(language_model(HIDDEN, HEADS, HEADS, INNER, WORDS, 8192), LAYERS)  # 2,048 tokens for each GPU
    assert analyze(long, replace(CONTEXT, batch_size=1)).on([A100])._waits_in_copy_s == [0.0]


def test_the_gradients_of_weights_are_summed_over_parts_of_sequences_and_over_samples() -> None:
    both = replace(CONTEXT, gpus=8)
    assert (both.replica_count, both.weight_copies) == (2, 8)
    lowering = WorkloadAnalysis(MODEL, both).lowering
    assert sharding_of(lowering, both).state == 1 / 8
    summed = replace(CONTEXT, strategy="ddp", optimizer="none")
    bucket_bytes = 4 * MODEL.parameter_count
    assert sharding_of(lowering, summed).bucket_bytes == bucket_bytes
    late_s = 12.5 * 2**20 * allreduce_s_per_byte(A100, 4)
    assert waits_s(summed) >= late_s > 0


def test_a_stage_hands_on_its_part_of_the_tokens() -> None:
    stages = replace(ALONE, gpus=4, pipeline=4, accumulate=8)
    whole, part = (analyze(MODEL, run).division.copy_traffic for run in (stages, replace(stages, gpus=8, context=2)))
    assert part.handover_bytes == whole.handover_bytes / 2


def test_a_note_names_the_gpus_that_compute_a_batch_together() -> None:
    notes = predicted(MODEL, replace(CONTEXT, gpus=8), [A100])[0].notes
    words = "of the 4 GPUs that compute a batch together (tensor 1, context 4, pipeline 1)"
    assert any(words in note for note in notes)


def test_sequences_that_cannot_be_divided_are_refused() -> None:
    sentence = r"for each GPU; got 128 tokens, context=3\. Write 'context=N' with N one of 2, 4, 8, 16, 32, 64\.$"
    with pytest.raises(GraphError, match=sentence):
        predicted(MODEL, replace(ALONE, gpus=3, context=3), [A100])
    for name in ("resnet50", "vit_b_16"):
        graph = gpusage.read_model(MODELS / f"{name}.onnx")
        with pytest.raises(GraphError, match=r"to all of them for 'context'; got another model\. Remove 'context'"):
            predicted(graph, CONTEXT, [A100])


@pytest.mark.parametrize("name", ["gpt2", "bert_base"])
def test_sequences_of_real_models_are_found(name: str) -> None:
    graph = gpusage.read_model(MODELS / f"{name}.onnx")
    assert analyze(graph, CONTEXT).division.copy_traffic.ring.sent_bytes > 0
    assert analyze(graph, replace(CONTEXT, gpus=8, pipeline=2)).division.copy_traffic.ring.sent_bytes > 0
