"""Which nodes of a language model read the prompt, and which write new tokens.

A model without an encoder reads and writes with the same nodes. A decoder beside an encoder is what follows from an
input that queries come from, but not their keys: T5's ``decoder_input_ids``, whatever it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from operator import or_

import numpy as np

from gpusage.predictors.learned.arrays import BoolArray, IntArray
from gpusage.predictors.work.attentions import SEQUENCE_RANK, Attention, attentions_in, refuse
from gpusage_hooks.types import ModelGraph

FRAMES_RANK = 3
"""Of an input of sound: batch, bands and frames, in either order."""
_MOST_INPUTS = 32
"""Of a model that writes; a forged card may have thousands, and each is followed through all nodes."""


class Part(IntEnum):
    """When a node runs, and what it grows with."""

    READS = 0
    """Once, over the prompt: an encoder, and the keys and values that a decoder takes of it."""
    WRITES = 1
    """Over each new token; in a model without an encoder over the prompt as well."""
    LOOKS = 2
    """Over each new token and all of the prompt: a decoder's attention to what an encoder has read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
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


def sequences_of(graph: ModelGraph) -> Sequences:
    """Return what *graph* reads and writes.

    Raises:
        GraphError: It does not write text on what it reads, or attends to parts of it only.
    """
    if len(graph.inputs) > _MOST_INPUTS:
        _refuse_inputs(graph)
    attentions, reached = attentions_in(graph), _reached(graph)
    decoders = [nodes for nodes in reached if any(_looks(graph, one, nodes) for one in attentions)]
    # a mask of what was written reaches queries, too, but fewer nodes than the tokens themselves
    decoder = max(decoders, key=lambda nodes: int(nodes.sum()), default=None)
    sequences = _alone(graph, attentions) if decoder is None else _beside(graph, attentions, reached, decoder)
    if not attentions:
        refuse(graph, "have attentions whose keys and values can be cached; got a model without")
    for one in attentions:
        _check(graph, sequences, one)
    return sequences


def _reached(graph: ModelGraph) -> list[BoolArray]:
    """Return for each input which nodes follow from it."""
    inputs: list[int] = []  # of each node, a bit for each
    for producers in graph.producers:
        inputs.append(reduce(or_, (inputs[one] if one >= 0 else 1 << (-1 - one) for one in producers), 0))
    bits = np.array(inputs, dtype=np.int64)
    return [(bits >> number & 1).astype(bool) for number in range(len(graph.inputs))]


def _looks(graph: ModelGraph, attention: Attention, decoder: BoolArray) -> bool:
    """Tell whether an attention's queries follow from a *decoder*'s input, and its keys do not."""
    query, key = (bool(one >= 0 and decoder[one]) for one in graph.producers[attention.scores][:2])
    return query and not key


def _alone(graph: ModelGraph, attentions: Sequence[Attention]) -> Sequences:
    """Return what a model without an encoder reads and writes."""
    (_, shape), *others = graph.inputs or (("none", ()),)
    strange = [name for name, other in others if "decoder" in name or len(other) > SEQUENCE_RANK]
    if len(shape) != SEQUENCE_RANK or strange:
        _refuse_inputs(graph)
    length, parts = max(abs(shape[1]), 1), np.full(len(graph.nodes), int(Part.WRITES))
    return Sequences(attentions=attentions, parts=parts, prompt=length, written=length, has_encoder=False)


def _beside(
    graph: ModelGraph, attentions: Sequence[Attention], reached: Sequence[BoolArray], decoder: BoolArray
) -> Sequences:
    """Return what a model with an encoder reads and writes.

    Args:
        graph: The model.
        attentions: All of its.
        reached: Which nodes follow from each of its inputs.
        decoder: Those that follow from the tokens that are written, and look at what the encoder has read.
    """
    looking = [one for one in attentions if _looks(graph, one, decoder)]
    keys = {graph.producers[one.scores][1] for one in looking}
    shapes = [shape for _, shape in graph.inputs]
    made = [*filter(lambda key: key >= 0, keys)]
    read = [shape for number, shape in enumerate(shapes) if reached[number][made].any() or -1 - number in keys]
    written = next(shape for shape, nodes in zip(shapes, reached, strict=True) if nodes is decoder)
    is_read = bool(read) and len(read[0]) in (SEQUENCE_RANK, FRAMES_RANK)
    if not is_read or len(written) != SEQUENCE_RANK or any(len(shape) > SEQUENCE_RANK for shape in read[1:]):
        _refuse_inputs(graph)
    parts = np.where(decoder, int(Part.WRITES), int(Part.READS))
    parts[[node for one in looking for node in (one.scores, *one.between, one.values)]] = Part.LOOKS
    sizes = [*map(abs, read[0][1:])]
    # what an encoder wrote, in another file, has the numbers of each token as well
    states = 0 if _has_encoder(attentions, parts) else _key_count(graph, looking[0])
    return Sequences(
        attentions=attentions,
        parts=parts,
        prompt=max(states if states in sizes else max(sizes), 1),
        written=max(abs(written[1]), 1),
        has_encoder=True,
    )


def reads_sound(graph: ModelGraph) -> bool:
    """Tell whether *graph* has an encoder whose input is sound, not only what an encoder in another file has written.

    Raises:
        GraphError: As `sequences_of`.
    """
    is_sound = any(len(shape) == FRAMES_RANK for _, shape in graph.inputs)
    sequences = sequences_of(graph) if is_sound else None
    return sequences is not None and _has_encoder(sequences.attentions, sequences.parts)


def _has_encoder(attentions: Sequence[Attention], parts: IntArray) -> bool:
    return any(parts[one.values] == Part.READS for one in attentions)


def _key_count(graph: ModelGraph, attention: Attention) -> int:
    """Return how many keys an attention has."""
    node = graph.nodes[attention.scores]
    is_one = attention.scores == attention.values
    sizes = [one[-2:-1] for one in node.inputs[1:2]] if is_one else [one[-1:] for one in node.outputs[:1]]
    return sum(sizes[0]) if sizes else 0


def _refuse_inputs(graph: ModelGraph) -> None:
    got = f"inputs {', '.join(name for name, _ in graph.inputs)[:80]}"
    refuse(graph, f"read one sequence of tokens or of sound and write tokens on it; got {got}")


def _check(graph: ModelGraph, sequences: Sequences, attention: Attention) -> None:
    """See that an attention is to all tokens of a sequence, so that it grows with their number."""
    if attention.scores == attention.values:
        return
    outputs = graph.nodes[attention.scores].outputs
    rows, columns = outputs[0][-2:] if outputs else (0, 0)
    part = sequences.parts[attention.values]
    own = sequences.written if part != Part.READS else columns
    if rows != own or (part != Part.LOOKS and columns != own):
        refuse(graph, f"attend to its own {own} tokens; got scores of {rows}x{columns}")
