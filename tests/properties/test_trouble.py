from hypothesis import given
from hypothesis import strategies as st

from gpusage.graphs.card.text import decode
from gpusage.graphs.card.trouble import decode_trouble, encode_trouble
from gpusage_hooks.errors import GraphError


@given(st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=150))
def test_a_sentence_arrives_as_it_was(sentence: str) -> None:
    text = encode_trouble(sentence)
    assert decode_trouble(text) == sentence
    assert not set(text) & set(", \n")


@given(st.text(max_size=2000))
def test_any_text_is_a_sentence_of_one_line_or_none(text: str) -> None:
    found = decode_trouble(text)
    assert found is None or (found.isprintable() and len(found) <= 600)


@given(st.text(max_size=100))
def test_no_reason_passes_for_a_card(sentence: str) -> None:
    try:
        decode(encode_trouble(sentence))
    except GraphError:
        return
    raise AssertionError(sentence)
