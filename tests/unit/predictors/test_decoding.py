"""Answers of language models, by hand: Llama-7B, Mistral's shared heads, GPT-2 XL, in one layer each."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpusage
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.explanation import explanation_of
from gpusage.predictors.needs import predicted
from gpusage.predictors.work.decoding import CACHE_COPIES, DecodingWork
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Decoding, ModelGraph, Workload
from graphs import language_model, perceptron_graph

MODELS = Path(__file__).parents[3] / "examples" / "models"
A100 = builtin_catalogue().find("a100")


LLAMA = language_model(4096, 32, 32, 11008, 32000, length=128)
MISTRAL = language_model(4096, 32, 8, 14336, 32000, length=128)
GPT2_XL = language_model(1600, 25, 25, 6400, 50257, length=64)


def run(prompt: int, new: int, batch_size: int = 1) -> Workload:
    decoding = Decoding(prompt_tokens=prompt, new_tokens=new)
    return Workload(batch_size=batch_size, mode="infer", precision="bf16", generate=decoding)


def decoding_of(graph: ModelGraph, workload: Workload) -> DecodingWork:
    actual = WorkloadAnalysis(graph, workload).decoding
    assert actual is not None
    return actual


def flop(graph: ModelGraph, workload: Workload) -> tuple[float, float]:
    """Return the FLOP of products and attentions in the pass over the prompt, and in one over a token."""
    both = decoding_of(graph, workload)
    is_sum = [OperatorClass.PRODUCT, OperatorClass.ATTENTION, OperatorClass.BATCHED_PRODUCT]
    chosen = [
        sum(
            flop * count
            for one, flop, count in zip(
                part.operator_class.tolist(), part.flop.tolist(), part.structure.counts.tolist(), strict=True
            )
            if one in is_sum
        )
        for part in (both.prompt, both.token)
    ]
    return chosen[0], chosen[1]


@pytest.mark.parametrize(
    ("graph", "cached"),
    [
        # one layer, bf16: keys and values of 4096 numbers; 32 layers of Llama-7B have 512 KiB a token
        (LLAMA, 2 * 4096 * 2),
        # 8 heads of 128 that four queries share each
        (MISTRAL, 2 * 8 * 128 * 2),
        # 48 layers of GPT-2 XL have 300 KiB a token
        (GPT2_XL, 2 * 1600 * 2),
    ],
)
def test_the_cache_has_keys_and_values_of_each_token(graph: ModelGraph, cached: int) -> None:
    assert decoding_of(graph, run(512, 128)).kv_cache_bytes == cached
    assert decoding_of(graph, run(512, 128, batch_size=16)).kv_cache_bytes == 16 * cached
    assert decoding_of(graph, run(7, 1)).kv_cache_bytes == cached


@pytest.mark.parametrize(
    ("graph", "hidden", "products"),
    [
        # weights of a layer that each token is multiplied with
        (LLAMA, 4096, 4 * 4096**2 + 2 * 4096 * 11008),
        (MISTRAL, 4096, 2 * 4096**2 + 2 * 4096 * 1024 + 2 * 4096 * 14336),
        (GPT2_XL, 1600, 4 * 1600**2 + 2 * 1600 * 6400),
    ],
)
def test_a_pass_does_two_flop_for_each_weight_and_token(graph: ModelGraph, hidden: int, products: int) -> None:
    words = graph.nodes[-1].outputs[0][-1]
    prompt, token = flop(graph, run(512, 128, batch_size=3))
    # scores and values: 4 FLOP for each number of a query and each key; logits of one token of each sample. A softmax
    # inside a fused attention counts 5 for each score, of which there are as many heads.
    heads = 25 if graph is GPT2_XL else 32
    of_logits = 2 * hidden * words
    assert prompt == pytest.approx(3 * (512 * 2 * products + 512**2 * (4 * hidden + 5 * heads) + of_logits))
    # the mean context is the prompt and half of the new tokens
    assert token == pytest.approx(3 * (2 * products + 576 * (4 * hidden + 5 * heads) + of_logits))


@pytest.mark.parametrize("graph", [LLAMA, MISTRAL])
def test_each_token_reads_all_weights_and_the_cache_that_is_copied_for_all_queries(graph: ModelGraph) -> None:
    kernels = WorkloadAnalysis(graph, run(512, 128)).kernels
    prompt = WorkloadAnalysis(graph, run(512, 1)).kernels
    assert prompt.counts.sum() * 128 == kernels.counts.sum()
    moved = float(kernels.counts @ kernels.traffic_bytes) - float(prompt.counts @ prompt.traffic_bytes)
    weights = 2 * (graph.parameter_count - 32000 * 4096)  # the embedding is read by rows
    cache = decoding_of(graph, run(512, 128)).kv_cache_bytes * 576
    copies = CACHE_COPIES * 2 * 2 * 4096 * 576  # keys and values of 32 heads, though Mistral's have 8
    # what a token writes and reads beside these is small
    assert weights + cache + copies < moved / 127 < 1.001 * (weights + cache + copies)
    assert kernels.host_counts[0] == 128


def test_the_length_that_the_model_was_read_with_does_not_matter() -> None:
    long = language_model(4096, 32, 32, 11008, 32000, length=1024)
    short, same = (predicted(graph, run(512, 128, 4), [A100])[0] for graph in (LLAMA, long))
    assert same.step_time_s.value == pytest.approx(short.step_time_s.value, rel=1e-3)
    assert same.memory_bytes.value == pytest.approx(short.memory_bytes.value, rel=1e-3)


def test_memory_is_weights_and_cache_and_what_passes() -> None:
    whole = analyze(LLAMA, run(1024, 1024, 64)).peak.taken.value
    one = analyze(LLAMA, run(1024, 1, 64)).peak.taken.value
    weights = 2 * LLAMA.parameter_count
    cache = 64 * 2 * 4096 * 2
    assert whole >= weights + cache * 2047
    # the pass over the prompt has the largest tensors: the inner product of 64 x 1024 tokens, before and after GELU
    assert one == pytest.approx(weights + cache * 1024 + 1.05 * 2 * 64 * 1024 * 11008 * 2, rel=0.01)


def test_more_tokens_and_more_samples_take_longer_and_need_more() -> None:
    base, *more = (
        predicted(GPT2_XL, one, [A100])[0] for one in (run(128, 32), run(256, 32), run(128, 64), run(128, 32, 8))
    )
    assert all(one.step_time_s.value > base.step_time_s.value for one in more)
    # of one layer the pass over the prompt needs most, however many tokens follow
    assert [one.memory_bytes.value > base.memory_bytes.value for one in more] == [True, False, True]
    assert more[2].throughput_samples_per_s.value > 4 * base.throughput_samples_per_s.value


def test_parts_of_time_and_memory_add_up() -> None:
    explained = explanation_of(GPT2_XL, run(128, 32, 8), A100)
    need = predicted(GPT2_XL, run(128, 32, 8), [A100])[0]
    assert sum(part.memory_bytes for part in explained.memory) == pytest.approx(need.memory_bytes.value)
    assert min(part.memory_bytes for part in explained.memory) > 0
    in_classes = sum(part.seconds.total_s for part in explained.classes)
    assert in_classes + explained.waiting_s == pytest.approx(need.step_time_s.value)
    assert sum(layer.seconds.total_s for layer in explained.layers) == pytest.approx(in_classes)


def test_tokens_are_told_in_notes_and_a_pass_without_says_what_it_leaves_out() -> None:
    need = predicted(GPT2_XL, run(512, 128), [A100])[0]
    assert need.notes[0].startswith("On a100-sxm4-40gb the first token takes ")
    assert need.notes[1] == "Keys and values take 6 KiB for each token of each sample."
    assert predicted(GPT2_XL, run(512, 128, 8), [A100])[0].notes[1] == need.notes[1]
    plain = predicted(GPT2_XL, Workload(mode="infer"), [A100])[0]
    assert "without a cache of keys and values" in plain.notes[0]
    assert predicted(GPT2_XL, Workload(), [A100])[0].notes == ()
    assert predicted(perceptron_graph(), Workload(mode="infer"), [A100])[0].notes == ()


def test_passes_follow_one_another_so_that_the_host_s_floor_holds_for_each() -> None:
    analysis = analyze(GPT2_XL, run(512, 128, 16))
    gpus = [builtin_catalogue().find(name) for name in ("v100", "a100", "h100")]
    there = analysis.on(gpus)
    first, then = there.tokens
    assert there.timing.step_s == pytest.approx(first.step_s + 127 * then.step_s)
    assert there.timing.busy_s == pytest.approx(first.busy_s + 127 * then.busy_s)
    # the prompt keeps a V100 so long that its host could start every token meanwhile, if it knew the tokens
    host_s = float(analysis.passes[1].host_counts @ analysis.efficiency.host_s)
    assert (then.step_s >= host_s).all()


def test_a_newer_gpu_writes_no_token_more_slowly_and_a_note_says_how_long_it_waits() -> None:
    gpus = [builtin_catalogue().find(name) for name in ("v100", "a100", "h100")]
    graph = gpusage.read_model("hf:gpt2-xl")
    then = analyze(graph, run(512, 128, 4)).on(gpus).tokens[1]
    assert sorted(then.step_s, reverse=True) == then.step_s.tolist()
    waits = [need.notes[1] for need in predicted(graph, run(512, 128, 4), gpus)]
    assert all("of which the GPU waits" in note and "for the host to launch kernels." in note for note in waits)
    # prompts of 8,192 samples: the GPU is what a token waits for
    assert "waits" not in predicted(graph, run(512, 128, 8192), gpus)[0].notes[1]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("lstm_lm", "must have attentions whose keys and values can be cached"),
        ("vit_b_16", "must read one sequence of tokens or of sound"),
    ],
)
def test_models_that_do_not_write_on_are_refused(name: str, rule: str) -> None:
    graph = gpusage.read_model(MODELS / f"{name}.onnx")
    with pytest.raises(GraphError, match=rule):
        gpusage.predict(graph, gpu="a100", mode="infer", generate=(512, 128))


def test_gpt2_from_a_file_has_its_cache() -> None:
    graph = gpusage.read_model(MODELS / "gpt2.onnx")
    # twelve layers, keys and values of 768 numbers in fp32
    actual = WorkloadAnalysis(graph, Workload(mode="infer", generate=Decoding(prompt_tokens=1, new_tokens=1))).decoding
    assert actual is not None
    assert actual.kv_cache_bytes == 12 * 2 * 768 * 4
