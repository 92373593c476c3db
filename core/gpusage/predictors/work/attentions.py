"""The attentions of a language model, as its graph has them: which nodes grow with the context, and what is cached.

Of an attention, the product of queries and keys, what is done to the scores, and the product with the values grow with
the number of keys; everything else of a model grows with the tokens that it is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NoReturn

from gpusage.predictors.work.operators import OperatorClass, class_of, element_count
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node, Shape

_MOST_STEPS = 40
"""Nodes between the product that makes keys and the attention, and between softmax and products; rarely ten."""
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


def attentions_in(graph: ModelGraph) -> list[Attention]:
    """Return the attentions of a model.

    Raises:
        GraphError: They are more than those of any model.
    """
    attentions = [*islice(chain(_fused(graph), _products(graph)), MOST_ATTENTIONS + 1)]
    if len(attentions) > MOST_ATTENTIONS:
        refuse(graph, f"have at most {MOST_ATTENTIONS} attentions; got more")
    return attentions


def refuse(graph: ModelGraph, rule: str) -> NoReturn:
    """Say that *graph* breaks a *rule* of models that write.

    Raises:
        GraphError: Always.
    """
    message = f"Model {graph.name!r} with 'generate' must {rule}. Leave 'generate' out to predict one forward pass."
    raise GraphError(message)


def writes_text(graph: ModelGraph) -> bool:
    """Tell whether a model gives, for each token that it reads, a row of numbers for all words that it knows."""
    sequences = [shape for _, shape in graph.inputs if len(shape) == SEQUENCE_RANK]
    last = graph.nodes[-1].outputs if graph.nodes else ()
    rows: set[int] = {node.parameters[0][0] for node in graph.nodes if node.op_type == "Gather" and node.parameters}
    is_text = bool(last) and last[0][:-1] in sequences and last[0][-1] in rows
    return is_text and any(
        node.op_type == "Softmax" or class_of(node) == OperatorClass.ATTENTION for node in graph.nodes
    )


def _fused(graph: ModelGraph) -> Iterator[Attention]:
    """Yield the attentions that are one node."""
    for index, node in enumerate(graph.nodes):
        if class_of(node) == OperatorClass.ATTENTION and len(node.inputs) >= 3:  # noqa: PLR2004 - query, key, value
            keys, values = (_kept_elements(graph, index, place) for place in (1, 2))
            yield Attention(scores=index, between=(), values=index, key_elements=keys, value_elements=values)


def _products(graph: ModelGraph) -> Iterator[Attention]:
    """Yield the attentions that are a product, a softmax and a product."""
    for values, node in enumerate(graph.nodes):
        if not _is_product(node):
            continue
        after = _path(graph, graph.producers[values][0], lambda one: one.op_type == "Softmax")
        before = _path(graph, graph.producers[after[-1]][0], _is_product) if after else ()
        if before:
            yield Attention(
                scores=before[-1],
                between=(*after, *before[:-1]),
                values=values,
                key_elements=_kept_elements(graph, before[-1], 1),
                value_elements=_kept_elements(graph, values, 1),
            )


def _is_product(node: Node) -> bool:
    return node.op_type == "MatMul" and not node.parameters and len(node.inputs) > 1


def _path(graph: ModelGraph, start: int, is_end: Callable[[Node], bool]) -> tuple[int, ...]:
    """Return the nodes from *start* back to the nearest that *is_end*, through what changes single numbers only."""
    paths, seen = deque[tuple[int, ...]]([(start,)]), {start}
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


def _kept_elements(graph: ModelGraph, index: int, place: int) -> int:
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
        least = min(least, element_count(_shape(node.inputs), 1))
        producer = graph.producers[producer][0] if graph.producers[producer] else -1
    return least


def _shape(shapes: Sequence[Shape]) -> Shape:
    return shapes[0] if shapes else ()
