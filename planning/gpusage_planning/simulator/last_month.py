"""What a workload manager of this host has of the last month: its cluster, and the jobs in its accounting."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gpusage.decisions.advisor import Advisor
from gpusage.plugins.managers import managers_of
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Cluster, PastJob

DAYS = 30
S_PER_DAY = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMonth:
    """Jobs and the cluster on which they ran.

    Attributes:
        title: The workload manager's, for people.
        cluster: As it is today; ``None`` where the user names another.
    """

    title: str
    jobs: tuple[PastJob, ...]
    cluster: Cluster | None = field(default=None, hash=False)

    @property
    def origin(self) -> str:
        """Return where the jobs are from, for people."""
        return f"{self.title}'s accounting"

    @property
    def note(self) -> str:
        """Return how many jobs there are: a site may hide other users' jobs, and nothing shows that it does."""
        users = {job.user for job in self.jobs}
        limit = f", all of user {min(users)}: a site may hide other users' jobs from you" if len(users) == 1 else ""
        return f"{self.origin} has {len(self.jobs)} jobs on GPUs in the last {DAYS} days{limit}."


def collect_last_month(advisor: Advisor, now_s: float, cluster_file: Path | None = None) -> LastMonth:
    """Ask the workload managers of this host for the jobs of the last month; the first one that had any counts.

    Args:
        advisor: Whose plugins know workload managers; with the settings of this host.
        now_s: Seconds since 1970.
        cluster_file: Where it is named, no manager is asked for its cluster.

    Raises:
        RequestError: There is no workload manager, it had no jobs, or it does not answer.
    """
    idle_managers = []
    for manager in managers_of(advisor.hooks).values():
        context = advisor.context(manager.name)
        jobs = advisor.hooks.collect_past_jobs(manager.name, now_s - DAYS * S_PER_DAY, context)
        if jobs:
            cluster = None if cluster_file else advisor.hooks.observe_cluster(manager.name, context)
            return LastMonth(title=manager.title, jobs=tuple(jobs), cluster=cluster)
        if jobs is not None:
            idle_managers.append(manager.title)
    names = " or ".join(idle_managers)
    rule = (
        f"Jobs must have run on GPUs in the last {DAYS} days; got none that {names} shows you"
        if idle_managers
        else "Option --last-month must be used on a host with a workload manager; got a host without one"
    )
    message = f"{rule}. Name a file of another host by --jobs."
    raise RequestError(message)
