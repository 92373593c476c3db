"""Any text is understood, left alone, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpusage.capture.captured import model_word
from gpusage_hooks.comment import parse_comment, parse_model
from gpusage_hooks.errors import RequestError

WORDS = st.text() | st.lists(
    st.sampled_from(
        ["model=", "batch=", "gpusage:", "slo=", "50ms", ",", ";", "'", '"', "x.onnx", "64", "=", " ", "\n"]
    )
).map("".join)


@pytest.mark.parametrize("parse", [parse_comment, parse_model])
@given(text=WORDS)
def test_any_comment_is_accepted_or_refused_in_one_line(parse: Callable[[str], object], text: str) -> None:
    sentence = ""
    try:
        parse(text)
    except RequestError as error:
        sentence = str(error)
    assert sentence.isprintable()


@given(st.integers(1, 10**9), st.sampled_from(["train", "infer"]), st.sampled_from(["fp32", "tf32", "fp16", "bf16"]))
def test_what_is_written_is_what_is_read(batch: int, mode: str, precision: str) -> None:
    request = parse_comment(f"model=r.onnx,batch={batch},mode={mode},precision={precision}")
    assert request is not None
    assert (request.workload.batch_size, request.workload.mode, request.workload.precision) == (batch, mode, precision)


@given(st.text(" ,;'\"=a/.é") | st.text("my ,;'s"))
def test_a_path_without_both_kinds_of_quotes_is_named_by_capture_as_it_is_read(name: str) -> None:
    assume(not {"'", '"'} <= set(name))
    path = f"{name}.card.json"
    request = parse_comment(f"{model_word(path)},batch=8")
    assert request is not None
    assert (request.model, request.workload.batch_size) == (path, 8)
