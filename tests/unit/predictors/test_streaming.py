"""Answers of language models against what a GPU's memory can do, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpusage
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.devices.shares import share_of
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage_hooks.types import Decoding, Workload

MODELS = Path(__file__).parents[3] / "examples" / "models"
A100 = builtin_catalogue().find("a100")
"""1555 GB/s."""
GPUS = [builtin_catalogue().find(name) for name in ("p100", "v100", "t4", "a100", "l4", "h100", "rtx-4090")]


def answering(model: str, batch_size: int) -> WorkloadAnalysis:
    decoding = Decoding(prompt_tokens=512, new_tokens=128)
    workload = Workload(batch_size=batch_size, mode="infer", precision="fp16", generate=decoding)
    return WorkloadAnalysis(gpusage.read_model(model), workload)


def test_one_query_of_unfused_attention_reads_its_keys_at_half_of_the_peak() -> None:
    """T5 has 6 layers; keys and values of a prompt of 512 tokens take 2 x 6 x 512 x 512 x 2 bytes for each sample.

    512 samples: 3.2 GB, 2.1 ms at the peak and 4.1 ms at half of it. It took 22 ms, which is 10 % of the peak.
    """
    analysis = answering(str(MODELS / "t5_small.onnx"), 512)
    token_s = analysis.on([A100]).tokens[1].busy_s[0]
    read_s = 2 * 6 * 512 * 512 * 2 * 512 / A100.bandwidth_bytes_per_s
    assert 2.0 * read_s < token_s < 4.1 * read_s


@pytest.mark.parametrize("batch_size", [64, 512])
def test_keys_and_values_are_never_read_faster_than_memory_can(batch_size: int) -> None:
    """GPT-2 has 12 layers of 768 numbers; its mean context is 576 tokens: 21.2 MB for each sample.

    The cache of each kernel's GPU may hold some of it, for each of 24 kernels that read.
    """
    analysis = answering(str(MODELS / "gpt2.onnx"), batch_size)
    read = batch_size * 2 * 12 * 768 * 576 * 2
    min_streaming_s = np.array([(read - 24 * gpu.l2_bytes) / gpu.bandwidth_bytes_per_s for gpu in GPUS])
    assert (analysis.on(GPUS).tokens[1].busy_s > min_streaming_s).all()


@pytest.mark.parametrize("model", ["t5_small.onnx", "gpt2.onnx"])
def test_more_samples_never_take_less_time(model: str) -> None:
    times = [answering(str(MODELS / model), batch).on(GPUS).tokens[1].busy_s for batch in (1, 8, 64, 128, 256, 512)]
    assert (np.diff(times, axis=0) >= 0).all()


def test_a_share_reads_as_much_slower_as_it_is_small() -> None:
    analysis = answering(str(MODELS / "t5_small.onnx"), 512)
    whole, quarter = analysis.kernels_s([A100, share_of(A100, 25)])
    assert 2.0 < quarter / whole <= 4.01


def test_what_is_no_answer_is_left_as_it_was_learned() -> None:
    graph = gpusage.read_model(str(MODELS / "gpt2.onnx"))
    assert not WorkloadAnalysis(graph, Workload(batch_size=4, mode="infer", precision="fp16")).efficiency.is_streaming
