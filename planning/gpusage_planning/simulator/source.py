"""Where the jobs and the GPUs of a simulation come from: files that a user names, a site's accounting, or chance.

Jobs drawn by chance have sizes and times as in published traces of GPU clusters: most ask for one GPU, run times spread
over orders of magnitude, and users are unequal. The shares are round figures near those of Philly and Helios, not
fitted to them.

Source:
    Jeon et al., USENIX ATC 2019 (Philly); Hu et al., SC 2021 (Helios).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from gpusage.cli.cluster_file import any_cluster, example_cluster, read_description
from gpusage.cli.pairs import read_pairs
from gpusage.cli.table_file import Row
from gpusage.cli.user_file import read_document, require_readable
from gpusage.decisions.advisor import Advisor, advisor
from gpusage.plugins.loading import managers_of
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Cluster, PastJob
from gpusage_planning.simulator.contract import Jobs, Kind
from gpusage_planning.simulator.fleet import Fleet, as_if_installed, fleet_of, with_nodes, with_power
from gpusage_planning.simulator.formats import OWN, Format, find_format
from gpusage_planning.simulator.predictions import draw_kinds, with_drawn_models
from gpusage_planning.simulator.scenario import Scenario, scenario_of
from gpusage_planning.simulator.trace import WHAT, Trace, trace_of

GPU_COUNTS, GPU_SHARES = (1, 2, 4, 8), (0.87, 0.05, 0.04, 0.04)
MEDIAN_S, SPREAD = 600.0, 1.8
"""Of the run time: a logarithmic normal distribution."""
SHORTEST_S, LONGEST_S = 30.0, 7 * 86400.0
USERS = 50


def generated(count: int, kinds: Sequence[Kind], fleet: Fleet, seed: int, load: float = 0.9) -> Jobs:
    """Return *count* jobs that arrive by chance and keep the GPUs of *fleet* busy to *load* of their time.

    Args:
        count: At least 1.
        kinds: Drawn evenly.
        fleet: No job asks for more GPUs than each of its types has.
        seed: The same one gives the same jobs.
        load: GPU time that jobs ask for over what there is.
    """
    generator = np.random.default_rng(seed)
    work_s = np.clip(MEDIAN_S * np.exp(SPREAD * generator.standard_normal(count)), SHORTEST_S, LONGEST_S)
    gpus = np.minimum(
        generator.choice(GPU_COUNTS, count, p=GPU_SHARES), min(one.gpu_count for one in fleet.types)
    ).astype(np.int32)
    gaps = generator.exponential(1.0, count)
    gaps *= float((work_s * gpus).sum()) / (fleet.gpu_count * load * gaps.sum())
    weights = 1.0 / np.arange(1, USERS + 1)

    return Jobs(
        ids=range_ids(count),
        submit_s=np.cumsum(gaps) - gaps[0],
        work_s=work_s,
        limit_s=work_s,
        gpu_count=gpus,
        kind=generator.integers(len(kinds), size=count).astype(np.int32),
        user=generator.choice(USERS, count, p=weights / weights.sum()).astype(np.int32),
        kinds=tuple(kinds),
        users=tuple(f"user{number}" for number in range(1, USERS + 1)),
    )


def range_ids(count: int) -> list[str]:
    """Return the ids 1 to *count*."""
    return [str(number) for number in range(1, count + 1)]


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
        rows = advisor.hooks.collect_past_jobs(manager.name, now_s - DAYS * S_PER_DAY, context)
        jobs = [job for job in rows or () if not job.left_out]
        if jobs:
            cluster = None if cluster_file else advisor.hooks.observe_cluster(manager.name, context)
            return LastMonth(title=manager.title, jobs=tuple(jobs), cluster=cluster)
        if rows is not None:
            idle_managers.append(manager.title)

    names = " or ".join(idle_managers)
    rule = (
        f"Jobs must have run on GPUs in the last {DAYS} days; got none that {names} shows you"
        if idle_managers
        else "Option --last-month must be used on a host with a workload manager; got a host without one"
    )
    message = f"{rule}. Name a file of another host by --jobs."
    raise RequestError(message)


MANAGER = "simulated"
MOST_GPUS = 1_000_000
"""Of a cluster: each takes memory, and a mistyped number took all of a host's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a user names, in plain values, so that it can be sent to another process.

    Attributes:
        jobs_file: A trace.
        format: Of the trace, by its name in `formats`; ``None`` for that by which it is recognised.
        cluster_file: Our own form, or a manager's; ``None`` means that of the month, else an example.
        count: Jobs to draw where no file is named.
        load: GPU time that drawn jobs ask for, over what there is.
        month: In place of the file, what a workload manager of this host has of the last month.
        pairs_file: Pairs of jobs that the site measured; ``None`` where it did not.
        draws_models: Whether jobs without a model have one drawn.
        spread: Whether a job's GPUs are on as many nodes as can be, and not on as few.
        gpus_per_node: Of the types of which the cluster does not say it; ``None`` for types without nodes.
    """

    jobs_file: Path | None = None
    format: str | None = None
    month: LastMonth | None = None
    cluster_file: Path | None = None
    count: int = 1000
    load: float = 1.0
    draws_models: bool = False
    pairs_file: Path | None = None
    gpus_per_node: int | None = None
    spread: bool = False


@lru_cache(maxsize=1)
def scenario(source: Source, seed: int) -> Scenario:
    """Return the jobs of *source* and what happens to them; *seed* draws what is drawn.

    Raises:
        RequestError: A file cannot be read or understood, or a job fits nowhere.
    """
    files = files_of(source)
    folder = (source.jobs_file or Path("-")).parent
    return scenario_of(jobs_of(source, files, seed), files.fleet, files.advisor, folder, seed, files.pairs)


class Files:
    """What the files of *source* hold.

    Attributes:
        undivided: GPU types that the site does not divide today, and that are simulated as if it did.
        format: Of the jobs; ``None`` where they come from no file.
        pairs: That the site measured.
    """

    def __init__(self, source: Source) -> None:
        self.advisor = advisor()
        self._source = source
        self.fleet, self.undivided = _fleet(source, self.advisor)
        self.format: Format | None = None if source.jobs_file is None else find_format(source.jobs_file, source.format)
        self.pairs = () if source.pairs_file is None else tuple(read_pairs(source.pairs_file))

    @cached_property
    def trace(self) -> Trace | None:
        """Return the jobs of the file that is named, ``None`` where none is."""
        path, month = self._source.jobs_file, self._source.month
        if month is not None:
            return trace_of(_rows(month.jobs), month.origin, self.fleet, is_foreign=True)
        if path is None or self.format is None:
            return None
        rows = _past_rows(path, self.advisor) if self.format.read is None else self.format.read(path)
        return trace_of(rows, str(path), self.fleet, is_foreign=self.format.name != OWN)


files_of = lru_cache(maxsize=1)(Files)


def _past_rows(path: Path, advisor: Advisor) -> Iterator[tuple[int, Row]]:
    """Yield the jobs of a file that a workload manager's accounting printed."""
    past = advisor.hooks.read_past_jobs(str(path))
    if past is None:
        require_readable(path, WHAT)
        rule = "what 'sacct --parsable2' or YARN's ResourceManager (/ws/v1/cluster/apps) printed"
        message = f"{WHAT} {str(path)!r} must be {rule}; got another. Name its --format, or write it again."
        raise RequestError(message)
    yield from _rows(past)


def _rows(jobs: Iterable[PastJob]) -> Iterator[tuple[int, Row]]:
    """Yield the jobs of a workload manager's accounting as rows, each with its number."""
    for number, job in enumerate(jobs, start=1):
        yield (
            number,
            {
                "job_id": job.job_id,
                "user": job.user,
                "submit_time": job.submitted_at_s,
                "duration": job.duration_s,
                "gpu_num": job.gpu_count,
                "gpu_type": job.gpu_type,
                "model": job.model,
                "time_limit": job.time_limit_s,
            },
        )


def _fleet(source: Source, advisor: Advisor) -> tuple[Fleet, tuple[str, ...]]:
    """Return the GPUs, and the types that the site does not divide today."""
    path, catalogue = source.cluster_file, advisor.catalogue
    if path is not None:
        cluster = any_cluster(path, MANAGER, advisor)
    elif source.month is not None and source.month.cluster is None:
        message = "Option --last-month needs a cluster that this host can see; got none. Name its file with --cluster."
        raise RequestError(message)
    else:
        cluster = source.month.cluster if source.month and source.month.cluster else example_cluster(MANAGER, catalogue)

    installed, undivided = as_if_installed(cluster, catalogue)
    fleet = fleet_of(installed, catalogue)
    if not fleet.types:
        name = "Cluster" if path is None else f"Cluster file {str(path)!r}"
        message = f"{name} must have a pool with at least one GPU; got none. Add one, or name another --cluster."
        raise RequestError(message)
    if fleet.gpu_count > MOST_GPUS:
        message = (
            f"A cluster must have at most {MOST_GPUS:,} GPUs to be simulated; got {fleet.gpu_count:,}. Correct it."
        )
        raise RequestError(message)

    # A workload manager's own file has no power.
    is_ours = path is not None and advisor.hooks.read_cluster(str(path), catalogue) is None
    fleet = with_power(fleet, _measured_power_w(path, MANAGER) if path is not None and is_ours else {})
    fleet = with_nodes(fleet, source.gpus_per_node)

    return replace(fleet, spreads_jobs=source.spread), undivided


def _measured_power_w(path: Path, manager: str) -> Mapping[str, tuple[float, float]]:
    """Return what a GPU takes, busy and idle, by the site's type, where the cluster file at *path* has both.

    Raises:
        RequestError: It is not a cluster; or a GPU takes less when it is busy.
    """
    read = read_description(read_document(path, "Cluster file"), manager, str(path))
    for row in read.pools:
        # A GPU takes no less when it is busy: the two figures were swapped, or one is of another GPU.
        if row.power_w is not None and row.idle_power_w is not None and row.power_w < row.idle_power_w:
            message = (
                f"Key 'power_w' of type {row.site_type!r} in cluster file {str(path)!r} must be at least "
                f"'idle_power_w', {row.idle_power_w:g} W; got {row.power_w:g}. Swap them, or measure again."
            )
            raise RequestError(message)

    return {
        row.site_type: (row.power_w, row.idle_power_w)
        for row in read.pools
        if row.power_w is not None and row.idle_power_w is not None
    }


def jobs_of(source: Source, files: Files, seed: int) -> Jobs:
    """Return the jobs that *source* names, or that *seed* draws."""
    if files.trace is None:
        return generated(source.count, draw_kinds(), files.fleet, seed, source.load)
    return with_drawn_models(files.trace.jobs, seed) if source.draws_models else files.trace.jobs
