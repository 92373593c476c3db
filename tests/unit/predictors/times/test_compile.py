"""A compiled model is predicted as if it were not, and says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

import gpusage
from gpusage.cli.options import read_requests
from gpusage.predictors.familiarity import COMPILED
from graphs import convolution_graph


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_compiled_model_has_the_figures_of_the_plain_one_and_is_not_familiar(mode: str) -> None:
    graph = convolution_graph()
    plain = gpusage.predict(graph, gpu="a100", batch_size=64, mode=mode)  # type: ignore[arg-type]
    compiled = gpusage.predict(graph, gpu="a100", batch_size=64, mode=mode, compile=True)  # type: ignore[arg-type]
    assert plain.familiar
    assert not compiled.familiar
    assert compiled == replace(plain, familiar=False, notes=(*plain.notes, COMPILED))


def test_it_is_an_option_of_each_model_that_says_nothing_else() -> None:
    first, second = read_requests(["r.onnx", "s.onnx,compile=off"], {"compile": "on"})
    assert (first.workload.compile, second.workload.compile) == (True, False)
