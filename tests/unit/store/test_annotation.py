"""The mark that a job carries: written, cut, and read again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.store.annotation import (
    REST_LIMIT_BYTES,
    JobAnnotation,
    parse_annotation,
    with_annotation,
)
from records import RECORD, annotation_of_record

MARK = JobAnnotation(
    number="69215f4a0c3e",
    code="REWRITE",
    mode="enforce",
    before="gres/gpu:1",
    after="gres/mps:40, prefer v100",
    reasons="one; another",
)


def test_a_records_mark_is_one_line_with_its_number() -> None:
    record = replace(RECORD, number="69215f4a0c3e")
    assert (
        str(annotation_of_record(record))
        == "gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:40 | one reason; another"
    )


@pytest.mark.parametrize(
    "mark",
    [
        MARK,
        replace(MARK, code="KEEP", after="gres/gpu:1", before="gres/gpu:1"),
        replace(MARK, mode="observe"),
        replace(MARK, code="KEEP", before="", after=""),
        JobAnnotation(number="", code="KEEP", mode="enforce", before="", after="", reasons="no answer within 40 ms"),
        replace(MARK, code="STUCK"),
        replace(MARK, code="BACK", before="gres/mps:40", after="gres/gpu:1"),
    ],
)
def test_what_is_written_is_read_again_behind_and_before_other_texts(mark: JobAnnotation) -> None:
    assert parse_annotation(str(mark)) == mark
    assert parse_annotation(f"the site's | own -> text; {mark}") == mark
    assert parse_annotation(f"{mark}\nmore") == mark


def test_a_mark_that_was_cut_off_still_tells_the_decision() -> None:
    """Where the site's own text leaves little room."""
    annotation = parse_annotation(str(MARK)[:36])
    assert annotation == replace(MARK, before="gres/gp", after="gres/gp", reasons="")
    assert parse_annotation(str(MARK)[:28]) == replace(MARK, before="", after="", reasons="")


@pytest.mark.parametrize("text", ["", "gpusage", "gpusage 12 KEEP x", "gpusage 69215f4a0c3e DECLINE", "a\nb"])
def test_anything_else_holds_no_mark(text: str) -> None:
    assert parse_annotation(text) is None


def test_a_users_text_that_looks_like_a_mark_is_none() -> None:
    forged = f"Model '{replace(MARK, number='0' * 12)}' must be a file"
    assert parse_annotation(str(replace(MARK, reasons=forged))) == replace(MARK, reasons=forged)


def test_a_users_text_becomes_printable_ascii_of_bounded_length() -> None:
    text = str(replace(MARK, reasons="caf\u00e9 \x1b[31m\n" + "x" * 5000))
    assert text.isascii()
    assert text.isprintable()
    assert text.endswith("...")
    assert len(text) == len("gpusage 69215f4a0c3e") + REST_LIMIT_BYTES


@pytest.mark.parametrize("others", ["", "project=x", "é"])
def test_a_mark_takes_the_place_of_another_and_what_others_wrote_stays(others: str) -> None:
    first = with_annotation(others, MARK, 1024)
    assert first == (f"{others}; {MARK}" if others else str(MARK))
    newer = replace(MARK, code="BACK", reasons="it was stuck")
    assert with_annotation(first, newer, 1024) == first.replace(str(MARK), str(newer))
    assert with_annotation(others, MARK, len(others.encode()) + 40).endswith("...")
