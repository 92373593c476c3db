"""The attentions of a language model, which nodes read the prompt, and which write new tokens.

Of an attention, the product of queries and keys, what is done to the scores, and the product with the values grow with
the number of keys; everything else of a model grows with the tokens that it reads. A decoder-only model reads and
writes with the same nodes. A decoder with an encoder is what depends on an input that queries come from, but not their
keys: T5's ``decoder_input_ids``, whatever it is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from itertools import chain, islice
from operator import or_
from typing import NoReturn

import numpy as np

from gpusage.predictors.arrays import BoolArray, IntArray
from gpusage.predictors.work.operators import OperatorClass, class_of, element_count
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node

# Nodes between the product that makes keys and the attention, and between softmax and products; rarely ten.
_MOST_STEPS = 40
_PASSED = (OperatorClass.ELEMENTWISE, OperatorClass.VIEW, OperatorClass.COPY)
SEQUENCE_RANK = 2
"""Of an input of tokens: batch and length."""
MOST_ATTENTIONS = 4096
"""Of a model that writes, which has one or two in each layer; a forged card may have tens of thousands to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One attention, by the indices of its nodes; one that is a single node is its own scores and values.

    Attributes:
        scores: The product of queries and keys.
        between: What is done to the scores.
        values: The product of scores and values.
        key_elements: Of the keys of one sample that are kept, before heads are repeated.
        value_elements: The same of the values.
    """

    scores: int
    between: tuple[int, ...]
    values: int
    key_elements: int
    value_elements: int


def find_attentions(graph: ModelGraph) -> list[Attention]:
    """Return the attentions of a model.

    Raises:
        GraphError: They are more than those of any model.
    """
    attentions = [*islice(chain(_fused(graph), _products(graph)), MOST_ATTENTIONS + 1)]
    if len(attentions) > MOST_ATTENTIONS:
        raise_decoding_error(graph, f"have at most {MOST_ATTENTIONS} attentions; got more")
    return attentions


def raise_decoding_error(graph: ModelGraph, rule: str) -> NoReturn:
    """Raise the error of a *graph* that breaks a *rule* of models that generate.

    Raises:
        GraphError: Always.
    """
    message = f"Model {graph.name!r} with 'generate' must {rule}. Leave 'generate' out to predict one forward pass."
    raise GraphError(message)


def is_language_model(graph: ModelGraph) -> bool:
    """Return whether a model gives, for each token that it reads, a row of numbers for all words that it knows."""
    sequences = [shape for _, shape in graph.inputs if len(shape) == SEQUENCE_RANK]
    last = graph.nodes[-1].outputs if graph.nodes else ()

    # It looks words up in a table, and its last output has as many numbers for each token.
    rows: set[int] = {node.parameters[0][0] for node in graph.nodes if node.op_type == "Gather" and node.parameters}
    is_text = bool(last) and last[0][:-1] in sequences and last[0][-1] in rows
    return is_text and any(
        node.op_type == "Softmax" or class_of(node) == OperatorClass.ATTENTION for node in graph.nodes
    )


def _fused(graph: ModelGraph) -> Iterator[Attention]:
    """Yield the attentions that are one node."""
    for index, node in enumerate(graph.nodes):
        if class_of(node) == OperatorClass.ATTENTION and len(node.inputs) >= 3:  # query, key, value
            keys, values = (_cached_elements(graph, index, place) for place in (1, 2))
            yield Attention(scores=index, between=(), values=index, key_elements=keys, value_elements=values)


def _products(graph: ModelGraph) -> Iterator[Attention]:
    """Yield the attentions that are a product, a softmax and a product."""
    for values, node in enumerate(graph.nodes):
        if not _is_product(node):
            continue

        # Backwards from the product with the values: to a softmax, and from there to the product of queries and keys.
        after = _path(graph, graph.producers[values][0], lambda one: one.op_type == "Softmax")
        before = _path(graph, graph.producers[after[-1]][0], _is_product) if after else ()
        if before:
            yield Attention(
                scores=before[-1],
                between=(*after, *before[:-1]),
                values=values,
                key_elements=_cached_elements(graph, before[-1], 1),
                value_elements=_cached_elements(graph, values, 1),
            )


def _is_product(node: Node) -> bool:
    return node.op_type == "MatMul" and not node.parameters and len(node.inputs) > 1


def _path(graph: ModelGraph, start: int, is_end: Callable[[Node], bool]) -> tuple[int, ...]:
    """Return the nodes from *start* back to the nearest that *is_end*, through what changes single numbers only."""
    paths, seen = deque[tuple[int, ...]]([(start,)]), {start}

    # Breadth first, so that the nearest end is found.
    while paths:
        path = paths.popleft()
        if path[-1] < 0 or len(path) > _MOST_STEPS:
            continue
        if is_end(graph.nodes[path[-1]]):
            return path
        if class_of(graph.nodes[path[-1]]) in _PASSED or graph.nodes[path[-1]].op_type == "Softmax":
            more = [producer for producer in graph.producers[path[-1]] if producer not in seen]
            seen.update(more)
            paths.extend([(*path, producer) for producer in more])
    return ()


def _cached_elements(graph: ModelGraph, index: int, place: int) -> int:
    """Return the elements of one sample that come by input *place* of a node, where they are fewest.

    The way back ends at the product that makes them, or where parts are put together. Heads that several queries share
    are repeated on it.
    """
    shape, producer = graph.nodes[index].inputs[place], graph.producers[index][place]
    least = element_count(shape, 1)

    for _ in range(_MOST_STEPS):
        node = graph.nodes[producer] if producer >= 0 else None
        if node is None or node.parameters or class_of(node) not in _PASSED or node.op_type == "Concat":
            break
        least = min(least, element_count(node.inputs[0] if node.inputs else (), 1))
        producer = graph.producers[producer][0] if graph.producers[producer] else -1
    return least


FRAMES_RANK = 3
"""Of an input of sound: batch, bands and frames, in either order."""
# Of a model that writes; a forged card may have thousands, and each is followed through all nodes.
_MOST_INPUTS = 32


class Part(IntEnum):
    """When a node runs, and what it grows with."""

    ENCODER = 0
    """Once, over the prompt: an encoder, and the keys and values that a decoder takes of it."""
    DECODER = 1
    """Over each new token; in a model without an encoder over the prompt as well."""
    CROSS_ATTENTION = 2
    """Over each new token and all of the prompt: a decoder's attention to what an encoder has read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceModel:
    """What a language model reads and writes.

    Attributes:
        attentions: All of them.
        parts: `Part`, one entry per node.
        prompt: How many tokens, or frames of sound, the graph was read with.
        written: How many tokens the nodes that write were read with.
        has_encoder: Whether another part of the model reads the prompt.
    """

    attentions: Sequence[Attention]
    parts: IntArray
    prompt: int
    written: int
    has_encoder: bool


def sequence_model(graph: ModelGraph) -> SequenceModel:
    """Return what *graph* reads and writes.

    Raises:
        GraphError: It does not write text on what it reads, or attends to parts of it only.
    """
    if len(graph.inputs) > _MOST_INPUTS:
        _raise_unsupported_inputs(graph)
    attentions, reached = find_attentions(graph), _reachable_nodes(graph)

    # A mask of what was written reaches queries, too, but fewer nodes than the tokens themselves.
    decoders = [nodes for nodes in reached if any(_is_cross_attention(graph, one, nodes) for one in attentions)]
    decoder = max(decoders, key=lambda nodes: int(nodes.sum()), default=None)
    if decoder is not None:
        sequences = _encoder_decoder(graph, attentions, reached, decoder)
    else:
        (_, shape), *others = graph.inputs or (("none", ()),)
        strange = [name for name, other in others if "decoder" in name or len(other) > SEQUENCE_RANK]
        if len(shape) != SEQUENCE_RANK or strange:
            _raise_unsupported_inputs(graph)
        length, parts = max(abs(shape[1]), 1), np.full(len(graph.nodes), int(Part.DECODER))
        sequences = SequenceModel(attentions=attentions, parts=parts, prompt=length, written=length, has_encoder=False)

    if not attentions:
        raise_decoding_error(graph, "have attentions whose keys and values can be cached; got a model without")
    for one in attentions:
        _require_full_attention(graph, sequences, one)
    return sequences


def _reachable_nodes(graph: ModelGraph) -> list[BoolArray]:
    """Return for each input which nodes follow from it."""
    inputs: list[int] = []  # of each node, a bit for each
    for producers in graph.producers:
        inputs.append(reduce(or_, (inputs[one] if one >= 0 else 1 << (-1 - one) for one in producers), 0))
    bits = np.array(inputs, dtype=np.int64)
    return [(bits >> number & 1).astype(bool) for number in range(len(graph.inputs))]


def _is_cross_attention(graph: ModelGraph, attention: Attention, decoder: BoolArray) -> bool:
    """Return whether an attention's queries follow from a *decoder*'s input, and its keys do not."""
    query, key = (bool(one >= 0 and decoder[one]) for one in graph.producers[attention.scores][:2])
    return query and not key


def _encoder_decoder(
    graph: ModelGraph, attentions: Sequence[Attention], reached: Sequence[BoolArray], decoder: BoolArray
) -> SequenceModel:
    """Return what a model with an encoder reads and writes.

    Args:
        graph: The model.
        attentions: All of its.
        reached: Which nodes follow from each of its inputs.
        decoder: Those that follow from the tokens that are written, and look at what the encoder has read.
    """
    looking = [one for one in attentions if _is_cross_attention(graph, one, decoder)]
    keys = {graph.producers[one.scores][1] for one in looking}
    shapes = [shape for _, shape in graph.inputs]
    made = [key for key in keys if key >= 0]
    read = [shape for number, shape in enumerate(shapes) if reached[number][made].any() or -1 - number in keys]
    written = next(shape for shape, nodes in zip(shapes, reached, strict=True) if nodes is decoder)

    is_read = bool(read) and len(read[0]) in (SEQUENCE_RANK, FRAMES_RANK)
    if not is_read or len(written) != SEQUENCE_RANK or any(len(shape) > SEQUENCE_RANK for shape in read[1:]):
        _raise_unsupported_inputs(graph)

    parts = np.where(decoder, int(Part.DECODER), int(Part.ENCODER))
    parts[[node for one in looking for node in (one.scores, *one.between, one.values)]] = Part.CROSS_ATTENTION

    # Where the encoder is in another file, its output is read, which has the numbers of each token as well.
    sizes = [*map(abs, read[0][1:])]
    states = 0 if _has_encoder(attentions, parts) else key_count(graph, looking[0])
    return SequenceModel(
        attentions=attentions,
        parts=parts,
        prompt=max(states if states in sizes else max(sizes), 1),
        written=max(abs(written[1]), 1),
        has_encoder=True,
    )


def is_speech_model(graph: ModelGraph) -> bool:
    """Return whether *graph* has an encoder whose input is sound, not only what an encoder in another file has written.

    Raises:
        GraphError: As `sequence_model`.
    """
    is_sound = any(len(shape) == FRAMES_RANK for _, shape in graph.inputs)
    sequences = sequence_model(graph) if is_sound else None
    return sequences is not None and _has_encoder(sequences.attentions, sequences.parts)


def _has_encoder(attentions: Sequence[Attention], parts: IntArray) -> bool:
    return any(parts[one.values] == Part.ENCODER for one in attentions)


def key_count(graph: ModelGraph, attention: Attention) -> int:
    """Return how many keys an attention has."""
    node = graph.nodes[attention.scores]
    is_one = attention.scores == attention.values
    sizes = [one[-2:-1] for one in node.inputs[1:2]] if is_one else [one[-1:] for one in node.outputs[:1]]
    return sum(sizes[0]) if sizes else 0


def _raise_unsupported_inputs(graph: ModelGraph) -> None:
    got = f"inputs {', '.join(name for name, _ in graph.inputs)[:80]}"
    raise_decoding_error(graph, f"read one sequence of tokens or of sound and write tokens on it; got {got}")


def _require_full_attention(graph: ModelGraph, sequences: SequenceModel, attention: Attention) -> None:
    """See that an attention is to all tokens of a sequence, so that it grows with their number."""
    if attention.scores == attention.values:
        return
    outputs = graph.nodes[attention.scores].outputs
    rows, columns = outputs[0][-2:] if outputs else (0, 0)

    # Scores of windows have fewer rows or columns than the sequence has tokens.
    part = sequences.parts[attention.values]
    own = sequences.written if part != Part.ENCODER else columns
    if rows != own or (part != Part.CROSS_ATTENTION and columns != own):
        raise_decoding_error(graph, f"attend to its own {own} tokens; got scores of {rows}x{columns}")
