"""What is worked out of a model once, whatever runs it: its structures and its sequences."""

from __future__ import annotations

from dataclasses import replace

from gpusage.predictors.lazy import lazy
from gpusage.predictors.work.sequences import SequenceModel, sequence_model
from gpusage.predictors.work.structure import Structure, analyze_structure, with_autocast
from gpusage_hooks.types import ModelGraph


class ModelStructures:
    """The structure of a model, which no workload changes.

    Attributes:
        graph: A copy, so that the graph that caches this is freed when its owner drops it.
    """

    def __init__(self, graph: ModelGraph) -> None:
        self.graph = replace(graph)

    @lazy
    def plain(self) -> Structure:
        """The structure where every float has 4 bytes."""
        return analyze_structure(self.graph)

    @lazy
    def with_autocast(self) -> Structure:
        """The structure under automatic mixed precision."""
        return with_autocast(self.graph, self.plain)

    @lazy
    def sequences(self) -> SequenceModel:
        """Its attentions, and how long the sequences are that it was read with.

        Raises:
            GraphError: The model does not write on what it reads.
        """
        return sequence_model(self.graph)
