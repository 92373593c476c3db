"""What a job was given, from the files that its node and its user wrote."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusage.node.dividing.granted import NOT_READ_BACK, read_granted
from gpusage_hooks.types import Allocation
from mps import PROGRAM

ALLOCATION = Allocation(division="percentage", share_percent=40, thread_percent=40)
WRITTEN = {"division": "percentage", "share_percent": 40, "thread_percent": 40, "memory_limit_bytes": None}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Return a node's folder in which job 7 was given 40 %."""
    (tmp_path / "granted").mkdir()
    (tmp_path / "granted" / "7.json").write_text(json.dumps({**WRITTEN, "trouble": ""}))
    return tmp_path


def see(node: Path, **seen: object) -> None:
    (node / "granted" / "7.seen").write_text(json.dumps(seen))


@pytest.mark.parametrize("job", ["8", "", "../7", "7/../7", "7.json"])
def test_a_job_that_shares_no_gpu_through_us_has_none(node: Path, job: str) -> None:
    assert read_granted(job, folder=node) is None


def test_what_no_client_read_back_is_said_to_be_so(node: Path) -> None:
    assert read_granted("7", folder=node) == Allocation(
        division="percentage", share_percent=40, thread_percent=40, trouble=NOT_READ_BACK
    )


def test_the_sms_that_a_client_sees_are_its_percentage(node: Path) -> None:
    see(node, sm_count=26, thread_percent="40", memory_limit="0=2G")
    granted = read_granted("7", folder=node, sm_count=132)
    assert granted == Allocation(  # 26 / 132 = 19.7 %
        division="percentage", share_percent=40, thread_percent=20, memory_limit_bytes=2 * 2**30
    )


def test_a_client_that_sees_all_sms_is_held_by_nothing(node: Path) -> None:
    see(node, sm_count=132, thread_percent="40")
    granted = read_granted("7", folder=node, sm_count=132)
    assert granted == Allocation(share_percent=40, trouble="no MPS daemon holds the client: it sees all SMs")


@pytest.mark.parametrize(("written", "holds"), [("cap", "none"), ("wall", "wall")])
def test_a_cap_needs_a_daemon_and_a_wall_does_not(node: Path, written: str, holds: str) -> None:
    record = {**WRITTEN, "limited_by": written, "memory_limit_bytes": 2**30, "trouble": ""}
    (node / "granted" / "7.json").write_text(json.dumps(record))
    see(node, sm_count=132, thread_percent="40")
    granted = read_granted("7", folder=node, sm_count=132)
    assert granted is not None
    assert (granted.division, granted.limited_by) == ("whole", holds)


def test_where_the_whole_gpus_sms_are_not_known_the_percentage_that_is_set_stands(node: Path) -> None:
    see(node, sm_count=132, thread_percent="40")
    assert read_granted("7", folder=node) == ALLOCATION


def test_a_link_a_fifo_or_a_flood_in_the_place_of_what_was_read_back_is_not_read(node: Path, tmp_path: Path) -> None:
    seen, elsewhere = node / "granted" / "7.seen", tmp_path / "elsewhere"
    elsewhere.write_text(json.dumps({"sm_count": 132, "thread_percent": "99"}))
    seen.symlink_to(elsewhere)
    assert read_granted("7", folder=node) == read_granted("7", folder=node, sm_count=132)
    seen.unlink()
    os.mkfifo(seen)
    assert read_granted("7", folder=node, sm_count=132) is not None
    seen.unlink()
    seen.write_text(json.dumps({"sm_count": 132, "trouble": "x" * 10_000}))
    granted = read_granted("7", folder=node, sm_count=132)
    assert granted is not None
    assert granted.trouble == NOT_READ_BACK


@given(content=st.binary(max_size=300) | st.dictionaries(st.text(), st.text() | st.integers()).map(json.dumps))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_was_read_back_leaves_what_the_node_gave(node: Path, content: bytes | str) -> None:
    seen = node / "granted" / "7.seen"
    seen.write_bytes(content.encode() if isinstance(content, str) else content)
    granted = read_granted("7", folder=node, sm_count=132)
    assert granted is not None
    assert granted.share_percent == 40
    assert granted.trouble.isprintable()
    assert len(granted.trouble) <= 200


@pytest.mark.parametrize("count", [0, -5, int("9" * 400)])
def test_a_number_of_sms_that_no_gpu_has_was_not_read_back(node: Path, count: int) -> None:
    """The program that reads back is the job's user's; a huge number ended the sampling of the job."""
    (node / "granted" / "7.json").write_text(json.dumps({**WRITTEN, "thread_percent": 100, "trouble": ""}))
    see(node, sm_count=count)
    granted = read_granted("7", folder=node, sm_count=132)
    assert granted is not None
    assert (granted.thread_percent, granted.trouble) == (100, NOT_READ_BACK)


def test_the_record_of_a_job_without_mps_stays_while_it_runs(tmp_path: Path) -> None:
    """Others' records of a day ago go when the next job starts: it runs longer than that."""

    def call(verb: str, job: str) -> None:
        share = {"GPUSAGE_GPU": "0", "GPUSAGE_SHARE_PERCENT": "40", "GPUSAGE_USER": str(os.getuid())}
        missing = {"GPUSAGE_MPS_CONTROL": str(tmp_path / "none"), "GPUSAGE_MPS_FOLDER": str(tmp_path)}
        subprocess.run([PROGRAM, verb, job], check=False, env={"PATH": os.environ["PATH"], **share, **missing})

    for job in ("7", "8"):
        call("enter", job)
    call("leave", "8")
    records = {job: tmp_path / "granted" / f"{job}.json" for job in ("7", "8")}
    for record in records.values():
        os.utime(record, (0, 0))
    call("enter", "9")
    assert (records["7"].exists(), records["8"].exists()) == (True, False)
