"""What a model itself settles about its run, where its user names nothing else: precision and the trained share."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gpusage_hooks.types import ModelGraph, ModelRequest, Workload


def settled(workload: Workload, named: Collection[str], graph: ModelGraph) -> Workload:
    """Return *workload* with what *graph* settles, but for what its user *named*, by the keys of a comment.

    A model with quantised weights runs inference in their precision, and so do adapters that are trained above them;
    training trains the share that the model names.
    """
    if workload.mode == "train" and not {"trainable", "lora"} & set(named):
        workload = replace(workload, trainable=graph.trainable)
    is_trained_whole = workload.mode == "train" and workload.lora is None and workload.trainable == 1
    if graph.precision is None or "precision" in named or is_trained_whole:
        return workload
    return replace(workload, precision=graph.precision)


def settled_request(request: ModelRequest, graph: ModelGraph) -> ModelRequest:
    """Return *request* with what *graph* settles; what is assumed says so."""
    workload = settled(request.workload, request.named, graph)
    words = {f"precision={request.workload.precision}": f"precision={workload.precision}"}
    return replace(request, workload=workload, assumed=tuple(words.get(word, word) for word in request.assumed))
