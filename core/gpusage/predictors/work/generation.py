"""Answers of a language model: the prompt in one pass, then one pass for each new token, which reads a cache.

Invariants:

1. The first pass reads all tokens of the prompt and gives the first new token: logits of the last token alone.
2. Each further pass reads one token and all weights, but for those of experts that no token goes to, and keys and
   values of all tokens before it.
3. The cache has keys and values of all tokens but the last, of every sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpusage.predictors.work.attentions import Attention, attentions_of, length_of
from gpusage.predictors.work.kernels import Kernels
from gpusage.predictors.work.lowering import Lowering
from gpusage.predictors.work.operators import OperatorClass, element_count
from gpusage.predictors.work.structure import Role
from gpusage_hooks.types import Generation, ModelGraph

_COLUMNS = ("operator_class", "flop", "traffic_bytes", "blocks", "launches", "trips", "counts", "matrix_units")
_MORE_COLUMNS = ("inner", "width", "backward", "kind")


class Pass(NamedTuple):
    """A forward pass, and the bytes of keys and values that are cached at its end."""

    lowering: Lowering
    cached_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What writing one answer to each sample of a batch takes.

    Attributes:
        prompt: The pass over the prompt.
        token: The pass over one new token, with a context of mean length.
        token_count: How often that runs.
        cached_bytes: Keys and values of one token, of the whole batch.
        prompt_tokens: Whose keys and values are cached by the first pass.
        total_tokens: Whose keys and values are cached at the end.
    """

    prompt: Lowering
    token: Lowering
    token_count: int
    cached_bytes: float
    prompt_tokens: int
    total_tokens: int

    def passes(self) -> tuple[Pass, Pass]:
        """Return the pass over the prompt, and that of the last new token."""
        first, last = self.cached_bytes * self.prompt_tokens, self.cached_bytes * self.total_tokens
        return Pass(self.prompt, first), Pass(self.token, last)

    def kernels(self, prompt: Kernels, token: Kernels) -> Kernels:
        """Return the kernels of one answer, of those of its two passes."""
        table = {name: np.concatenate([getattr(prompt, name), getattr(token, name)]) for name in _ALL_COLUMNS}
        table["counts"] = np.concatenate([prompt.counts, token.counts * self.token_count])
        return Kernels(**table, host_counts=prompt.host_counts + token.host_counts * self.token_count)


_ALL_COLUMNS = (*_COLUMNS, *_MORE_COLUMNS)


def answer_of(
    graph: ModelGraph, lowering: Lowering, generation: Generation, batch_size: int, float_bytes: float
) -> Answer:
    """Return what one answer takes.

    Args:
        graph: A language model.
        lowering: Of *graph*, at the length that it was read with.
        generation: How many tokens are read and written.
        batch_size: Samples that are answered side by side.
        float_bytes: Of a number in the cache.

    Raises:
        GraphError: The model does not write on what it reads.
    """
    attentions, length = attentions_of(graph), length_of(graph)
    elements = sum(one.key_elements + one.value_elements for one in attentions)
    prompt, new = generation.prompt_tokens, generation.new_tokens
    sizes = _Sizes(graph, attentions, length, batch_size, float_bytes)
    return Answer(
        prompt=_resized(lowering, sizes, prompt, prompt),
        token=_routed(_resized(lowering, sizes, 1, prompt + new / 2), length, batch_size),
        token_count=new - 1,
        cached_bytes=batch_size * float_bytes * elements / length,
        prompt_tokens=prompt,
        total_tokens=prompt + new - 1,
    )


def _routed(lowering: Lowering, length: int, batch_size: int) -> Lowering:
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
            chosen = element_count(node.inputs[0][:1], batch_size) / (batch_size * length)
            parameter_bytes[number] *= 1.0 - (1.0 - min(chosen / experts, 1.0)) ** batch_size
    return replace(lowering, parameter_bytes=parameter_bytes)


class _Sizes(NamedTuple):
    """What of a model no length changes."""

    graph: ModelGraph
    attentions: Sequence[Attention]
    length: int
    batch_size: int
    float_bytes: float

    def of_input(self, node: int, place: int) -> float:
        """Return the bytes of an input of a node."""
        return self.float_bytes * element_count(self.graph.nodes[node].inputs[place], self.batch_size)

    def of_keys(self, attention: Attention) -> float:
        """Return the bytes of the keys of all tokens."""
        return self.float_bytes * self.batch_size * attention.key_elements

    def of_values(self, attention: Attention) -> float:
        """Return the bytes of the values of all tokens."""
        return self.float_bytes * self.batch_size * attention.value_elements


def _resized(lowering: Lowering, sizes: _Sizes, tokens: float, context: float) -> Lowering:
    """Return the work of a pass over so many *tokens* of each sample, each with so many in its *context*."""
    structure, kind = lowering.structure, lowering.structure.kind_of_node
    share, keys = tokens / sizes.length, context / sizes.length
    work, written = np.full(len(lowering.flop), share), np.full(len(lowering.flop), share)
    read, width = lowering.read_bytes * share, lowering.width.copy()
    for one in sizes.attentions:
        grown = kind[[*one.between, *([one.scores] if one.scores != one.values else [])]]
        work[grown] = written[grown] = share * keys
        width[grown] = lowering.width[grown] * keys
        read[grown] = lowering.read_bytes[grown] * share * keys
        work[kind[one.values]] = share * keys
    for one in sizes.attentions:
        query = sizes.of_input(one.scores, 0) * share
        if one.scores == one.values:
            read[kind[one.values]] = query + (sizes.of_keys(one) + sizes.of_values(one)) * keys
        else:
            is_fused = structure.roles[kind[one.values]] == Role.VALUES
            scores = 0.0 if is_fused else sizes.of_input(one.values, 0) * share * keys
            read[kind[one.scores]] = query + sizes.of_keys(one) * keys
            read[kind[one.values]] = scores + sizes.of_values(one) * keys
    last = kind[structure.unread]
    last = last[lowering.operator_class[last] == OperatorClass.PRODUCT]
    work[last] = written[last] = 1.0 / sizes.length
    read[last] = lowering.read_bytes[last] / sizes.length
    return replace(
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
