"""Training where several GPUs hold one copy of a model, by hand for a small language model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpusage
from gpusage.cli.predicting import need_table
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.explanation import explanation_of
from gpusage.predictors.memory.liveness import step_walk
from gpusage.predictors.needs import predicted
from gpusage.predictors.parallel.context_parallel import RingTraffic
from gpusage.predictors.parallel.data_parallel import gradient_traffic, sharding_of
from gpusage.predictors.parallel.division import CopyTraffic, copy_traffic, wait_in_copy_s
from gpusage.predictors.parallel.expert_parallel import ExpertTraffic
from gpusage.predictors.parallel.links import EXCHANGE_S, allreduce_s_per_byte, send_s_per_byte
from gpusage.predictors.parallel.pipeline import micro_batches_in_flight, stages_of
from gpusage.predictors.parallel.tensor_parallel import divided_layers
from gpusage.predictors.work.lowering import step_flop
from gpusage.predictors.work.operators import OperatorClass
from gpusage.predictors.work.sequences import find_attentions
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Precision, Workload
from graphs import chain, language_model, node, with_layers

MODELS = Path(__file__).parents[3] / "examples" / "models"
HIDDEN, HEADS, INNER, WORDS, LENGTH, LAYERS = 512, 8, 2048, 1000, 128, 8
MODEL = with_layers(language_model(HIDDEN, HEADS, HEADS, INNER, WORDS, LENGTH), LAYERS)
A100, H100 = map(builtin_catalogue().find, ("a100-sxm4-80gb", "h100"))
ALONE = Workload(batch_size=2, precision="bf16", optimizer="adam", strategy="zero1")
TENSOR = replace(ALONE, gpus=4, tensor=4)
PIPELINE = replace(ALONE, gpus=4, pipeline=4, accumulate=8)


def waits_s(workload: Workload) -> float:
    return analyze(MODEL, workload).on([A100]).waiting_s[0]


def test_each_gpu_does_its_part_of_linear_layers_and_heads_and_sums_twice_in_a_layer() -> None:
    whole = WorkloadAnalysis(MODEL, replace(ALONE, gpus=4)).lowering
    division = divided_layers(whole, MODEL, TENSOR)
    part = division.lowering
    assert step_flop(part) == pytest.approx(step_flop(whole) / 4, rel=0.01)
    assert part.parameter_count == whole.parameter_count / 4
    assert part.parameter_bytes @ part.structure.counts == pytest.approx(
        # all but the embedding, which is read by rows
        whole.parameter_bytes @ whole.structure.counts / 4,
        rel=0.05,
    )
    assert division.sum_count == 2 * LAYERS
    assert division.sum_bytes == 2 * LAYERS * 2 * (2 * LENGTH * HIDDEN)  # sums of two samples' tokens in bf16
    assert part.output_elements_of_model == whole.output_elements_of_model / 4  # a part of all words


def test_a_linear_layer_that_stands_alone_before_the_blocks_is_whole() -> None:
    """As in OPT-350m and ALBERT, whose embeddings are narrower than their layers."""
    tokens = MODEL.nodes[0].outputs[0]
    shifted = [tuple(source + (source >= 0) for source in row) for row in MODEL.producers[1:]]
    projected = replace(
        MODEL,
        nodes=(MODEL.nodes[0], node("MatMul", [tokens], tokens, (HIDDEN, HIDDEN)), *MODEL.nodes[1:]),
        producers=(MODEL.producers[0], (0,), *shifted),
        parameter_count=MODEL.parameter_count + HIDDEN**2,
    )
    division = divided_layers(WorkloadAnalysis(projected, replace(ALONE, gpus=4)).lowering, projected, TENSOR)
    assert division.sum_count == 2 * LAYERS


def test_what_is_between_divided_layers_is_whole_without_sequence_parallelism() -> None:
    """Of a layer's outputs, those of its two sums are whole: 2 x 512 numbers per token, all others a quarter."""
    whole = WorkloadAnalysis(MODEL, replace(ALONE, gpus=4)).lowering
    stored = [
        float(one.output_bytes @ one.structure.counts)
        for one in (
            whole,
            divided_layers(whole, MODEL, TENSOR).lowering,
            divided_layers(whole, MODEL, replace(TENSOR, sequence_parallel=True)).lowering,
            divided_layers(whole, MODEL, replace(TENSOR, strategy="fsdp")).lowering,
        )
    ]
    row = 2.0 * 2 * LENGTH * HIDDEN
    assert stored[1] == pytest.approx(stored[0] / 4 + (1 + 2 * LAYERS) * row * 3 / 4)
    assert stored[2] == stored[3] == pytest.approx(stored[0] / 4)


def test_sequence_parallelism_sends_as_much_and_takes_less_memory() -> None:
    """A reduce-scatter and an all-gather are the two halves of a ring's sum."""
    whole = replace(TENSOR, batch_size=64)  # so many activations that the update takes less
    by_tokens = replace(whole, sequence_parallel=True)
    assert analyze(MODEL, by_tokens).division.copy_traffic == analyze(MODEL, whole).division.copy_traffic
    less, more = (predicted(MODEL, run, [A100])[0] for run in (by_tokens, whole))
    assert less.required_memory_bytes.value < more.required_memory_bytes.value
    assert less.step_time_s.value < more.step_time_s.value  # each does a quarter of the norms


def test_the_sums_are_waited_for_in_each_pass() -> None:
    analysis = analyze(MODEL, TENSOR)
    traffic = analysis.division.copy_traffic
    assert (traffic.sum_count, traffic.handover_bytes) == (2 * 2 * LAYERS, 0)
    byte_s = allreduce_s_per_byte(A100, 4)
    assert waits_s(TENSOR) == pytest.approx(traffic.sum_count * EXCHANGE_S + traffic.sum_bytes * byte_s)
    again = analyze(MODEL, replace(TENSOR, checkpointing=True)).division.copy_traffic
    assert again.sum_bytes == 1.5 * traffic.sum_bytes


def test_a_stage_has_its_layers_and_the_ends_of_the_model() -> None:
    first, last = stages_of(MODEL, WorkloadAnalysis(MODEL, ALONE).lowering, 4)
    layer = 4 * HIDDEN**2 + 2 * HIDDEN * INNER
    assert first.graph.parameter_count == last.graph.parameter_count == 2 * layer + WORDS * HIDDEN
    assert [shape for _, shape in last.graph.inputs] == [(-1, LENGTH, HIDDEN)]
    assert len(first.graph.nodes) + len(last.graph.nodes) == len(MODEL.nodes) / 2 + 1
    # layers that cannot be divided evenly: no stage has more than the first and the last
    few = with_layers(language_model(HIDDEN, HEADS, HEADS, INNER, WORDS, LENGTH), 3)
    assert stages_of(few, WorkloadAnalysis(few, ALONE).lowering, 3)[0].graph.parameter_count == layer + WORDS * HIDDEN
    uneven, _ = stages_of(MODEL, WorkloadAnalysis(MODEL, ALONE).lowering, 3)
    assert uneven.graph.parameter_count == 3 * layer + WORDS * HIDDEN


def test_a_real_models_layers_are_found_where_checkpoints_start_in_their_middle() -> None:
    """GPT-2's exporter leaves the smallest cut behind an attention; its ends share the weights of all words."""
    graph = gpusage.read_model(MODELS / "gpt2.onnx")
    for stage in stages_of(graph, WorkloadAnalysis(graph, ALONE).lowering, 12):
        ends = 50257 * 768 + 1024 * 768
        assert stage.graph.parameter_count - 12 * 768**2 - ends == pytest.approx(0, abs=0.03 * ends)


@pytest.mark.parametrize("name", ["xlm-roberta-base", "facebook/wav2vec2-base"])
def test_layers_are_found_where_other_parts_of_a_model_write_more(name: str) -> None:
    """XLM-R's words and the convolutions of wav2vec 2; a stage has 6 of 12 layers."""
    graph = gpusage.read_model(f"hf:{name}")
    first, last = stages_of(graph, WorkloadAnalysis(graph, ALONE).lowering, 2)
    assert [len(find_attentions(stage.graph)) for stage in (first, last)] == [6, 6]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-pure"])
def test_two_layers_are_two_stages(precision: Precision) -> None:
    """Under autocast, the first layer is unlike the second: it reads what no cast has written."""
    two = with_layers(language_model(HIDDEN, HEADS, HEADS, INNER, WORDS, LENGTH), 2)
    workload = replace(PIPELINE, gpus=2, pipeline=2, precision=precision)
    assert analyze(two, workload).graph.parameter_count == 4 * HIDDEN**2 + 2 * HIDDEN * INNER + WORDS * HIDDEN


def test_stages_wait_while_the_pipeline_fills_and_drains() -> None:
    without_update = replace(PIPELINE, optimizer="none")
    passes_s, step_s = (float(analyze(MODEL, run).on([A100]).timing.step_s[0]) for run in (without_update, PIPELINE))
    assert passes_s < step_s
    row = 2 * 2 * LENGTH * HIDDEN
    handover_s = 2 * row * send_s_per_byte(A100, 4, None, 1)
    assert waits_s(PIPELINE) == pytest.approx((passes_s + handover_s) * (1 + 3 / 8) - passes_s)
    many = replace(PIPELINE, accumulate=8000)
    assert waits_s(many) < 0.01 * step_s
    need, alone = (predicted(MODEL, run, [A100])[0].step_time_s.value for run in (many, replace(ALONE, gpus=1)))
    assert need < alone


def test_pieces_of_stages_wait_less_send_more_and_keep_more() -> None:
    """Of 4 stages in 2 pieces each, the first keeps 4 + 3 / 2 micro-batches of its layers, and the last 4 - 3 / 2."""
    interleaved = replace(PIPELINE, virtual_pipeline=2)
    passes_s = float(analyze(MODEL, replace(interleaved, optimizer="none")).on([A100]).timing.step_s[0])
    row = 2 * 2 * LENGTH * HIDDEN
    handover_s = 2 * 2 * row * send_s_per_byte(A100, 4, None, 1)
    assert waits_s(interleaved) == pytest.approx((passes_s + handover_s) * (1 + 3 / (2 * 8)) - passes_s)
    assert micro_batches_in_flight(interleaved) == (5.5, 2.5)
    assert micro_batches_in_flight(replace(interleaved, accumulate=2)) == (2, 2)
    plain, fuller = (analyze(MODEL, run).first_stage for run in (PIPELINE, interleaved))
    assert plain is not None
    assert fuller is not None
    more = fuller.stage_peak.required.value - plain.stage_peak.required.value
    of_two = step_walk(plain.graph, plain.lowering, PIPELINE).other_batches_bytes(1 + 3 / 2)
    assert more == pytest.approx(of_two, rel=0.2)  # the allocator adds to it
    last = analyze(MODEL, interleaved)
    ends = np.asarray(last.in_flight)
    assert (ends[0], ends[-1]) == (2.5, 1)  # what reads the last layer is not kept


def test_a_micro_batch_alone_goes_through_all_stages_however_many_pieces_they_have() -> None:
    """Of 4 stages, one computes for 1 of 4 times; with 2 micro-batches in 2 pieces each for 2 of 4 and a half."""
    for pieces, micro_batches, idle in ((1, 1, 3), (2, 1, 3), (2, 2, 2.5), (2, 4, 1.5), (2, 8, 1.5), (1, 2, 3)):
        run = replace(PIPELINE, virtual_pipeline=pieces, accumulate=micro_batches)
        nothing = CopyTraffic(
            sum_count=0, sum_bytes=0, ring=RingTraffic(0, 0), experts=ExpertTraffic(0, 0), handover_bytes=0
        )
        assert wait_in_copy_s(nothing, 1.0, 0.0, run, A100) == pytest.approx(idle / micro_batches)


def test_no_stage_has_more_layers_than_the_first_and_the_last() -> None:
    layer = 4 * HIDDEN**2 + 2 * HIDDEN * INNER
    lowering = WorkloadAnalysis(MODEL, ALONE).lowering
    for stages, pieces, layers in ((2, 2, 4), (2, 3, 4), (3, 1, 3), (3, 2, 4), (2, 4, 4)):  # of 6 pieces, 4 have two
        first, last = stages_of(MODEL, lowering, stages, pieces)
        assert first.graph.parameter_count == last.graph.parameter_count == layers * layer + WORDS * HIDDEN


@pytest.mark.parametrize(("name", "length"), [("gpt2", 512), ("bert_base", 128), ("vit_b_16", 197)])
def test_a_stage_hands_on_a_row_for_each_token_whatever_the_models_output_is(name: str, length: int) -> None:
    """The outputs of BERT are words, and of ViT one row for the picture."""
    graph = gpusage.read_model(MODELS / f"{name}.onnx")
    assert analyze(graph, PIPELINE).division.copy_traffic.handover_bytes == 2 * 2 * (2 * length * 768)


def test_neighbours_on_other_hosts_share_the_cards_of_their_host() -> None:
    """A100s have a card of 25 GB/s each, of which four fifths are left; of a ring on 16, two hosts, two GPUs send."""
    assert send_s_per_byte(A100, 16, None, 8) == pytest.approx(1 / (0.8 * 25e9))
    assert send_s_per_byte(A100, 16, None, 1) == pytest.approx(1 / (0.8 * 8 * 25e9))
    assert allreduce_s_per_byte(A100, 2, None, 8) == pytest.approx(1 / (0.8 * 25e9))
    assert allreduce_s_per_byte(A100, 2, None, 4) == allreduce_s_per_byte(A100, 2)


def test_the_first_stage_keeps_the_activations_of_as_many_micro_batches_as_there_are_stages() -> None:
    first = analyze(MODEL, PIPELINE).first_stage
    assert first is not None
    assert first.in_flight == 4
    few = analyze(MODEL, replace(PIPELINE, accumulate=2)).first_stage
    assert few is not None
    assert few.in_flight == 2
    assert first.stage_peak.required.value > few.stage_peak.required.value
    checkpointed = analyze(MODEL, replace(PIPELINE, checkpointing=True)).first_stage
    assert checkpointed is not None
    assert checkpointed.checkpoints is not None
    assert int(np.count_nonzero(checkpointed.checkpoints.recomputed_nodes)) == len(checkpointed.graph.nodes) - 1
    assert checkpointed.stage_peak.required.value < first.stage_peak.required.value


@pytest.mark.parametrize("workload", [TENSOR, PIPELINE, replace(PIPELINE, gpus=16, tensor=2, checkpointing=True)])
def test_the_parts_of_the_memory_add_up_and_are_less_than_on_one_gpu(workload: Workload) -> None:
    need = predicted(MODEL, workload, [A100])[0]
    parts = explanation_of(MODEL, workload, A100).memory
    assert sum(part.memory_bytes for part in parts) == pytest.approx(need.memory_bytes.value)
    assert need.required_memory_bytes.value < predicted(MODEL, ALONE, [A100])[0].required_memory_bytes.value
    assert need.familiar is False
    copies = "2 copies train by zero1" if workload.gpus == 16 else "One copy trains"
    assert any("GPUs that compute a batch together" in note and f"). {copies}." in note for note in need.notes)
    assert any(note.startswith("A step of batch 2 on a100-sxm4-80gb waits ") for note in need.notes)


def test_of_the_gradients_that_come_last_each_gpu_has_its_part() -> None:
    """The embedding's rows are divided as all weights are: 50,000 words of 512 numbers of 4 bytes, on 4 GPUs."""
    wordy = with_layers(language_model(HIDDEN, HEADS, HEADS, INNER, 50_000, LENGTH), LAYERS)
    run = replace(TENSOR, gpus=8, strategy="ddp")
    gradients = gradient_traffic(analyze(wordy, run).lowering, run)
    assert gradients.late_bytes == 4 * 50_000 * HIDDEN / 4
    assert sum(gradients) == wordy.parameter_count


def test_megatron_has_gradients_of_bf16_in_4_bytes() -> None:
    """6 + 12 / d bytes for each weight in bf16, 4 + 16 / d in fp16; gradients are summed where they are."""
    run = replace(ALONE, gpus=8, tensor=2)
    lowering = WorkloadAnalysis(MODEL, run).lowering
    wide, narrow = (sharding_of(lowering, replace(run, precision=precision)) for precision in ("bf16", "fp16"))
    assert (wide.gradients, narrow.gradients) == (1, 0.5 + 1 / 4)
    assert wide.bucket_bytes == narrow.bucket_bytes == 0
    assert wide.state == narrow.state == 1 / 4
    assert sharding_of(lowering, replace(run, gpus=2, strategy="ddp")).bucket_bytes == 0
    sent = [sum(gradient_traffic(lowering, replace(run, precision=precision))) for precision in ("bf16", "fp16")]
    assert sent == [3 * lowering.parameter_count, 2 * lowering.parameter_count]  # sums of 4 bytes, weights of 2
    summed = replace(run, strategy="ddp")
    assert sum(gradient_traffic(lowering, summed)) == 4 * lowering.parameter_count


def test_megatrons_gradients_take_room_from_the_first_step_on() -> None:
    """Its buffer of gradients is allotted once; else a weight's gradient takes room when the backward pass makes it."""
    megatron = replace(TENSOR, batch_size=64)  # so large that most memory is taken before the backward pass
    for run, same in ((replace(megatron, strategy="fsdp"), False), (megatron, True)):
        first, second = (explanation_of(MODEL, replace(run, accumulate=count), A100).memory for count in (1, 2))
        gradients = [sum(p.memory_bytes for p in parts if p.name == "gradients") for parts in (first, second)]
        assert (gradients[0] == gradients[1]) == same
    assert gradients[1] == pytest.approx(MODEL.parameter_count)  # a quarter of the weights, 4 bytes each


def test_megatrons_products_add_to_the_gradients() -> None:
    """A product reads and writes 4 bytes for each weight, where it wrote 2; else one kernel casts, and one adds."""
    weights = MODEL.parameter_count / 4
    for strategy, sums in (("zero1", 6 * weights), ("fsdp", (12 + 6) * weights * 3 / 4)):  # of 4 steps, 3 add
        kernels = analyze(MODEL, replace(TENSOR, accumulate=4, strategy=strategy)).kernels  # type: ignore[arg-type]
        of_no_node = (kernels.kind == -1) & (kernels.operator_class == OperatorClass.ELEMENTWISE)
        moved = kernels.traffic_bytes[of_no_node] * kernels.counts[of_no_node]
        assert moved[-1] == pytest.approx(sums)


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        (replace(ALONE, gpus=3, tensor=3), r"got 8 heads, 3 GPUs\. Write 'tensor=N' with N one of 2, 4, 8\.$"),
        (replace(ALONE, gpus=9, pipeline=9), r"got 8 layers, pipeline=9\. Write 'pipeline=8' or less\.$"),
        (
            replace(PIPELINE, virtual_pipeline=4),
            r"got 8 layers, virtual_pipeline=4\. Write 'virtual_pipeline=2' or less",
        ),
        (
            replace(PIPELINE, gpus=8, pipeline=8, virtual_pipeline=2),
            r"got 8 layers, virtual_pipeline=2\. Remove 'virtual_pipeline'\.$",
        ),
    ],
)
def test_sizes_that_do_not_divide_a_model_are_refused(workload: Workload, sentence: str) -> None:
    with pytest.raises(GraphError, match=sentence):
        predicted(MODEL, workload, [A100])


def test_a_model_without_heads_or_layers_cannot_be_divided() -> None:
    resnet = gpusage.read_model(MODELS / "resnet50.onnx")
    with pytest.raises(GraphError, match=r"must have attention heads for 'tensor'; got none\. Remove 'tensor'\.$"):
        predicted(resnet, TENSOR, [A100])
    with pytest.raises(
        GraphError, match=r"must have one row of equal layers for 'pipeline'; got none that gpusage recognizes\. Remove"
    ):
        predicted(resnet, PIPELINE, [A100])
    with pytest.raises(GraphError, match=r"equal layers for 'pipeline'; got layers of several kinds\. Remove"):
        predicted(gpusage.read_model("hf:t5-base"), PIPELINE, [A100])


def test_heads_of_keys_must_be_divided() -> None:
    """As Megatron wants it: `num_query_groups` is a multiple of the GPUs."""
    shared = with_layers(language_model(HIDDEN, HEADS, 2, INNER, WORDS, LENGTH), LAYERS)
    assert predicted(shared, replace(TENSOR, gpus=2, tensor=2), [A100])
    with pytest.raises(GraphError, match=r"got 2 and 8 heads, 4 GPUs\. Write 'tensor=2'\.$"):
        predicted(shared, TENSOR, [A100])


def test_each_number_of_heads_must_be_divided() -> None:
    """As in CLIP, whose text has 8 heads and whose picture 12."""
    text, picture = (language_model(96, heads, heads, INNER, WORDS, LENGTH) for heads in (8, 12))
    behind = [tuple(source + len(text.nodes) if source >= 0 else source for source in row) for row in picture.producers]
    both = replace(text, nodes=(*text.nodes, *picture.nodes), producers=(*text.producers, *behind))
    with pytest.raises(GraphError, match=r"got 8 and 12 heads, 8 GPUs\. Write 'tensor=N' with N one of 2, 4\.$"):
        predicted(both, replace(TENSOR, gpus=8, tensor=8), [A100])


def test_windows_are_no_heads() -> None:
    """Swin-T has 3 to 24 heads in 64 to 1 windows of a picture."""
    swin = gpusage.read_model(MODELS / "swin_t.onnx")
    with pytest.raises(GraphError, match=r"got 3 and 6 and 12 and 24 heads, 2 GPUs\. Write 'tensor=3'\.$"):
        predicted(swin, replace(TENSOR, gpus=2, tensor=2), [A100])


def test_experts_are_not_divided() -> None:
    layer = node("GroupedMatMul", [(-1, HIDDEN)], (-1, INNER), (8, HIDDEN, INNER))
    with pytest.raises(GraphError, match=r"must have no experts for 'tensor', .*; got tensor=4\. Remove 'tensor'\.$"):
        predicted(chain("experts", [layer], (-1, HIDDEN)), TENSOR, [A100])


def test_heads_that_are_multiplied_with_the_batch_count() -> None:
    scores, tokens = (-HEADS, LENGTH, LENGTH), (-HEADS, LENGTH, HIDDEN // HEADS)
    nodes = [
        node("MatMul", [tokens, (-HEADS, HIDDEN // HEADS, LENGTH)], scores),
        node("Softmax", [scores], scores),
        node("MatMul", [scores, tokens], tokens),
    ]
    graph = replace(MODEL, nodes=tuple(nodes), producers=((-1, -1), (0,), (1, -1)), inputs=(("tokens", tokens),))
    with pytest.raises(GraphError, match="got 8 heads, 3 GPUs"):
        predicted(graph, replace(TENSOR, gpus=3, tensor=3), [A100])


def test_one_stage_without_divided_layers_sends_nothing() -> None:
    traffic = analyze(MODEL, ALONE).division.copy_traffic
    assert traffic == copy_traffic(divided_layers(analyze(MODEL, ALONE).lowering, MODEL, ALONE), MODEL, ALONE)
    assert wait_in_copy_s(traffic, 1.0, 0.0, ALONE, A100) == 0


def test_the_note_on_parameters_is_of_the_whole_model_not_of_a_stage() -> None:
    """With 2 layers for each of 4 GPUs; the numbers of measured models end at 2,880 million."""
    large = replace(MODEL, parameter_count=3 * 10**9)
    notes = predicted(large, PIPELINE, [A100])[0].notes
    assert any(note.startswith("The model has 3,000 million parameters;") for note in notes)


def test_rows_of_a_table_share_the_note_on_their_copies() -> None:
    needs = [need for batch in (2, 4) for need in predicted(MODEL, replace(TENSOR, batch_size=batch), [A100, H100])]
    notes = need_table.notes(needs)
    assert sum("compute a batch together" in note for note in notes) == 1
    waits = [note.partition(" waits ")[0] for note in notes if " waits " in note]
    gpus = ("a100-sxm4-80gb", "h100-sxm5-80gb")
    assert waits == [f"A step of batch {batch} on {gpu}" for batch in (2, 4) for gpu in gpus]
