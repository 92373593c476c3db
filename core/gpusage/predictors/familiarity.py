"""Whether a workload is of the kind that the predictors know, and what is strange about it where not."""

from __future__ import annotations

from collections.abc import Iterator

from gpusage_hooks.types import Gpu, ModelGraph, Workload

MAXIMUM_BATCH_SIZE = 65_536
"""Above it no public measurement that the predictors were checked against lies."""
MAXIMUM_PARAMETER_COUNT = 10_000_000_000
"""Above it a model is trained with sharding or offloading, which no predictor of ours describes."""
MAXIMUM_NODE_COUNT = 100_000
KNOWN_GENERATIONS = frozenset({"kepler", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"})
_SHOWN_OPERATORS = 3


def familiarity(graph: ModelGraph, workload: Workload, gpu: Gpu) -> tuple[bool, tuple[str, ...]]:
    """Return whether the figures can be trusted as usual, and one sentence for each reason why not."""
    notes = tuple(_doubts(graph, workload, gpu))
    return not notes, notes


def _doubts(graph: ModelGraph, workload: Workload, gpu: Gpu) -> Iterator[str]:
    if graph.unknown_op_types:
        yield _unknown_operators(graph)
    if not graph.nodes:
        yield "The model has no operations."
    if len(graph.nodes) > MAXIMUM_NODE_COUNT:
        yield f"The model has {len(graph.nodes)} operations, more than any measured model."
    if graph.parameter_count > MAXIMUM_PARAMETER_COUNT:
        yield f"The model has {graph.parameter_count:.3g} parameters, more than one GPU usually trains."
    if workload.batch_size > MAXIMUM_BATCH_SIZE:
        yield f"The batch of {workload.batch_size} samples is larger than any measured one."
    if gpu.generation not in KNOWN_GENERATIONS:
        yield f"The GPU generation {gpu.generation!r} was never measured."


def _unknown_operators(graph: ModelGraph) -> str:
    shown = [f"{name} ({count})" for name, count in graph.unknown_op_types[:_SHOWN_OPERATORS]]
    rest = len(graph.unknown_op_types) - len(shown)
    more = f" and {rest} more" if rest else ""
    return f"Operators unknown to the predictors: {', '.join(shown)}{more}."
