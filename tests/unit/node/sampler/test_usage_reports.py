"""What the jobs of a node did, as one word of its comment."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpusage.node.sampler.usage_reports import (
    LIMIT_BYTES,
    LIMIT_JOBS,
    REPORTED_S,
    append_usage_reports,
    parse_usage_reports,
)
from gpusage_hooks.types import Allocation, Usage
from records import USAGE

ANONYMOUS = replace(USAGE, number="", user="", job_name="")
NOW_S = ANONYMOUS.ended_at_s + 5
FIGURE = st.none() | st.floats(0, 1).map(lambda value: round(value, 4))
USAGES = st.builds(
    Usage,
    number=st.just(""),
    user=st.just(""),
    manager=st.just("slurm"),
    job_id=st.integers(1, 10**9).map(str),
    gpu=st.text(max_size=20),
    granted=st.builds(Allocation, trouble=st.text(max_size=20), share_percent=st.integers(1, 100)),
    started_at_s=st.integers(1_700_000_000, 1_800_000_000).map(float),
    ended_at_s=st.just(NOW_S),
    gpu_utilization=FIGURE,
    memory_bytes=st.none() | st.integers(0, 2**40),
)
SITE = st.text(st.characters(codec="ascii", exclude_categories=("Cc",)), max_size=40).filter(
    lambda text: "gpusage:" not in text
)


@given(site=SITE, usages=st.lists(USAGES, max_size=5, unique_by=lambda usage: usage.job_id))
def test_what_is_written_is_read_and_the_sites_own_words_stay(site: str, usages: list[Usage]) -> None:
    comment = append_usage_reports(site, usages, NOW_S)
    assert sorted(parse_usage_reports(comment), key=repr) == sorted(usages, key=repr)
    assert comment.startswith(site.strip())
    assert append_usage_reports(comment, [], NOW_S) == comment
    assert "\n" not in comment


@given(text=st.text() | st.from_regex(r"gpusage:[A-Za-z0-9_-]{0,40}={0,2}", fullmatch=True))
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert parse_usage_reports(text) == ()


def test_what_is_too_old_goes_with_the_next_letter() -> None:
    comment = append_usage_reports("", [ANONYMOUS], NOW_S)
    newer = replace(ANONYMOUS, job_id="8", ended_at_s=NOW_S + REPORTED_S)
    assert parse_usage_reports(append_usage_reports(comment, [newer], NOW_S + REPORTED_S)) == (newer,)


def test_late_usage_goes_however_old_it_is() -> None:
    """Slurmctld was away for an hour when the job ended."""
    assert parse_usage_reports(append_usage_reports("", [ANONYMOUS], NOW_S + 3600)) == (ANONYMOUS,)


def test_a_letter_has_room_for_the_newest() -> None:
    usages = [
        replace(ANONYMOUS, job_id=str(job * 7919), energy_j=job / 7, ended_at_s=NOW_S - job) for job in range(200)
    ]
    comment = append_usage_reports("rack 7", usages, NOW_S)
    assert len(comment) < LIMIT_BYTES + 10
    job_ids = [usage.job_id for usage in parse_usage_reports(comment)]
    assert 10 < len(job_ids) <= LIMIT_JOBS
    assert job_ids == [usage.job_id for usage in usages[: len(job_ids)]]


def test_many_jobs_of_a_second_drive_out_nobody_s_hour() -> None:
    """The node does not know whose jobs they are."""
    hour = replace(ANONYMOUS, job_id="7", sampled_s=3600.0)
    flood = [replace(ANONYMOUS, job_id=str(100 + i), sampled_s=1.0, ended_at_s=NOW_S + i) for i in range(200)]
    assert hour in parse_usage_reports(
        append_usage_reports(append_usage_reports("", [hour], NOW_S), flood, NOW_S + 200)
    )


def test_letters_of_many_nodes_are_read_from_what_scontrol_says() -> None:
    """One line per node; a word of the site's that only looks like ours is nothing."""
    reports = [append_usage_reports("rack", [replace(ANONYMOUS, job_id=str(node))], NOW_S) for node in range(3)]
    nodes = "\n".join(f"NodeName=n{node} Comment={report} Extra=gpusage:x" for node, report in enumerate(reports))
    assert [usage.job_id for usage in parse_usage_reports(nodes)] == ["0", "1", "2"]


def test_a_letter_that_grows_when_it_is_opened_is_cut_off() -> None:
    """Root alone writes letters; a broken one must not fill the daemon's memory either."""
    assert parse_usage_reports(append_usage_reports("", [replace(ANONYMOUS, gpu="x" * 100_000)], NOW_S)) == ()
