"""Many names in one."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage_hooks.errors import RequestError
from gpusage_slurm.cluster.hostlist import compress_hostlist, expand_hostlist


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("login", ("login",)),
        ("gpu[01-03,07],login", ("gpu01", "gpu02", "gpu03", "gpu07", "login")),
        ("r[1-2]n[8-9]", ("r1n8", "r1n9", "r2n8", "r2n9")),
        ("a, b", ("a", "b")),
    ],
)
def test_brackets_stand_for_numbers(text: str, names: tuple[str, ...]) -> None:
    assert expand_hostlist(text) == names


@pytest.mark.parametrize("text", ["gpu[a-b]", "gpu[3-1]", "gpu[1-999999999]", "gpu[]"])
def test_other_brackets_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="must have in brackets"):
        expand_hostlist(text)


@pytest.mark.parametrize("text", ["n[1-4", "n1-4]", "n[[1-4]]", "a,n[1-4,b"])
def test_a_bracket_alone_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="must have a closing bracket for each opening one"):
        expand_hostlist(text)


@pytest.mark.parametrize("text", ["n[1-999][1-999]", "a[1-99999],b[1-99999]"])
def test_more_names_than_a_cluster_has_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="must be at most 100000"):
        expand_hostlist(text)


@pytest.mark.parametrize(
    "text",
    [
        f"n[{','.join(['0-99999'] * 130)}]",  # 1,042 characters took 1,008 MB and 4.6 s
        f"{'n' * 1000}[0-99999]",
        "n" + "[0-999]" * 200,
        ",".join(["n[0-99999]"] * 100),
    ],
)
def test_what_is_refused_costs_neither_time_nor_memory(text: str) -> None:
    tracemalloc.start()
    try:
        begun_s = time.process_time()
        with pytest.raises(RequestError, match="must be at most 100000"):
            expand_hostlist(text)
        assert time.process_time() - begun_s < 0.5
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@given(st.text(alphabet="gn0129-[],", max_size=12))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    try:
        assert all("," not in name for name in expand_hostlist(text))
    except RequestError:
        return


@given(st.lists(st.from_regex(r"[a-z]{1,2}[0-9]{0,3}(n[0-9]{1,3})?", fullmatch=True), unique=True))
def test_a_short_form_stands_for_the_same_names(names: list[str]) -> None:
    assert sorted(expand_hostlist(compress_hostlist(names))) == sorted(names)


def test_numbers_that_follow_one_another_are_a_range() -> None:
    assert compress_hostlist(["g01", "g03", "g02", "g7", "login", "g10"]) == "login,g[01-03,10],g7"
