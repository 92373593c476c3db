"""Generation by a language model: a prefill of the prompt, then one decode pass per new token with a KV cache.

Invariants:

1. The prefill reads all tokens of the prompt and gives the first new token: logits of the last token alone.
2. Each decode pass reads one token and all weights, but for those of experts that no token is routed to, and keys and
   values of all tokens before it.
3. The cache has keys and values of all tokens but the last, of every sample.
4. An encoder runs in the prefill alone, and its decoder then begins with one token. Keys and values that the decoder
   takes from it are made once, and read by each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpusage.predictors.arrays import FloatArray, IntArray
from gpusage.predictors.work.lowering import Lowering, split_kinds
from gpusage.predictors.work.operators import OperatorClass, element_count
from gpusage.predictors.work.sequences import Attention, Part, SequenceModel
from gpusage.predictors.work.structure import Role
from gpusage_hooks.types import Decoding, ModelGraph

CACHE_COPIES = 6.0
"""How often transformers reads or writes each key and value in each pass before attention reads them, repeated for the
queries that share them. We chose it from 4 to 7: with 6 the result is nearest to the tokens per second that Qwen's
authors published for Qwen2 and Qwen2.5 on an A100 after prompts of up to 31,000 tokens. The time grows with the number
of query heads, not of key heads; an H20 shows it too: 16, 32, 40 and 64 heads take 0.8, 1.5, 2.0 and 3.0 ms per
layer."""


class Pass(NamedTuple):
    """A forward pass, and the bytes of keys and values that are cached at its end."""

    lowering: Lowering
    kv_cache_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingWork:
    """What writing one answer to each sample of a batch takes.

    Attributes:
        prompt: The pass over the prompt; where an encoder reads that, its own pass and the decoder's first.
        decoder_start: The latter alone, after the encoder's tensors are gone; none without an encoder.
        token: The pass over one new token, with a context of mean length.
        decode_count: How often that runs.
        kv_cache_bytes: Keys and values of one token, of the whole batch.
        read_bytes: Those of the whole prompt that a decoder takes from an encoder.
        prompt_tokens: Whose keys and values are cached by the first pass.
        total_tokens: Whose keys and values are cached at the end.
    """

    prompt: Lowering
    decoder_start: Lowering | None
    token: Lowering
    decode_count: int
    kv_cache_bytes: float
    read_bytes: float
    prompt_tokens: int
    total_tokens: int

    def divided(self, divide: Callable[[Lowering], Lowering], cache_parts: int) -> DecodingWork:
        """Return what one of several GPUs has of this: *divide* of each pass, and one of *cache_parts* of the cache."""
        return replace(
            self,
            prompt=divide(self.prompt),
            decoder_start=divide(self.decoder_start) if self.decoder_start else None,
            token=divide(self.token),
            kv_cache_bytes=self.kv_cache_bytes / cache_parts,
            read_bytes=self.read_bytes / cache_parts,
        )

    def passes(self) -> tuple[Pass, Pass]:
        """Return the pass over the prompt, and that of the last new token."""
        first, last = (self.read_bytes + self.kv_cache_bytes * one for one in (self.prompt_tokens, self.total_tokens))
        return Pass(self.prompt, first), Pass(self.token, last)

    def memory_phases(self) -> tuple[Pass, ...]:
        """Return the passes between which what is in memory changes: an encoder has no keys and values beside it."""
        first, last = self.passes()
        return (
            (Pass(self.prompt, 0.0), Pass(self.decoder_start, first.kv_cache_bytes), last)
            if self.decoder_start
            else (first, last)
        )


class CacheSizes(NamedTuple):
    """How attention is computed.

    Attributes:
        float_bytes: Of a number in the cache of keys and values.
        is_fused: Whether each attention is one kernel, whatever the graph has.
    """

    float_bytes: float
    is_fused: bool = False


def decoding_work(
    graph: ModelGraph,
    sequences: SequenceModel,
    lowering: Lowering,
    decoding: Decoding,
    batch_size: int,
    cache: CacheSizes,
) -> DecodingWork:
    """Return what one answer takes.

    Args:
        graph: A language model.
        sequences: Of *graph*.
        lowering: Of *graph*, at the length that it was read with.
        decoding: How many tokens are read and written.
        batch_size: Samples that are answered side by side.
        cache: How attention is computed.
    """
    whole, parts = split_kinds(lowering, sequences.parts)
    sizes = _Sizes(graph, sequences, parts, batch_size, cache)

    # A decoder with an encoder begins with one token, whatever the prompt.
    prompt, new = decoding.prompt_tokens, decoding.new_tokens
    first = 1 if sequences.has_encoder else prompt
    read, written = prompt / sequences.prompt, sequences.written

    # The mean pass over one token attends to what the first pass left, and to half of the new tokens.
    token = _rescale_sequence(whole, sizes, _Scale(read, 1 / written, (first + new / 2) / written))
    token = _without_encoder(token, parts)
    if not cache.is_fused:
        token = _with_copied_cache(token, sizes, first + new / 2)

    prompt_pass = _rescale_sequence(whole, sizes, _Scale(read, first / written, first / written))
    return DecodingWork(
        prompt=prompt_pass,
        decoder_start=_without_encoder(prompt_pass, parts) if sequences.has_encoder else None,
        token=_with_reached_experts(token, written, batch_size),
        decode_count=new - 1,
        kv_cache_bytes=sizes.of_cache(part=Part.DECODER) / written,
        read_bytes=sizes.of_cache(part=Part.CROSS_ATTENTION) * read,
        prompt_tokens=first,
        total_tokens=first + new - 1,
    )


def _without_encoder(lowering: Lowering, parts: IntArray) -> Lowering:
    """Return the work without that of an encoder, which has run, and whose tensors are gone."""
    runs = parts != Part.ENCODER
    structure = replace(lowering.structure, counts=lowering.structure.counts * runs)
    return replace(lowering, output_bytes=lowering.output_bytes * runs, structure=structure)


def _with_copied_cache(lowering: Lowering, sizes: _Sizes, keys: float) -> Lowering:
    """Return the work of a pass over one token as transformers does it: *keys* and values are copied for all queries.

    Attention that is written out as two products reads them as they lie, and what an encoder gave is not copied.
    """
    read, structure = lowering.read_bytes.copy(), lowering.structure
    for one in sizes.sequences.attentions:
        kind, is_own = structure.kind_of_node[one.values], sizes.sequences.parts[one.values] == Part.DECODER
        if is_own and lowering.operator_class[kind] == OperatorClass.ATTENTION:
            repeated = 2.0 * keys * sizes.of_input(one.scores, 0) / sizes.sequences.written
            read[kind] = lowering.read_bytes[kind] + CACHE_COPIES * repeated
    return replace(lowering, read_bytes=read)


def _with_reached_experts(lowering: Lowering, length: int, batch_size: int) -> Lowering:
    """Return the work of a pass over one token of each sample, which reads the weights of the experts reached alone.

    A token that goes to k of E experts misses one of them with probability 1 - k / E, and all t tokens miss it with
    (1 - k / E)^t, where each expert is as likely as any other. Where some are more popular, fewer are read.

    Args:
        lowering: Of the pass.
        length: Tokens of a sample that the graph was read with.
        batch_size: Samples, each of which has one token in the pass.
    """
    parameter_bytes = lowering.parameter_bytes.copy()
    for number, node in enumerate(lowering.structure.kinds):
        if node.op_type == "GroupedMatMul" and node.parameters:
            experts = node.parameters[0][0]

            # To how many experts each token goes: rows of the layer for each token of the graph.
            chosen = element_count(node.inputs[0][:1], batch_size) / (batch_size * length)
            parameter_bytes[number] *= 1.0 - (1.0 - min(chosen / experts, 1.0)) ** batch_size
    return replace(lowering, parameter_bytes=parameter_bytes)


class _Scale(NamedTuple):
    """The length of a pass, divided by that which the graph was read with.

    Attributes:
        read: Of the prompt, where an encoder reads it.
        written: Tokens that go through the pass.
        context: Tokens that they attend to.
    """

    read: float
    written: float
    context: float

    def of(self, parts: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return what the tokens and the keys of each kind are multiplied by."""
        tokens, keys = (self.read, self.written, self.written), (self.read, self.context, self.read)
        return np.array(tokens)[parts], np.array(keys)[parts]


class _Sizes(NamedTuple):
    """What no length changes of a model; *parts* has one entry per kind."""

    graph: ModelGraph
    sequences: SequenceModel
    parts: IntArray
    batch_size: int
    cache: CacheSizes

    def of_input(self, node: int, place: int) -> float:
        """Return the bytes of an input of a node."""
        return self.cache.float_bytes * element_count(self.graph.nodes[node].inputs[place], self.batch_size)

    def of_keys(self, attention: Attention) -> float:
        """Return the bytes of the keys of all tokens."""
        return self.cache.float_bytes * self.batch_size * attention.key_elements

    def of_values(self, attention: Attention) -> float:
        """Return the bytes of the values of all tokens."""
        return self.cache.float_bytes * self.batch_size * attention.value_elements

    def of_cache(self, *, part: Part) -> float:
        """Return the bytes of keys and values of all attentions of *part*."""
        attentions = [one for one in self.sequences.attentions if self.sequences.parts[one.values] == part]
        elements = sum(one.key_elements + one.value_elements for one in attentions)
        return self.batch_size * self.cache.float_bytes * elements


def _rescale_sequence(lowering: Lowering, sizes: _Sizes, scale: _Scale) -> Lowering:
    """Return the work of a pass whose sequences have other lengths."""
    structure, kind = lowering.structure, lowering.structure.kind_of_node
    share, keys = scale.of(sizes.parts)
    work, written = share.copy(), share.copy()
    read, width = lowering.read_bytes * share, lowering.width.copy()

    # Scores, and what is done to them, grow with tokens and with keys.
    for one in sizes.sequences.attentions:
        grown = kind[[*one.between, *([one.scores] if one.scores != one.values else [])]]
        work[grown] = written[grown] = (share * keys)[grown]
        width[grown] = lowering.width[grown] * keys[grown]
        read[grown] = (lowering.read_bytes * share * keys)[grown]
        work[kind[one.values]] = (share * keys)[kind[one.values]]

    # What an attention reads: queries of the tokens of the pass, keys and values of all before them.
    for one in sizes.sequences.attentions:
        of_scores, of_values = kind[one.scores], kind[one.values]
        query, key = sizes.of_input(one.scores, 0) * share[of_scores], keys[of_values]
        if one.scores == one.values:
            read[of_values] = query + (sizes.of_keys(one) + sizes.of_values(one)) * key
        else:
            is_fused = sizes.cache.is_fused or structure.roles[of_values] == Role.VALUES
            scores = 0.0 if is_fused else sizes.of_input(one.values, 0) * share[of_values] * key
            read[of_scores] = query + sizes.of_keys(one) * key
            read[of_values] = scores + sizes.of_values(one) * key

    # Logits are made of the last token alone.
    last = kind[structure.output_nodes]
    last = last[lowering.operator_class[last] == OperatorClass.PRODUCT]
    work[last] = written[last] = 1.0 / sizes.sequences.written
    read[last] = lowering.read_bytes[last] / sizes.sequences.written

    rescaled = replace(
        lowering,
        flop=lowering.flop * work,
        read_bytes=read,
        written_bytes=lowering.written_bytes * written,
        output_elements=lowering.output_elements * written,
        output_bytes=lowering.output_bytes * written,
        inner=np.maximum(lowering.inner * work / written, 1.0),
        width=np.maximum(width, 1.0),
        cast_elements=lowering.cast_elements * written,
    )
    return _with_fused_attention(rescaled, sizes.sequences.attentions) if sizes.cache.is_fused else rescaled


def _with_fused_attention(lowering: Lowering, attentions: Sequence[Attention]) -> Lowering:
    """Return the work where each attention is one kernel: nothing between its two products goes through memory."""
    kind = lowering.structure.kind_of_node
    apart = [one for one in attentions if one.scores != one.values]
    inside = kind[np.array([node for one in apart for node in one.between], dtype=np.int64)]

    # Scores, and what is done to them, are neither written nor launched; what was inside reads nothing either.
    passed = np.concatenate([inside, kind[np.array([one.scores for one in apart], dtype=np.int64)]])
    table = {name: getattr(lowering, name).copy() for name in ("written_bytes", "output_bytes", "sequential_steps")}
    for column in table.values():
        column[passed] = 0.0
    read = lowering.read_bytes.copy()
    read[inside] = 0.0
    return replace(lowering, read_bytes=read, **table)
