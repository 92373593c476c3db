"""How an application's end is read."""

from __future__ import annotations

from typing import Any

import pytest

from gpusage_yarn.submission.monitoring import contents_of, describe_state, parse_outcome

REPORT: dict[str, Any] = {"id": "application_1_2", "state": "FINISHED", "finalStatus": "FAILED", "diagnostics": ""}


@pytest.mark.parametrize(
    ("final", "diagnostics", "status"),
    [
        ("SUCCEEDED", "gpusage: exit status 0", 0),
        ("FAILED", "gpusage: exit status 7. container_1 on n: ...", 7),
        ("FAILED", "Attempt recovered after RM restartgpusage: exit status 3", 3),
        ("FAILED", "Application application_1 failed 2 times due to AM Container", 1),
        ("FAILED", "gpusage: exit status 0", 1),
        ("KILLED", "Application killed by user.", 143),
        ("UNDEFINED", "", 1),
    ],
)
def test_the_exit_status_is_the_command_s(final: str, diagnostics: str, status: int) -> None:
    assert parse_outcome({**REPORT, "finalStatus": final, "diagnostics": diagnostics}).status == status


def test_yarn_s_copies_of_the_logs_are_left_out_of_the_reason() -> None:
    again = "[2026-11-21 09:14]Container exited with a non-zero exit code 7. Error file: prelaunch.err.\nLast 4096"
    actual = parse_outcome(
        {**REPORT, "diagnostics": f"gpusage: exit status 7. c on n\nExit code: 7\n\n{again} bytes of x"}
    )
    assert actual.reason() == "gpusage: exit status 7. c on n\nExit code: 7"


def test_what_the_master_tells_of_starved_containers_is_found_before_the_log() -> None:
    story = (
        "container_1_2_01_000002 ran out of GPU memory in its share of 40, and its command ran again with a whole GPU"
    )
    actual = parse_outcome({**REPORT, "finalStatus": "SUCCEEDED", "diagnostics": f"gpusage: exit status 0. {story}"})
    assert actual.out_of_memory_messages() == (story,)
    assert parse_outcome(REPORT).out_of_memory_messages() == ()


@pytest.mark.parametrize(
    ("changes", "has_run", "line"),
    [
        ({"state": "ACCEPTED", "appNodeLabelExpression": "a100"}, False, "application_1_2 accepted on a100"),
        ({"state": "ACCEPTED", "appNodeLabelExpression": "<DEFAULT_PARTITION>"}, False, "application_1_2 accepted"),
        (
            {"state": "RUNNING", "runningContainers": 1, "appNodeLabelExpression": "a100"},
            False,
            "application_1_2 waiting for a GPU, at first on a100",
        ),
        ({"state": "RUNNING", "runningContainers": 3}, True, "application_1_2 running, containers: 2"),
        ({"state": "RUNNING", "runningContainers": 1}, True, "application_1_2 ending"),
    ],
)
def test_progress_is_one_line(changes: dict[str, Any], has_run: bool, line: str) -> None:  # a case
    assert describe_state({**REPORT, **changes}, has_run=has_run) == line


def test_a_log_is_taken_out_of_what_the_node_writes_around_it() -> None:
    around = "Container: c on n\nLogContents:\n{}End of LogType:stdout.\n****\n"
    assert contents_of(around.format("a\nb\n")) == "a\nb"
    assert contents_of(around.format("")) == ""
    assert contents_of("as it is") == "as it is"
