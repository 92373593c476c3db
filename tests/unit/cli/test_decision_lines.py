"""What a job really did, for people."""

from __future__ import annotations

from dataclasses import replace

from gpusage.cli.decision_lines import usage_document, usage_line
from gpusage_hooks.types import Allocation, Usage
from records import RECORD, USAGE


def test_one_line_has_asked_granted_used_and_what_to_ask_for_next_time() -> None:
    assert usage_line(USAGE, RECORD, "gres/gpu:1") == (
        "asked gres/gpu:1, got 40 % of one v100-sxm2-16gb, used 31 % of its time, 1.9 GiB, completed after 1 h 0 min; "
        "it waits for its processors, which are 99 % busy; a GPU 2 times as fast would save at most 16 % of its time; "
        "request next time: more processors"
    )


def test_a_job_that_nobody_saw_is_not_judged() -> None:
    unseen = Usage(number="", manager="slurm", job_id="7", user="ada", started_at_s=0.0, ended_at_s=5.0)
    assert usage_line(unseen, None, "") == "got all, used an unknown amount, ended after 5 s"
    document = usage_document(unseen, None)
    assert (document["gpu_utilization"], document["waits_for"], document["ask_next_time"]) == (None, None, None)


def test_why_a_share_is_not_what_was_asked_is_said() -> None:
    troubled = replace(USAGE, granted=Allocation(trouble="no MPS daemon could be started"))
    assert "got all (no MPS daemon could be started) of one v100" in usage_line(troubled, None, "")


def test_processes_that_took_more_than_their_part_in_sum_are_told() -> None:
    excess = "its processes together took 10.0 GiB, more than its part of the GPU's memory (6.0 GiB)"
    above = replace(USAGE, memory_bytes=10 * 2**30)
    assert f"; {excess}; " in usage_line(above, RECORD, "gres/gpu:1")
    assert (usage_document(above, RECORD)["excess"], usage_document(USAGE, RECORD)["excess"]) == (excess, None)
