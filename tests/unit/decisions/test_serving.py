"""What a GPU serves, by hand: blocks of the cache, answers side by side, and GPUs for a rate."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

import pytest

from gpusage.decisions.advisor import advisor
from gpusage.decisions.serving import BLOCK_TOKENS, MOST_ANSWERS, Fleet, Server, fleet_of, serving_of
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.policies.latency import waited_services
from gpusage.predictors.analysis import analyze
from gpusage.predictors.intervals import scaled
from gpusage_hooks.types import Decoding, Workload
from graphs import language_model

A100 = builtin_catalogue().find("a100")
SMALL = replace(A100, memory_bytes=4 * 2**30)
LLAMA = language_model(4096, 32, 32, 11008, 32000, length=128)
RUN = Workload(
    mode="infer", precision="bf16-pure", engine="vllm", generate=Decoding(prompt_tokens=1000, new_tokens=200)
)


def test_blocks_fill_what_the_weights_leave_of_the_reserved_memory() -> None:
    serving = serving_of(Server(LLAMA, RUN, SMALL))
    needed = analyze(LLAMA, RUN).required_bytes([SMALL])[0].value
    # one layer, bf16: keys and values of 4096 numbers a token; an answer has those of all tokens but the last
    resident = needed - 2 * 2 * 4096 * 1199
    assert serving.blocks.value == (0.9 * SMALL.memory_bytes - resident) // (BLOCK_TOKENS * 2 * 2 * 4096)
    assert serving.answers == serving.blocks.value // ceil(1199 / BLOCK_TOKENS) < MOST_ANSWERS
    assert serving_of(Server(LLAMA, RUN, A100)).answers == MOST_ANSWERS


def test_what_does_not_fit_is_not_served() -> None:
    tiny = replace(A100, memory_bytes=2**30)
    serving = serving_of(Server(LLAMA, RUN, tiny))
    assert (serving.answers, serving.blocks.value, serving.tokens_per_s, serving.user_tokens_per_s) == (0, 0, 0, 0)
    assert fleet_of(Server(LLAMA, RUN, tiny), 1.0, inf) is None


def test_an_answer_waits_for_the_prompts_of_the_others() -> None:
    serving = serving_of(Server(LLAMA, RUN, SMALL))
    one, all_of_them = (
        analyze(LLAMA, replace(RUN, batch_size=size)).on([SMALL]).tokens for size in (1, serving.answers)
    )
    prefill_s, token_s = float(one[0].step_s[0]), float(all_of_them[1].step_s[0])
    assert serving.first_token_s == pytest.approx(prefill_s + token_s)
    assert serving.token_s == pytest.approx((serving.answers * prefill_s + 200 * token_s) / 200)
    assert serving.tokens_per_s == pytest.approx(serving.answers / serving.token_s)
    assert serving.user_tokens_per_s == pytest.approx(1 / serving.token_s)


def test_a_rate_takes_as_many_gpus_as_keep_up_with_it() -> None:
    serving = serving_of(Server(LLAMA, RUN, SMALL))
    of_one = serving.tokens_per_s / 200  # answers per second
    assert fleet_of(Server(LLAMA, RUN, SMALL), 2.5 * of_one, inf) == Fleet(gpu_count=3)
    assert fleet_of(Server(LLAMA, RUN, SMALL), 0.99 * of_one, inf) == Fleet(gpu_count=1)


def test_a_share_is_enough_for_few_requests() -> None:
    fleet = fleet_of(Server(LLAMA, RUN, A100), 0.01, inf)
    assert fleet == Fleet(gpu_count=1, share_percent=25)


def test_a_promise_takes_more_gpus_and_one_below_the_prefill_is_none() -> None:
    serving = serving_of(Server(LLAMA, RUN, SMALL))
    prefill_s = float(analyze(LLAMA, RUN).on([SMALL]).tokens[0].step_s[0])
    rate = 8 * serving.tokens_per_s / 200
    plain, tight = (
        fleet_of(Server(LLAMA, RUN, SMALL), rate, inf),
        fleet_of(Server(LLAMA, RUN, SMALL), rate, 1.5 * prefill_s),
    )
    assert plain is not None
    assert tight is not None
    assert plain.gpu_count < tight.gpu_count
    # prompts queue for the GPU, one after the other
    assert prefill_s * (1 + waited_services(rate / tight.gpu_count * prefill_s, 0.99)) <= 1.5 * prefill_s
    assert fleet_of(Server(LLAMA, RUN, SMALL), rate, 0.9 * prefill_s) is None


def test_what_generates_nothing_is_not_served() -> None:
    with pytest.raises(ValueError, match="must generate"):
        serving_of(Server(LLAMA, replace(RUN, generate=None), A100))


@pytest.mark.parametrize(
    ("model", "gpu", "batched_tokens", "seen_tokens"),
    [
        # vLLM's own logs: its issue 10517, where a pass has as many tokens as the model's length, or 2,048 beyond 32k
        ("hf:llama-3.1-8b", "rtx3090", 2_048, 2_980 * 16),
        ("hf:llama-3.1-8b", "rtx3090", 20_000, 1_952 * 16),
        ("hf:llama-3.1-8b", "rtx3090", 29_000, 1_478 * 16),
        # its pull requests 2031 and 10511, and a public benchmark of November 2026
        ("hf:llama-2-7b", "a100-sxm4-80gb", 4_096, 7_351 * 16),
        ("hf:llama-3-8b", "h100-sxm5-80gb", 8_192, 53.29 * 2**30 / (128 * 2**10)),
        ("hf:llama-3.1-8b", "a100-sxm4-40gb", None, 163_168),
    ],
)
def test_the_cache_that_servers_had_lies_in_the_interval(
    model: str, gpu: str, batched_tokens: int | None, seen_tokens: float
) -> None:
    graph = advisor().read(model)
    server = Server(graph, replace(RUN, precision="fp16"), builtin_catalogue().find(gpu), batched_tokens)
    longest = scaled(serving_of(server).blocks, BLOCK_TOKENS)
    assert longest.low <= seen_tokens <= longest.high
    assert longest.value == pytest.approx(seen_tokens, rel=0.25)


def test_a_narrower_cache_holds_twice_as_many_tokens_and_nobodys_word_widens_the_interval() -> None:
    plain, narrow = (serving_of(Server(LLAMA, RUN, A100, 1000, is_narrow)).blocks for is_narrow in (False, True))
    # of what the weights leave, 199 tokens in their own size: the prompt's pass is the fullest, before they are written
    assert narrow.value == pytest.approx(2 * plain.value - 199 / BLOCK_TOKENS, abs=2)
    assert serving_of(Server(LLAMA, RUN, A100)).blocks.low < plain.low


def test_a_narrower_cache_moves_half_as_many_bytes() -> None:
    """All answers read their caches for each token, so twice as many in half the bytes take nearly as long."""
    plain, narrow = (Server(LLAMA, RUN, A100, has_narrow_cache=is_narrow) for is_narrow in (False, True))
    weights_s = plain.token_s(1)
    assert narrow.token_s(256) - weights_s == pytest.approx((plain.token_s(256) - weights_s) / 2, rel=0.1)
    assert serving_of(narrow).tokens_per_s > serving_of(plain).tokens_per_s
