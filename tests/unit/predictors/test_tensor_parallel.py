"""Generation on several GPUs, each with a part of every layer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.decisions.serving import Server, fleet_of, serving_of
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import analyze
from gpusage.predictors.needs import predicted
from gpusage.predictors.work.decoding import DecodingWork
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Decoding, Engine, ModelGraph, Workload
from graphs import language_model

LLAMA = language_model(4096, 32, 32, 11008, 32000, length=128)
MISTRAL = language_model(4096, 32, 8, 14336, 32000, length=128)
ONE_KEY_HEAD = language_model(4096, 32, 1, 14336, 32000, length=128)
A100, T4 = (builtin_catalogue().find(name) for name in ("a100-sxm4-80gb", "t4"))


def run(gpus: int, engine: Engine = "vllm", prompt: int = 512, new: int = 128) -> Workload:
    decoding = Decoding(prompt_tokens=prompt, new_tokens=new)
    return Workload(mode="infer", precision="fp16", generate=decoding, engine=engine, gpus=gpus)


def work_of(graph: ModelGraph, workload: Workload) -> DecodingWork:
    work = analyze(graph, workload).decoding
    assert work is not None
    return work


@pytest.mark.parametrize(
    ("graph", "parts"), [(LLAMA, 4), (MISTRAL, 4), (ONE_KEY_HEAD, 1)], ids=["llama", "mistral", "one key head"]
)
def test_each_gpu_has_a_part_of_the_weights_and_of_the_heads_of_keys_as_far_as_there_are(
    graph: ModelGraph, parts: int
) -> None:
    whole, part = work_of(graph, run(1)), work_of(graph, run(4))
    assert part.prompt.parameter_count == pytest.approx(whole.prompt.parameter_count / 4, abs=1)
    assert part.kv_cache_bytes == whole.kv_cache_bytes / parts
    needed = [analyze(graph, run(gpus)).required_bytes([A100])[0].value for gpus in (1, 4)]
    assert needed[1] < needed[0]


def test_a_block_waits_for_two_sums_of_its_tokens_vectors() -> None:
    exchange = analyze(LLAMA, run(2)).on([A100]).exchange
    assert exchange is not None
    assert (exchange.prompt_count, exchange.token_count) == (2, 2)  # the graph has one block
    assert (exchange.vector_bytes, exchange.prompt_tokens) == (2 * 4096, 512)
    prompt_s, token_s = exchange.seconds([A100, T4], 2)
    assert all(prompt_s > token_s)
    assert prompt_s[0] < prompt_s[1]  # T4s have no links of their own


@pytest.mark.parametrize("engine", ["eager", "vllm"])
def test_more_gpus_are_faster_at_long_prompts_where_links_are_fast_and_never_n_times(engine: Engine) -> None:
    steps_s = [predicted(LLAMA, run(gpus, engine, prompt=4096, new=2), [A100])[0].step_time_s for gpus in (1, 2, 4)]
    one, two, four = (each.value for each in steps_s)
    assert one > two > four > one / 4


def test_a_gpu_says_that_it_is_one_of_several_and_that_nobody_measured_them_here() -> None:
    (need,) = predicted(LLAMA, run(4), [A100])
    assert not need.familiar
    assert any("each of 4 GPUs, which divide each layer" in note for note in need.notes)


def test_several_gpus_serve_what_one_cannot_hold_and_a_rate_takes_whole_sets_of_them() -> None:
    small = replace(A100, memory_bytes=int(analyze(LLAMA, run(1)).required_bytes([A100])[0].value))
    assert serving_of(Server(LLAMA, run(1), small)).answers == 0
    assert serving_of(Server(LLAMA, run(4), small)).answers > 0
    fleet = fleet_of(Server(LLAMA, run(4), small), 2000.0, 1.0)
    assert fleet is not None
    assert fleet.gpu_count % 4 == 0
    assert fleet.share_percent == 100


def test_rates_are_told_per_gpu() -> None:
    one, four = (serving_of(Server(LLAMA, run(gpus), A100)) for gpus in (1, 4))
    assert four.tokens_per_s < one.tokens_per_s
    assert four.token_s < one.token_s


@pytest.mark.parametrize("gpus", [3, 64, 10**9])
def test_heads_that_gpus_cannot_divide_evenly_are_refused(gpus: int) -> None:
    with pytest.raises(GraphError, match=f"got 32 heads, {gpus} GPUs. Write 'gpus=N' with N one of 2, 4, 8, 16, 32"):
        predicted(LLAMA, run(gpus), [A100])
