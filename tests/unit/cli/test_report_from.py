"""`gpusage report --from`: what a site's own accounting shows before anything is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpusage.cli import job_commands
from gpusage_slurm import scontrol
from gpusage_slurm.trace import COLUMNS

CONF = """
NodeName=h[1-2] Gres=gpu:h100:4 Features=h100
NodeName=v1 Gres=gpu:v100:4
NodeName=x1 Gres=gpu:frobnicator:2
PartitionName=all Nodes=ALL Default=YES
PartitionName=old Nodes=v1
"""
LIGHT, NOTHING = "gres/gpumem=2048M,gres/gpuutil=20", "gres/gpumem=0,gres/gpuutil=0"
HOUR = 3600


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scontrol, "is_slurm_host", lambda: False)  # another test's Slurm may run on this host
    monkeypatch.setenv("COLUMNS", "200")


def job(number: str, used: str = "", **changes: str) -> list[str]:
    """Return the rows of a job of an hour on one GPU of node h1, and of its step where that *used* something."""
    cells = dict.fromkeys(COLUMNS.split(","), "") | {
        "JobID": number,
        "User": "ada",
        "Submit": "1000000",
        "Start": "1000000",
        "ElapsedRaw": str(HOUR),
        "TimelimitRaw": "100",
        "State": "COMPLETED",
        "ExitCode": "0:0",
        "Partition": "all",
        "NodeList": "h1",
        "AllocTRES": "cpu=4,gres/gpu=1",
        **changes,
    }
    step = cells | {"JobID": f"{number}.batch", "User": "", "NTasks": "1", "TRESUsageInMax": used}
    return ["|".join(row.values()) for row in ([cells, step] if used else [cells])]


def report(folder: Path, *jobs: list[str], options: tuple[str, ...] = ()) -> Result:
    (folder / "sacct.txt").write_text("\n".join((COLUMNS.replace(",", "|"), *(row for rows in jobs for row in rows))))
    (folder / "slurm.conf").write_text(CONF)
    files = ("--from", str(folder / "sacct.txt"), "--cluster", str(folder / "slurm.conf"))
    return CliRunner().invoke(job_commands.report, (*files, *options))


def words(done: Result) -> str:
    return " ".join(done.output.split())


def test_jobs_that_slurm_sampled_show_what_shares_would_free(tmp_path: Path) -> None:
    light = [job(str(number), LIGHT, User=user) for number, user in enumerate(("ada", "ada", "bob", "bob"))]
    late = job("9", NOTHING, Start="1086400", Submit="1086400")
    done = report(tmp_path, *light, late, options=("--by", "user"))
    assert done.exit_code == 0, done.output
    text = words(done)
    # Four quarters: by two users on two GPUs of 1 h each, which are beside partners a little longer; or on one.
    assert "h100-sxm5-80gb 5 5.00 5.00 0.00 0.00 5.00 4" in text
    assert "1.93 to 2.97" in text
    assert "Of 5 jobs on one GPU the accounting has memory and utilization of 5, of which 1 took no GPU memory" in text
    assert "h100-sxm5-80gb: 5.00 GPU hours in 1.0 days, 3 % of what 8 GPUs have." in text
    assert "Today no job can have a part of h100, v100; here they count as if they were shared." in text
    assert "To share h100, v100: GresTypes=gpu,mps in slurm.conf" in text
    assert "GPU hours by user user jobs" in text


def test_without_what_slurm_can_sample_hours_are_shown_and_what_is_needed(tmp_path: Path) -> None:
    done = report(tmp_path, job("1"), job("2", AllocTRES="gres/gpu:v100=2,gres/gpu=2", NodeList="v1"))
    text = words(done)
    assert "no GPU memory at all" not in text
    assert "v100-sxm2-16gb 1 2.00 2.00" in text
    assert (
        "Slurm's accounting has them with AccountingStorageTRES=gres/gpu and a JobAcctGatherType in slurm.conf" in text
    )


def test_the_gpu_is_that_of_the_job_of_its_node_or_of_its_partition(tmp_path: Path) -> None:
    jobs = [
        job("1", AllocTRES="gres/gpu:h100=1,gres/gpu=1", NodeList="v1"),
        job("2", NodeList="v1"),
        job("3", NodeList="gone7", Partition="old"),
        job("4", NodeList="gone7"),
        job("5", NodeList="x1"),
        job("6", AllocTRES="gres/gpu:a100=1,gres/gpu=1"),
    ]
    groups = json.loads(report(tmp_path, *jobs, options=("--json",)).output)["groups"]["gpu"]
    assert {group["name"]: group["job_count"] for group in groups} == {
        "h100-sxm5-80gb": 1,
        "v100-sxm2-16gb": 2,
        "": 1,
        "frobnicator": 1,
        "a100": 1,
    }


def test_nothing_is_lost_without_a_word(tmp_path: Path) -> None:
    jobs = [job("1"), job("2", State="RUNNING"), job("3", AllocTRES="cpu=1"), job("4", AllocTRES="cpu=1"), ["5|cut"]]
    document = json.loads(report(tmp_path, *jobs, options=("--json",)).output)
    assert document["left_out"] == {"had no GPU": 2, "has not ended": 1, "the row has too few cells": 1}
    assert "had no GPU 2" in words(report(tmp_path, *jobs))
    nothing = words(report(tmp_path))
    assert "No job that ended on GPUs. Slurm's accounting has them with" in nothing
    assert nothing.startswith("GPU usage of all jobs What the file has")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--cluster", "slurm.conf"), "Option '--cluster' must come with '--from'"),
        (("--from", "none.txt"), "none.txt' must be a readable file"),
        (("--from", __file__), "must be what a workload manager's accounting printed"),
        (("--from", "none.txt", "--month", "2026-10"), "takes only '--by' and '--json'"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(options: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(job_commands.report, options)
    assert words in (done.output + str(done.exception))


def test_a_cluster_must_be_named_where_none_is(tmp_path: Path) -> None:
    report(tmp_path, job("1"))
    done = CliRunner().invoke(job_commands.report, ("--from", str(tmp_path / "sacct.txt")))
    assert "Option '--cluster' must name the file of the jobs' cluster" in str(done.exception)


@pytest.mark.parametrize("changes", [{"ElapsedRaw": "9" * 18}, dict.fromkeys(("Submit", "Start"), "9" * 18)])
def test_a_time_after_all_calendars_is_no_job(tmp_path: Path, changes: dict[str, str]) -> None:
    done = report(tmp_path, job("1"), job("2", **changes))
    assert done.exit_code == 0
    assert "Rows that are not counted" in done.output
