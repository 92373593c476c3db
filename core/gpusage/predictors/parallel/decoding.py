"""Decoding on several GPUs: each layer divided among them (tensor parallelism), or the layers (a pipeline).

**Tensor parallelism**, as vLLM and TensorRT-LLM do it. Each GPU has a part of the weights of each linear layer, and
some heads of each attention with their keys and values. The vectors between layers are whole on each GPU: they are
summed over all GPUs after each attention and after each feed-forward layer, and everybody waits for the sum. What
stands between products is taken to be done whole by each.

**Pipeline**, as transformers does it with ``device_map="auto"`` and llama.cpp with ``--split-mode layer``. A GPU holds
its part of the weights and of the keys and values, and sends the output of its last layer to the next GPU. All others
wait meanwhile, so several GPUs are no faster than one that has room for the whole model.

Source:
    Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
    arXiv 1909.08053, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpusage.devices.precisions import FLOAT_BYTES
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.parallel.even_parts import require_a_layer_for_each, require_even_parts
from gpusage.predictors.parallel.links import EXCHANGE_S, allreduce_s_per_byte
from gpusage.predictors.work.decoding import DecodingWork
from gpusage.predictors.work.lowering import Lowering
from gpusage.predictors.work.operators import OperatorClass, element_count
from gpusage.predictors.work.sequences import Part, SequenceModel
from gpusage_hooks.types import Gpu, ModelGraph, Workload

_DIVIDED = (OperatorClass.PRODUCT, OperatorClass.BATCHED_PRODUCT, OperatorClass.ATTENTION)
_OF_HEADS = (OperatorClass.BATCHED_PRODUCT, OperatorClass.ATTENTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What GPUs sum in the passes of an answer, each time one vector per token.

    Attributes:
        prompt_count: Sums in the pass over the prompt, one after the other.
        token_count: Sums in a pass over one token.
        vector_bytes: Of one token of each sample.
        prompt_tokens: Tokens that go through the pass over the prompt.
    """

    prompt_count: int
    token_count: int
    vector_bytes: float
    prompt_tokens: int

    def seconds(self, gpus: Sequence[Gpu], gpu_count: int) -> tuple[FloatArray, FloatArray]:
        """Return how long the pass over the prompt and one over a token wait, on *gpu_count* of each of *gpus*."""
        byte_s = np.array([allreduce_s_per_byte(gpu, gpu_count) for gpu in gpus])
        prompt_s = EXCHANGE_S + self.prompt_tokens * self.vector_bytes * byte_s
        return self.prompt_count * prompt_s, self.token_count * (EXCHANGE_S + self.vector_bytes * byte_s)


class DividedDecoding(NamedTuple):
    """What one of the GPUs does that answer together.

    Attributes:
        work: What takes its time.
        held: What it holds; in a pipeline, the passes of this one are for memory alone.
        exchange: What the GPUs send in a pass; none where one GPU has the whole model.
    """

    work: DecodingWork
    held: DecodingWork
    exchange: Exchange | None = None


def divide_decoding(
    work: DecodingWork, graph: ModelGraph, sequences: SequenceModel, workload: Workload
) -> DividedDecoding:
    """Return what each GPU of *workload* does of *work*, which is of *graph*.

    Raises:
        GraphError: The model's heads cannot be divided evenly (vLLM and TensorRT-LLM refuse that, too), or it has fewer
            layers than the pipeline has GPUs.
    """
    gpu_count = workload.gpus
    if gpu_count == 1:
        return DividedDecoding(work, work)

    sums = _exchange(graph, sequences, workload)
    if is_pipeline(workload):
        require_a_layer_for_each(graph, len(sequences.attentions), gpu_count, key="gpus")
        # What a pass computes in between lies on one GPU at a time, so that only weights and cache are divided.
        held = work.divided(
            lambda one: replace(
                one,
                parameter_bytes=one.parameter_bytes / gpu_count,
                parameter_count=-(-one.parameter_count // gpu_count),
            ),
            gpu_count,
        )
        # A stage hands its output on as fast as a sum over all GPUs at best.
        return DividedDecoding(work, held, replace(sums, prompt_count=gpu_count - 1, token_count=gpu_count - 1))

    # With more GPUs than heads of keys, several GPUs keep the same keys.
    own = next(one for one in sequences.attentions if sequences.parts[one.values] == Part.DECODER)
    query = graph.nodes[own.scores].inputs[0]
    width = query[-1]
    heads = max(element_count(query, 1) // (sequences.written * width), 1)
    key_heads = max(own.key_elements // (sequences.written * width), 1)
    require_even_parts(graph, "heads", {heads}, gpu_count, key="gpus")

    part = work.divided(lambda one: _with_part_of_layers(one, gpu_count), min(gpu_count, key_heads))
    return DividedDecoding(part, part, sums)


def is_pipeline(workload: Workload) -> bool:
    """Return whether the GPUs of *workload* compute one after the other."""
    return workload.strategy == "pipeline" and workload.gpus > 1 and workload.generate is not None


def _exchange(graph: ModelGraph, sequences: SequenceModel, workload: Workload) -> Exchange:
    """Return what GPUs sum for an answer of *graph*: after each attention, and after each feed-forward layer.

    Args:
        graph: A language model.
        sequences: Of *graph*.
        workload: With ``generate``.
    """
    decoding = workload.generate
    parts = [sequences.parts[one.values] for one in sequences.attentions]
    own_count = parts.count(Part.DECODER)
    token_count = 2 * own_count + parts.count(Part.CROSS_ATTENTION)  # a feed-forward layer in each block

    head = [node for node in graph.nodes if node.parameters and node.inputs][-1]  # it reads what the last layer gives
    elements = element_count(head.inputs[0], workload.batch_size) / sequences.written
    return Exchange(
        prompt_count=token_count + 2 * parts.count(Part.ENCODER),
        token_count=token_count,
        vector_bytes=FLOAT_BYTES[workload.precision] * elements,
        prompt_tokens=decoding.prompt_tokens if decoding else 0,
    )


def _with_part_of_layers(lowering: Lowering, gpu_count: int) -> Lowering:
    is_divided = np.isin(lowering.operator_class, _DIVIDED)
    part = np.where(is_divided, 1.0 / gpu_count, 1.0)

    # What a linear layer reads is whole on each GPU; an attention reads the GPU's own heads.
    of_heads = np.where(np.isin(lowering.operator_class, _OF_HEADS), 1.0 / gpu_count, 1.0)
    return replace(
        lowering,
        flop=lowering.flop * part,
        read_bytes=lowering.read_bytes * of_heads,
        parameter_bytes=lowering.parameter_bytes / gpu_count,
        written_bytes=lowering.written_bytes * part,
        output_elements=np.maximum(lowering.output_elements * part, 1.0),
        width=np.maximum(lowering.width * part, 1.0),
        parameter_count=-(-lowering.parameter_count // gpu_count),
    )
