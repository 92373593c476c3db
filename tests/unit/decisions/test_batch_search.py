"""The largest batch that fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpusage
from gpusage.decisions.advisor import advisor
from gpusage.decisions.prediction import MOST_SAMPLES, largest_batches
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Workload
from graphs import chain, node

RESNET = Path(__file__).parents[3] / "examples" / "models" / "resnet18.onnx"
GRAPH = chain("one product", [node("MatMul", [(-1, 64)], (-1, 64), (64, 64))], (-1, 64))


@given(st.lists(st.integers(min_value=0, max_value=MOST_SAMPLES), min_size=1, max_size=4))
def test_each_gpu_has_the_largest_batch_that_fits_there(most: list[int]) -> None:
    assert largest_batches(GRAPH, lambda size: [size <= one for one in most]) == most


def test_a_batch_without_an_end_has_the_end_of_the_search() -> None:
    assert largest_batches(GRAPH, lambda _: [True]) == [MOST_SAMPLES]


def test_gpus_share_questions() -> None:
    questions: list[int] = []

    def fits(size: int) -> list[bool]:
        questions.append(size)
        return [size <= 1000] * 8

    assert largest_batches(GRAPH, fits) == [1000] * 8
    # doubled to 1024 in eleven questions, then halved between 512 and 1024 in nine
    assert len(questions) == len(set(questions)) == 20


@pytest.mark.parametrize("share", [100, 50])
def test_one_more_sample_does_not_fit(share: int) -> None:
    graph = gpusage.read_model(RESNET)
    largest = gpusage.largest_batch(graph, gpu="t4", share=share, precision="fp16")
    fits = [
        gpusage.predict(graph, gpu="t4", share=share, precision="fp16", batch_size=size).fits
        for size in (largest, largest + 1)
    ]
    assert fits == [True, False]


def test_a_model_that_does_not_fit_has_no_batch() -> None:
    # 4 x 65536 x 65536 bytes of weights are 16 GiB, and as much of gradients and of momentum
    large = chain("large", [node("MatMul", [(-1, 65536)], (-1, 65536), (65536, 65536))], (-1, 65536))
    assert not advisor().predict(large, Workload(), [advisor().catalogue.find("v100")])[0].fits
    assert gpusage.largest_batch(large, gpu="v100") == 0


def test_a_fixed_batch_has_no_largest() -> None:
    fixed = replace(GRAPH, fixed_batch_size=8)
    with pytest.raises(GraphError, match="its only batch size, 8; got batch=1"):
        gpusage.largest_batch(fixed, gpu="v100")


@pytest.mark.parametrize(("source", "advice"), [("torchvision:x", "Use no other"), ("x.onnx", "Export it from 2")])
def test_only_a_file_can_be_exported_for_other_batches(source: str, advice: str) -> None:
    fixed = replace(GRAPH, fixed_batch_size=2, source=source)
    with pytest.raises(GraphError, match=f"2; got batch=1. {advice}"):
        gpusage.largest_batch(fixed, gpu="v100")
    with pytest.raises(GraphError, match=f"got batch=4. {advice}"):
        gpusage.predict(fixed, gpu="v100", batch_size=4)
