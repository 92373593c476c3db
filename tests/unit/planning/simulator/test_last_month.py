"""The last month as a workload manager tells it; tests/slurm and tests/yarn ask real ones."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli.cluster_file import example_cluster
from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.plugins.loading import make_hooks
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import Manager
from gpusage_hooks.types import Cluster, PastJob
from gpusage_planning import commands
from gpusage_planning.simulator import sweep
from gpusage_planning.simulator.report import notes
from gpusage_planning.simulator.source import LastMonth, Source, collect_last_month, scenario
from sites import announced

ADVISOR = make_advisor()
CLUSTER = example_cluster("pbs", ADVISOR.catalogue)
JOBS = tuple(
    PastJob(job_id=f"{n}", user="ada", submitted_at_s=60.0 * n, duration_s=600.0, gpu_count=1, gpu_type="v100")
    for n in range(8)
)
NOW_S = 31 * 86400.0


def site(jobs: Sequence[PastJob] = JOBS) -> Advisor:
    """Return an advisor of a host with PBS, whose accounting has *jobs* since the first day."""

    def collect(manager: str, since_s: float) -> Sequence[PastJob] | None:
        return [job for job in jobs if job.submitted_at_s + 86400 >= since_s] if manager == "pbs" else None

    def observe(manager: str) -> Cluster | None:
        return CLUSTER if manager == "pbs" else None

    pbs = announced(
        describe_manager=lambda: Manager(name="pbs", title="PBS"), collect_past_jobs=collect, observe_cluster=observe
    )
    return replace(ADVISOR, hooks=make_hooks([pbs]))


def test_jobs_and_cluster_are_what_the_workload_manager_tells() -> None:
    month = collect_last_month(site(), NOW_S)
    assert (month.title, month.jobs, month.cluster) == ("PBS", JOBS, CLUSTER)
    assert collect_last_month(site(), NOW_S, Path("cluster.toml")).cluster is None


@pytest.mark.parametrize(
    ("advisor", "words"),
    [
        (replace(ADVISOR, hooks=make_hooks()), "got a host without one. Name a file"),
        (site(()), "in the last 30 days; got none that PBS shows you. Name a file"),
    ],
)
def test_without_jobs_there_is_nothing_to_simulate(advisor: Advisor, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        collect_last_month(advisor, NOW_S)


@pytest.mark.parametrize(("other", "end"), [("ada", "all of user ada: a site may hide other"), ("bob", "30 days.")])
def test_who_may_see_no_other_user_s_jobs_reads_why(other: str, end: str) -> None:
    month = LastMonth(title="PBS", jobs=(*JOBS, replace(JOBS[0], job_id="9", user=other)), cluster=CLUSTER)
    (note,) = [note for note in notes(Source(month=month), 0) if "PBS" in note]
    assert note.startswith("PBS's accounting has 9 jobs on GPUs in the last 30 days")
    assert end in note


def test_another_process_simulates_the_same_month() -> None:
    source = Source(month=LastMonth(title="PBS", jobs=JOBS, cluster=CLUSTER))
    here = sweep.run(sweep.Task(source, "slots", 0)).figures
    assert here.gpu_hours == pytest.approx(8 * 600 / 3600)
    assert sweep.run(pickle.loads(pickle.dumps(sweep.Task(source, "slots", 0)))).figures == here  # noqa: S301 - ours
    assert scenario(source, 0).fleet.gpu_count == 28


def test_a_job_whose_end_the_accounting_lost_is_left_out_and_counted() -> None:
    runaway = replace(JOBS[0], job_id="9", duration_s=483 * 86400.0)
    source = Source(month=LastMonth(title="PBS", jobs=(*JOBS, runaway), cluster=CLUSTER))
    assert list(scenario(source, 0).jobs.ids) == [job.job_id for job in JOBS]
    assert "Jobs that asked for no GPU, never ran to an end or ran for more than 366 days are left out: 1." in [
        *notes(source, 0)
    ]


def test_jobs_of_a_cluster_that_has_none_of_their_gpus_are_refused() -> None:
    month = LastMonth(title="PBS", jobs=tuple(replace(job, gpu_type="k80") for job in JOBS), cluster=CLUSTER)
    with pytest.raises(RequestError, match='"PBS\'s accounting" must have at least one job'):
        scenario(Source(month=month), 0)


def test_the_month_goes_with_no_file() -> None:
    result = CliRunner().invoke(commands.simulate, ["--last-month", "--generate", "5"])
    assert "got --last-month and --generate. Leave all but one out." in result.output
