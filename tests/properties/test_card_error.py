from hypothesis import given
from hypothesis import strategies as st

from gpusage.graphs.card.error import decode_error, encode_error
from gpusage.graphs.card.text import decode
from gpusage_hooks.errors import GraphError


@given(st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=150))
def test_a_sentence_arrives_as_it_was(sentence: str) -> None:
    text = encode_error(sentence)
    assert decode_error(text) == sentence
    assert not set(text) & set(", \n")


@given(st.text(max_size=2000))
def test_any_text_is_a_sentence_of_one_line_or_none(text: str) -> None:
    actual = decode_error(text)
    assert actual is None or (actual.isprintable() and len(actual) <= 600)


@given(st.text(max_size=100))
def test_no_reason_passes_for_a_card(sentence: str) -> None:
    try:
        decode(encode_error(sentence))
    except GraphError:
        return
    raise AssertionError(sentence)
