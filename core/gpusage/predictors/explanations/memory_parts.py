"""What the device's memory holds at its peak, part by part.

The walk says what weights, gradients, the optimizer and activations take at the node where most lives at once. What
the prediction has beyond them was learned from measured peaks, and cannot be told apart: workspaces of the libraries,
blocks that the caching allocator holds, and what the update of the weights copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpusage.precisions import FLOAT_BYTES, parameter_share
from gpusage.predictors.learned.arrays import FloatArray
from gpusage.predictors.memory.liveness import Walk, step_walk
from gpusage.predictors.memory.peak import (
    CONTEXT_BYTES,
    DEFAULT_CONTEXT_BYTES,
    LOSS_BYTES,
    peak_pass,
    state_bytes,
)
from gpusage.predictors.question import Question
from gpusage.predictors.work.division import division_of
from gpusage.predictors.work.lowering import Lowering, resident_bytes
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Gpu, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """Bytes of one purpose, with their *operator_class* if it is known."""

    name: str
    memory_bytes: float
    operator_class: OperatorClass | None = None


REST = "workspace and allocator"


def memory_parts(question: Question, gpu: Gpu) -> list[MemoryPart]:
    """Return the parts of the predicted peak on *gpu*; they add up to it."""
    lowering, workload, cached_bytes = question.lowering, question.workload, 0.0
    if question.answer:
        lowering, cached_bytes = peak_pass(question.graph, question.answer, workload.batch_size)
    tensors = step_walk(question.graph, lowering, workload, question.checkpoints)
    known = [*(_training if lowering.train else _inference)(lowering, tensors, workload)]
    known.append(MemoryPart(name="keys and values", memory_bytes=cached_bytes))
    context = CONTEXT_BYTES.get(gpu.generation, DEFAULT_CONTEXT_BYTES)
    known.append(MemoryPart(name="CUDA context", memory_bytes=float(context)))
    total = question.memory_bytes([gpu])[0].value
    rest = MemoryPart(name=REST, memory_bytes=total - sum(part.memory_bytes for part in known))
    return [part for part in (*known, rest) if part.memory_bytes]


def _training(lowering: Lowering, tensors: Walk, workload: Workload) -> Iterator[MemoryPart]:
    count, share = float(lowering.parameter_count), parameter_share(workload.precision)
    division = division_of(lowering, workload)
    yield MemoryPart(name="parameters", memory_bytes=count * FLOAT_BYTES["fp32"] * share * division.weights)
    state = count * state_bytes(workload) * workload.trainable * share
    yield MemoryPart(name="optimizer", memory_bytes=state * division.state)
    yield MemoryPart(name="buckets of gradients", memory_bytes=division.bucket_bytes)
    yield MemoryPart(name="gathered layers", memory_bytes=division.gathered_bytes)
    yield MemoryPart(name="inputs", memory_bytes=tensors.input_bytes)
    yield MemoryPart(name="loss", memory_bytes=LOSS_BYTES * lowering.output_elements_of_model)
    if not len(tensors.stored):
        return
    peak = int(np.argmax(tensors.waiting() + tensors.live + tensors.gradients))
    yield MemoryPart(name="gradients", memory_bytes=float(tensors.gradients[peak]))
    yield MemoryPart(name="gradients of activations", memory_bytes=float(tensors.live[peak]))
    yield from _by_class("activations", lowering, tensors.waiting_at(peak))


def _inference(lowering: Lowering, tensors: Walk, workload: Workload) -> Iterator[MemoryPart]:
    yield MemoryPart(name="parameters", memory_bytes=resident_bytes(lowering, workload.precision))
    yield MemoryPart(name="inputs", memory_bytes=tensors.input_bytes)
    if not len(tensors.stored):
        return
    peak, nodes = int(np.argmax(tensors.live)), np.arange(len(tensors.stored))
    lives = (nodes <= peak) & (lowering.structure.last_reader >= peak)
    yield from _by_class("activations", lowering, np.where(lives, tensors.stored, 0.0))


def _by_class(name: str, lowering: Lowering, node_bytes: FloatArray) -> Iterator[MemoryPart]:
    classes = lowering.operator_class[lowering.structure.kind_of_node]
    sums = np.bincount(classes, weights=node_bytes, minlength=len(OperatorClass)).tolist()
    for operator_class in sorted(OperatorClass, key=lambda one: -sums[one]):
        yield MemoryPart(name=name, memory_bytes=sums[operator_class], operator_class=operator_class)
