"""The table of a job's keys agrees with what reads it."""

from __future__ import annotations

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_hooks.job_keys import JOB_KEYS, JobKey, make_workload, step_settings_of
from gpusage_hooks.job_values import MAXIMUM_NAMES
from gpusage_hooks.types import Workload

ROWS = list(JOB_KEYS.values())


@pytest.mark.parametrize("row", ROWS, ids=JOB_KEYS)
def test_the_example_of_a_key_is_a_value_that_arrives(row: JobKey) -> None:
    value = row.kind.parse(row.name, row.example)
    if row.targets and row.name != "shape":  # one of several sizes
        needed = JOB_KEYS[row.requires] if row.requires else None
        others = {needed.name: needed.kind.parse(needed.name, needed.example)} if needed else {}
        assert make_workload({**others, row.name: value}) != Workload()


@pytest.mark.parametrize("row", ROWS, ids=JOB_KEYS)
def test_the_default_that_people_read_is_that_of_the_workload(row: JobKey) -> None:
    default = row.workload_default
    if isinstance(default, bool):
        assert row.default == ("on" if default else "off")
    elif default not in (None, ()):
        assert row.kind.parse(row.name, row.default) == default


def test_no_values_are_the_usual_workload() -> None:
    assert make_workload({}) == Workload()


@pytest.mark.parametrize("row", [row for row in ROWS if row.name != "model"], ids=lambda row: row.name)
def test_a_megabyte_of_a_value_is_refused_in_a_sentence_that_can_be_read(row: JobKey) -> None:
    with pytest.raises(RequestError) as refused:
        row.kind.parse(row.name, "x" * 10**6)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("sizes", ["0", "10000000000", "1000000001", "3x0", "\u0663", "9" * 5000])
def test_a_size_out_of_range_is_refused_with_what_can_be_written(sizes: str) -> None:
    with pytest.raises(RequestError, match=r"sizes from 1 to 10.9.*Write 'shape=seq=128'"):
        JOB_KEYS["shape"].kind.parse("shape", f"seq={sizes}")


def test_so_many_names_as_nobody_writes_are_refused() -> None:
    names = [f"t{index}" for index in range(MAXIMUM_NAMES + 2)]
    assert len(JOB_KEYS["forbid"].kind.parse("forbid", "+".join([*names[2:], *names[2:]]))) == MAXIMUM_NAMES
    with pytest.raises(RequestError, match=r"must be at most 64 names; got 't0\+t1\+.*Remove 2 of them"):
        JOB_KEYS["forbid"].kind.parse("forbid", "+".join(names))


@pytest.mark.parametrize("row", [row for row in ROWS if row.targets and row.name != "shape"], ids=lambda row: row.name)
def test_only_a_key_that_affects_the_step_changes_its_settings(row: JobKey) -> None:
    """So that the analysis of a graph, and a cached prediction, are the same for all others."""
    rows = [JOB_KEYS["slo"], row] if row.requires == "slo" else [row]
    workload = make_workload({each.name: each.kind.parse(each.name, each.example) for each in rows})
    assert (step_settings_of(workload) == Workload()) == (row.affects != "step")


def test_a_rate_may_have_its_unit() -> None:
    kind = JOB_KEYS["rate"].kind
    assert kind.parse("rate", "5/s") == kind.parse("rate", "5") == 5.0
    with pytest.raises(RequestError, match="requests per second above 0"):
        kind.parse("rate", "/s")
