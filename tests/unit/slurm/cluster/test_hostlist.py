"""Many names in one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage_hooks.errors import RequestError
from gpusage_slurm.cluster.hostlist import expand


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
    assert expand(text) == names


@pytest.mark.parametrize("text", ["gpu[a-b]", "gpu[3-1]", "gpu[1-999999999]", "gpu[]"])
def test_other_brackets_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="must have in brackets"):
        expand(text)


@pytest.mark.parametrize("text", ["n[1-999][1-999]", "a[1-99999],b[1-99999]"])
def test_more_names_than_a_cluster_has_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="must be at most 100000"):
        expand(text)


@given(st.text(alphabet="gn0129-[],", max_size=12))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    try:
        assert all("," not in name for name in expand(text))
    except RequestError:
        return
