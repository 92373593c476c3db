"""How many answers of a language model a GPU writes side by side, how fast, and how many GPUs a rate of requests takes.

A server batches continuously: it reads the prompt of a new request as soon as an answer ends, and all others wait for
that pass. With N answers side by side, one that has n new tokens takes N prefills and n passes over one token each:

    residence = N * prefill + n * token(N),    answers per second = N / residence

Keys and values lie in blocks of tokens, which fill what the weights leave of the memory that the server reserves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf

from gpusage.devices.shares import share_of
from gpusage.policies.candidates import why_unlimited
from gpusage.policies.latency import waited_services
from gpusage.predictors.analysis import analyze
from gpusage.predictors.memory.peak import context_of
from gpusage.predictors.times.step_time import RESERVED_SHARE, reserved_share
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Decoding, Gpu, Interval, ModelGraph, Workload
from gpusage_hooks.units import GIB

BLOCK_TOKENS = 16
"""Tokens whose keys and values lie in one block: the default of vLLM's ``--block-size``."""
MOST_ANSWERS = 256
"""Side by side: the default of vLLM's ``--max-num-seqs`` for most of its releases."""
USUAL_TOKENS = 8192
"""Of a pass, at most: the largest default of vLLM's ``--max-num-batched-tokens``, on large GPUs; 2,048 on others."""
SERVER_CONTEXT_BYTES = 0.35 * GIB
"""What vLLM measured beside PyTorch's tensors on an RTX 3090, Llama 3.1 8B (its issue 10517): less than a context."""
SERVER_GRAPHS_BYTES = 2.5 * GIB
"""What recorded graphs take at most: on RTX 4090 (vLLM's issue 7553)."""
IN_TIME = 0.99
"""The part of the requests for which a promised first token holds."""
MOST_GPUS = 4096
SHARE_PERCENTS = (25, 50, 75)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The service of a GPU, or of several that divide the model's layers, `Workload.gpus`.

    Attributes:
        blocks: How many of `BLOCK_TOKENS` tokens fit beside the weights; 0 where these do not fit.
        answers: Side by side, as many as the blocks hold; 0 where not even one fits.
        first_token_s: From a request to its first token, where a place is free.
        token_s: From one token of an answer to the next, with all places taken.
        tokens_per_s: New tokens of all answers, per GPU.
        factor: 9 of 10 times and rates lie within this factor.
    """

    gpu: str
    blocks: Interval
    answers: int
    first_token_s: float
    token_s: float
    tokens_per_s: float
    factor: float

    @property
    def user_tokens_per_s(self) -> float:
        """Return the tokens per second that a user reads."""
        return 1.0 / self.token_s if self.answers else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """How many GPUs of one type a rate of requests takes; a share of one GPU if that is enough."""

    gpu_count: int
    share_percent: int = 100


@dataclass(frozen=True, slots=True)
class Server:
    """A model on one GPU, behind a server.

    Attributes:
        workload: In inference, with ``generate``; its batch does not count.
        gpu: A whole GPU, or a part of one.
        batched_tokens: That a pass has at most, for which the server keeps room; ``None`` where nobody said it.
        has_narrow_cache: Whether a number in the cache has 1 byte, whatever the precision.
    """

    graph: ModelGraph
    workload: Workload
    gpu: Gpu
    batched_tokens: int | None = None
    has_narrow_cache: bool = False

    def resident_bytes(self, tokens: int) -> float:
        """Return all but the cache where a pass has at most *tokens*."""
        decoding = self.workload.generate or Decoding(prompt_tokens=tokens, new_tokens=1)
        run = replace(self.workload, batch_size=1, generate=replace(decoding, prompt_tokens=tokens))
        analysis = analyze(self.graph, run, has_narrow_cache=self.has_narrow_cache)
        cached = analysis.decoding.passes()[1].kv_cache_bytes if analysis.decoding else 0.0
        return analysis.required_bytes([self.gpu])[0].value - cached

    def prefill_s(self) -> float:
        """Return the seconds of the pass over a prompt."""
        return self._pass_s(1, 0)

    def token_s(self, answers: int) -> float:
        """Return the seconds of a pass over one token of each of *answers*."""
        return self._pass_s(answers, 1)

    def _pass_s(self, answers: int, number: int) -> float:
        run = replace(self.workload, batch_size=answers)
        analysis = analyze(self.graph, run, has_narrow_cache=self.has_narrow_cache)
        return float(analysis.on([self.gpu]).tokens[number].step_s[0])

    def residence_s(self, answers: int) -> float:
        """Return the seconds of an answer that is written beside the others of *answers*."""
        decoding = self.workload.generate
        return answers * self.prefill_s() + (decoding.new_tokens if decoding else 0) * self.token_s(answers)

    def answers_for(self, rate_per_s: float, most: int) -> int | None:
        """Return the smallest batch of answers, at most *most*, that keeps up with a rate; ``None`` if none does."""
        if most < 1 or most / self.residence_s(most) < rate_per_s:
            return None
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if middle / self.residence_s(middle) >= rate_per_s else (middle, high)
        return high


def serving_of(server: Server) -> Serving:
    """Return the service of a GPU, with as many answers of `Workload.generate` as its memory holds.

    Raises:
        RequestError: The GPUs compute one after the other.
    """
    workload, gpu = server.workload, server.gpu
    if workload.strategy == "pipeline":
        message = (
            "GPUs that serve must divide each layer, because a server that computes several batches in turn is not "
            "predicted; got strategy=pipeline. Remove 'strategy'."
        )
        raise RequestError(message)

    alone = analyze(server.graph, replace(workload, batch_size=1), has_narrow_cache=server.has_narrow_cache)
    decoding = alone.decoding
    if decoding is None:
        message = "A workload that is served must generate."
        raise ValueError(message)

    # Of one sample all but its cache is resident, and what a decoder takes from an encoder for the prompt. Blocks of
    # keys and values fill the rest of the memory that the server reserves.
    tokens = server.batched_tokens or decoding.prompt_tokens
    reserved_bytes = (reserved_share(workload) or RESERVED_SHARE) * gpu.memory_bytes
    resident_bytes = server.resident_bytes(tokens)
    free_bytes = reserved_bytes - resident_bytes - decoding.read_bytes * decoding.prompt_tokens
    # At worst the server keeps room for its usual pass, and its graphs; at best it has a small context.
    least = server.resident_bytes(server.batched_tokens or max(tokens, USUAL_TOKENS)) - resident_bytes
    most = max(context_of(gpu).value - SERVER_CONTEXT_BYTES, 0.0)
    block_bytes = BLOCK_TOKENS * decoding.kv_cache_bytes
    ends = (free_bytes - least - SERVER_GRAPHS_BYTES, free_bytes, free_bytes + most)
    low, blocks, high = (max(int(end // block_bytes), 0) for end in ends)
    answers = min(blocks // ceil(decoding.total_tokens / BLOCK_TOKENS), MOST_ANSWERS)

    count = max(answers, 1)
    step = alone.step_time_s([gpu])[0]
    residence_s, tokens = server.residence_s(count), decoding.decode_count + 1
    return Serving(
        gpu=gpu.name,
        blocks=Interval(value=blocks, low=low, high=high),
        answers=answers,
        first_token_s=server.prefill_s() + (server.token_s(count) if answers > 1 else 0.0),
        token_s=residence_s / tokens,
        tokens_per_s=answers * tokens / residence_s / workload.gpus,
        factor=step.high / step.value,
    )


def fleet_of(server: Server, rate_per_s: float, first_token_s: float) -> Fleet | None:
    """Return how many of a server's GPU serve *rate_per_s* requests; ``None`` where no number of them does.

    Args:
        server: On a whole GPU.
        rate_per_s: Requests that come at random, spread evenly over the GPUs.
        first_token_s: Within which 99 of 100 requests have their first token; infinite for no promise.
    """
    workload, gpu = server.workload, server.gpu
    most = serving_of(server).answers
    if not most or server.prefill_s() > first_token_s:
        return None

    # The fewest GPUs whose throughput is enough; then more of them, by a tenth, until waits are short enough, too.
    count = ceil(rate_per_s / (most / server.residence_s(most)))
    while count * workload.gpus <= MOST_GPUS and not _keeps(server, rate_per_s / count, first_token_s, most):
        count = max(count + 1, int(count * 1.1))
    if count * workload.gpus > MOST_GPUS:
        return None

    # Where one GPU is enough, the smallest share of it may be.
    if count * workload.gpus == 1 and not why_unlimited(gpu):
        for percent in SHARE_PERCENTS:
            part = replace(share_of(gpu, percent), memory_bytes=gpu.memory_bytes * percent // 100)
            one = replace(server, gpu=part)
            if _keeps(one, rate_per_s, first_token_s, serving_of(one).answers):
                return Fleet(gpu_count=1, share_percent=percent)
    return Fleet(gpu_count=count * workload.gpus)


def _keeps(server: Server, rate_per_s: float, first_token_s: float, most: int) -> bool:
    """Return whether 99 of 100 requests have their first token in time where one GPU has *rate_per_s* of them.

    A prompt waits for the pass that runs, and for the prompts before it: one server that takes the same time for each.
    """
    answers = server.answers_for(rate_per_s, most)
    if answers is None:
        return False

    prefill_s = server.prefill_s()
    waited = waited_services(rate_per_s * prefill_s, IN_TIME)
    pass_s = server.token_s(answers) if answers > 1 else 0.0
    return pass_s + prefill_s * (1 + waited) <= first_token_s if waited < inf else False
