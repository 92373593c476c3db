"""Answers of models with an encoder, by hand: T5-base, BART-base, Whisper-small, Marian."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import gpusage
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.explanation import explanation_of
from gpusage.predictors.extrapolation import workload_notes
from gpusage.predictors.needs import predicted
from gpusage.predictors.work.decoding import CACHE_COPIES, DecodingWork
from gpusage.predictors.work.lowering import Lowering
from gpusage.predictors.work.operators import OperatorClass
from gpusage.predictors.work.sequences import MOST_ATTENTIONS, Part, sequence_model
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Decoding, ModelGraph, Node, Workload

T5_SMALL = Path(__file__).parents[3] / "examples" / "models" / "t5_small.onnx"
A100 = builtin_catalogue().find("a100")
BATCH = 3


class ElementCounts(NamedTuple):
    """What a model's paper says, how many tokens of an encoder a prompt makes, and what is done to each score.

    A softmax counts 5 FLOP; T5 adds a number for the distance before.
    """

    name: str
    layers: int
    hidden: int
    inner: int
    words: int
    prompt: int
    read: int
    flop_of_score: int = 5


MODELS = [
    ElementCounts("hf:t5-base", 12, 768, 3072, 32128, 512, 512, flop_of_score=6),
    ElementCounts("hf:bart-base", 6, 768, 3072, 50265, 512, 512),
    # 30 s of sound are 3000 frames, of which a convolution takes every second
    ElementCounts("hf:whisper-small", 12, 768, 3072, 51865, 3000, 1500),
    ElementCounts("hf:opus-mt-en-de", 6, 512, 2048, 58101, 100, 100),
]
BY_MODEL = pytest.mark.parametrize("sizes", MODELS, ids=[one.name for one in MODELS])


@lru_cache
def graph_of(name: str) -> ModelGraph:
    return gpusage.read_model(name)


def run(prompt: int, new: int = 128, batch_size: int = BATCH) -> Workload:
    decoding = Decoding(prompt_tokens=prompt, new_tokens=new)
    return Workload(batch_size=batch_size, mode="infer", precision="fp16", generate=decoding)


def decoding_of(sizes: ElementCounts, new: int = 128) -> DecodingWork:
    actual = WorkloadAnalysis(graph_of(sizes.name), run(sizes.prompt, new)).decoding
    assert actual is not None
    return actual


def flop(lowering: Lowering) -> float:
    """Return the FLOP of products and attentions of one sample."""
    products = [OperatorClass.PRODUCT, OperatorClass.ATTENTION, OperatorClass.BATCHED_PRODUCT]
    is_sum = np.isin(lowering.operator_class, products)
    return float(lowering.flop[is_sum] @ lowering.structure.counts[is_sum]) / BATCH


@BY_MODEL
def test_an_encoder_reads_once_and_a_decoder_writes_token_by_token(sizes: ElementCounts) -> None:
    _, layers, hidden, inner, words, _, read, flop_of_score = sizes
    both = decoding_of(sizes)
    # scores and values: 4 FLOP for each number of a query and each key; a score is of 64 numbers
    pair = 4 * hidden + flop_of_score * hidden // 64
    # weights that a token meets: four products of an attention and the two of a perceptron; a decoder has query and
    # output of its second attention as well, whose keys and values are made of the prompt, once
    encoder = layers * (read * 2 * (4 * hidden**2 + 2 * hidden * inner) + read**2 * pair)
    keys_and_values = layers * read * 2 * 2 * hidden**2
    of_token = layers * (2 * (6 * hidden**2 + 2 * hidden * inner) + read * pair) + 2 * hidden * words
    assert flop(both.prompt) == pytest.approx(encoder + keys_and_values + of_token + layers * pair)
    # 128 tokens: the mean context of the 127 later passes is 65
    assert flop(both.token) == pytest.approx(of_token + layers * pair * 65)
    assert both.decode_count == 127


@BY_MODEL
def test_two_caches_are_kept_one_of_them_grows(sizes: ElementCounts) -> None:
    both = decoding_of(sizes)
    a_token = BATCH * sizes.layers * 2 * sizes.hidden * 2
    assert both.kv_cache_bytes == a_token
    assert both.read_bytes == a_token * sizes.read
    first, last = both.passes()
    assert first.kv_cache_bytes == a_token * (sizes.read + 1)
    assert last.kv_cache_bytes == a_token * (sizes.read + 128)
    assert decoding_of(sizes, new=1).passes()[1].kv_cache_bytes == a_token * (sizes.read + 1)


@BY_MODEL
def test_each_token_reads_the_decoders_weights_and_both_caches(sizes: ElementCounts) -> None:
    first, token = WorkloadAnalysis(graph_of(sizes.name), run(sizes.prompt)).passes
    decoder = sizes.layers * (6 * sizes.hidden**2 + 2 * sizes.hidden * sizes.inner) + sizes.hidden * sizes.words
    cache = BATCH * sizes.layers * 2 * sizes.hidden * 2 * (sizes.read + 65)
    own = CACHE_COPIES * BATCH * sizes.layers * 2 * sizes.hidden * 2 * 65  # what the encoder gave is not copied
    known = 2 * decoder + cache + own
    # scores of a few models, biases and what a token writes come on top
    assert known < float(token.counts @ token.traffic_bytes) < 1.1 * known
    encoder = sizes.layers * (6 * sizes.hidden**2 + 2 * sizes.hidden * sizes.inner)
    assert float(first.counts @ first.traffic_bytes) > 2 * (decoder + encoder)
    assert first.counts.sum() > 1.5 * token.counts.sum()


@BY_MODEL
def test_memory_is_weights_and_both_caches_and_what_passes(sizes: ElementCounts) -> None:
    graph = graph_of(sizes.name)
    short, long = (analyze(graph, run(sizes.prompt, new)).peak.taken.value for new in (1, 448))
    of_one = sizes.layers * 2 * sizes.hidden * 2 * BATCH
    assert short > 2 * graph.parameter_count + of_one * (sizes.read + 1)
    assert 2 * graph.parameter_count + of_one * (sizes.read + 448) <= long
    # the pass over the prompt writes more than fits into the cache of few tokens; a sample's sound is 80 x 3000 numbers
    inputs = BATCH * 80 * 3000 * 4 if sizes.prompt != sizes.read else 0
    assert long <= max(short, 2 * graph.parameter_count + of_one * (sizes.read + 448) + inputs + 2 * 2**20)


def test_an_encoder_s_own_tensors_are_gone_before_all_keys_and_values_are_there() -> None:
    """T5-small, 512 tokens: 8 heads of 512 x 512 scores, of which two live, are 8 MiB; keys and values take 6 MiB.

    They were added up; the most that is in memory at once is the encoder's.
    """
    graph = gpusage.read_model(str(T5_SMALL))
    analysis = WorkloadAnalysis(graph, run(512, batch_size=512))
    assert analysis.decoding is not None
    encoder, begin, last = analysis.decoding.memory_phases()
    assert (encoder.kv_cache_bytes, begin.kv_cache_bytes) == (0.0, pytest.approx(6 * 2**20 * 512, rel=0.01))
    assert last.kv_cache_bytes > begin.kv_cache_bytes
    lowest = 2 * 8 * 512 * 512 * 2 * 512
    weights = 2 * graph.parameter_count
    assert lowest < analysis.peak.taken.value - weights < lowest + begin.kv_cache_bytes


def test_parts_of_time_and_memory_add_up() -> None:
    graph, workload = graph_of("hf:t5-base"), run(512)
    explained, need = explanation_of(graph, workload, A100), predicted(graph, workload, [A100])[0]
    assert sum(part.memory_bytes for part in explained.memory) == pytest.approx(need.memory_bytes.value)
    in_classes = sum(part.seconds.total_s for part in explained.classes)
    assert in_classes + explained.waiting_s == pytest.approx(need.step_time_s.value)
    assert sum(layer.seconds.total_s for layer in explained.layers) == pytest.approx(in_classes)
    # 12 layers, keys and values of 768 numbers of two bytes: 36 KiB for a token, 18 MiB for 512
    assert "Keys and values take 36 KiB for each new token of each sample, and 18.0 MiB for its prompt." in need.notes


def test_a_file_is_as_the_library_s_definition_and_the_decoder_needs_no_name() -> None:
    file, built = gpusage.read_model(T5_SMALL), graph_of("hf:t5-small")
    by_file, by_name = (predicted(graph, run(512), [A100])[0] for graph in (file, built))
    assert by_file.memory_bytes.value == pytest.approx(by_name.memory_bytes.value, rel=0.02)
    (source, first), (_, second) = file.inputs
    unnamed = replace(file, inputs=((source, first), ("tgt", second)))
    assert sequence_model(unnamed).has_encoder
    assert predicted(unnamed, run(512), [A100])[0].step_time_s == by_file.step_time_s


def test_decoders_alone_and_models_that_only_read_have_one_part() -> None:
    for name in ("hf:gpt2", "hf:bert-base-uncased", "hf:llama-2-7b"):
        sequences = sequence_model(graph_of(name))
        assert not sequences.has_encoder
        assert set(sequences.parts.tolist()) == {Part.DECODER}


def test_a_pass_without_generate_says_what_it_leaves_out() -> None:
    for name in ("hf:whisper-small", "hf:t5-base"):
        (need,) = predicted(graph_of(name), Workload(mode="infer"), [A100])
        assert any("generate=512+128" in note for note in need.notes)


@pytest.mark.parametrize(
    ("name", "prompt", "expected"),
    [("hf:whisper-small", 512, 1), ("hf:whisper-small", 3000, 0), ("hf:t5-base", 512, 0)],
)
def test_a_prompt_of_sound_of_another_length_is_said(name: str, prompt: int, expected: int) -> None:
    run = Workload(mode="infer", generate=Decoding(prompt_tokens=prompt, new_tokens=8))
    (need,) = predicted(graph_of(name), run, [A100])
    assert sum("read with 3000 frames of sound" in note for note in need.notes) == expected


def test_an_encoder_of_pictures_is_refused() -> None:
    graph = graph_of("hf:t5-small")
    pictures = replace(graph, inputs=(("pixel_values", (-1, 3, 224, 224)), graph.inputs[1]))
    with pytest.raises(GraphError, match="must read one sequence of tokens or of sound and write tokens on it"):
        sequence_model(pictures)


def test_a_prompt_without_a_length_counts_as_one_token() -> None:
    """It was a division by zero."""
    graph = graph_of("hf:t5-small")
    (name, _), decoder = graph.inputs
    assert sequence_model(replace(graph, inputs=((name, (-1, 0)), decoder))).prompt == 1


def test_an_encoder_that_looks_at_neighbours_alone_is_refused() -> None:
    graph = graph_of("hf:t5-small")
    sequences = sequence_model(graph)
    local = next(one.scores for one in sequences.attentions if sequences.parts[one.scores] == Part.ENCODER)
    node = graph.nodes[local]
    nodes: list[Node] = [*graph.nodes]
    nodes[local] = replace(node, outputs=((*node.outputs[0][:-1], 64),))
    with pytest.raises(GraphError, match="must attend to its own"):
        sequence_model(replace(graph, nodes=tuple(nodes)))


def test_a_forged_card_s_thousands_of_inputs_are_not_followed() -> None:
    graph = graph_of("hf:t5-small")
    forged = replace(graph, inputs=(*graph.inputs, *[("x", (-1, 1))] * 31))
    with pytest.raises(GraphError, match="must read one sequence of tokens or of sound and write tokens on it"):
        sequence_model(forged)
    assert sequence_model(replace(forged, inputs=forged.inputs[:32])).prompt == 128


def test_a_forged_card_s_thousands_of_attentions_are_not_looked_at() -> None:
    tokens, count = (-1, 16, 8), MOST_ATTENTIONS
    words = Node(op_type="Gather", inputs=((-1, 16),), outputs=(tokens,), parameters=((100, 8),))
    attention = Node(op_type="Attention", inputs=(tokens,) * 3, outputs=(tokens,))
    graph = ModelGraph(
        name="forged",
        source="",
        inputs=(("tokens", (-1, 16)),),
        nodes=(words, *[attention] * (count + 1)),
        producers=((-1,), *[(node,) * 3 for node in range(count + 1)]),
        parameter_count=800,
    )
    with pytest.raises(GraphError, match=r"must have at most 4096 attentions; got more\. Leave 'generate' out"):
        sequence_model(graph)
    fewer = replace(graph, nodes=graph.nodes[:-1], producers=graph.producers[:-1])
    assert len(sequence_model(fewer).attentions) == count


def decoder(keys: int | None, columns: int) -> ModelGraph:
    """Return one attention of 16 tokens to *columns* states of 512 numbers; *keys* makes these its keys."""
    tokens, states, sizes = (-1, 16, 512), (-1, columns, 512), (-1, 16, columns)
    nodes = (
        Node(op_type="Gather", inputs=((-1, 16),), outputs=(tokens,)),
        Node(op_type="Linear", inputs=(states,), outputs=((-1, 512, columns),)),
        Node(op_type="MatMul", inputs=(tokens, (-1, 512, columns)), outputs=(sizes,)),
        Node(op_type="Softmax", inputs=(sizes,), outputs=(sizes,)),
        Node(op_type="MatMul", inputs=(sizes, states), outputs=(tokens,)),
    )
    return ModelGraph(
        name="decoder",
        source="",
        inputs=(("tokens", (-1, 16)), ("states", states)),
        nodes=nodes,
        producers=((-1,), (-2,), (0, 1 if keys is None else keys), (2,), (3, -2)),
        parameter_count=0,
    )


@pytest.mark.parametrize("keys", [None, -2], ids=["keys are made", "keys are the input"])
def test_a_decoder_s_own_file_reads_as_many_states_as_it_has_keys(keys: int | None) -> None:
    graph = decoder(keys, columns=128)
    sequences = sequence_model(graph)
    assert sequences.has_encoder
    assert (sequences.prompt, sequences.written) == (128, 16)
    assert workload_notes(graph, run(64)) == ()  # these are no frames of sound
