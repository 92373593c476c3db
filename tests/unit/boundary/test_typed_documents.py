"""Documents from outside as typed values, and what is said of those that are none."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import Annotated

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from gpusage.boundary.typed_documents import MismatchError, read_as

Count = Annotated[int, Meta(ge=0, description="a count")]


ANY_TEXT = st.text(st.characters(codec=None), max_size=5)  # half surrogate pairs, too: json.loads lets them in
KEYS = st.sampled_from(["rows", "name", "count", "sizes", "by_name", "a` - at `$.rows"]) | ANY_TEXT
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
)


class Row(Struct, forbid_unknown_fields=True):
    """A table in a list."""

    name: str
    count: Count | None = None
    sizes: tuple[Count, ...] = ()


class Document(Struct):
    """A table with tables in it; other keys are others' business."""

    rows: tuple[Row, ...] = ()
    by_name: dict[str, Row] = {}


def test_a_document_becomes_a_value() -> None:
    read = read_as(Document, {"rows": [{"name": "a", "sizes": [1, 2]}], "other": 1})
    assert read == Document(rows=(Row(name="a", sizes=(1, 2)),))


@pytest.mark.parametrize(
    ("document", "above", "key", "rule", "value"),
    [
        ({"rows": [{"name": "a"}, {"name": 1}]}, ("rows", 1), "name", "a text", 1),
        ({"rows": [{"name": "a", "count": -1}]}, ("rows", 0), "count", "a count", -1),
        ({"rows": [{"name": "a", "sizes": [1, "b"]}]}, ("rows", 0), "sizes", "a list", [1, "b"]),
        ({"rows": [{}]}, ("rows", 0), "name", "a text", None),
        ({"rows": 3}, (), "rows", "a list", 3),
        ({"rows": ["a"]}, (), "rows", "a list", ["a"]),
        ({"by_name": {"x": {"name": 2}}}, ("by_name", "..."), "name", "a text", None),  # msgspec does not say which
        ([], (), "", "a table", []),
    ],
)
def test_what_is_wrong_is_found_by_its_key(
    document: object, above: tuple[object, ...], key: str, rule: str, value: object
) -> None:
    with pytest.raises(MismatchError) as caught:
        read_as(Document, document)
    error = caught.value
    assert (error.above, error.key, error.rule, error.value, error.hint) == (above, key, rule, value, "")


@pytest.mark.parametrize(
    ("key", "hint"), [("nmae", "Did you mean 'rows.name'?"), ("zz", "Known are name, count, sizes.")]
)
def test_an_unknown_key_gets_the_nearest_one(key: str, hint: str) -> None:
    with pytest.raises(MismatchError) as caught:
        read_as(Row, {"name": "a", key: 7}, prefix="rows.")
    assert (caught.value.key, caught.value.value, caught.value.hint) == (key, 7, hint)


@pytest.mark.parametrize("kind", [Document, Row])
@given(document=DOCUMENTS)
@example(document={"name": "a", "b` - at `$.c": 1})
@example(document={"rows": [{"name": "a", "b` - at `$.c": 1}]})
@example(document={"rows": [{"name": "a", "\ud800\n": 1}]})
def test_anything_is_read_or_refused(kind: type[Struct], document: object) -> None:
    with suppress(MismatchError):
        read_as(kind, document)


THREADS = """
import sys, threading
from dataclasses import make_dataclass
from gpusage.boundary.typed_documents import read_as

sys.setswitchinterval(1e-6)
for _ in range(30):
    parts = [make_dataclass(f"Part{number}", [("a", int)]) for number in range(30)]
    kind = make_dataclass("Whole", [(part.__name__, part) for part in parts])
    document = {part.__name__: {"a": 1} for part in parts}
    start = threading.Barrier(4)
    def read():
        start.wait()
        read_as(kind, document)
    threads = [threading.Thread(target=read) for _ in range(4)]
    for each in threads: each.start()
    for each in threads: each.join()
"""


def test_threads_that_meet_a_type_at_once_do_not_end_the_process() -> None:
    """The daemon ended so at its start: by msgspec, with a signal and without a word."""
    assert subprocess.run([sys.executable, "-c", THREADS], check=False).returncode == 0
