"""Where the jobs and the GPUs of a simulation come from: files that a user names, a site's accounting, or chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from gpusage.cli.cluster_file import any_cluster, example_cluster, measured_power_w
from gpusage.cli.user_file import require_readable
from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import PastJob
from gpusage_planning.simulator.fleet import Fleet, as_if_installed, fleet_of, with_nodes, with_power
from gpusage_planning.simulator.formats import OWN, Format, find_format
from gpusage_planning.simulator.generated import generated
from gpusage_planning.simulator.jobs import Jobs
from gpusage_planning.simulator.last_month import LastMonth
from gpusage_planning.simulator.models import draw_kinds, with_drawn_models
from gpusage_planning.simulator.rows import Row
from gpusage_planning.simulator.scenario import Scenario, scenario_of
from gpusage_planning.simulator.site_pairs import read_pairs
from gpusage_planning.simulator.trace import WHAT, Trace, trace_of

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
    return scenario_of(_jobs(source, files, seed), files.fleet, files.advisor, folder, seed, files.pairs)


class Files:
    """What the files of *source* hold.

    Attributes:
        undivided: GPU types that the site does not divide today, and that are simulated as if it did.
        format: Of the jobs; ``None`` where they come from no file.
        pairs: That the site measured.
    """

    def __init__(self, source: Source) -> None:
        self.advisor = make_advisor()
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
    fleet = with_power(fleet, measured_power_w(path, MANAGER) if path is not None and is_ours else {})
    fleet = with_nodes(fleet, source.gpus_per_node)
    return replace(fleet, spreads_jobs=source.spread), undivided


def _jobs(source: Source, files: Files, seed: int) -> Jobs:
    if files.trace is None:
        return generated(source.count, draw_kinds(), files.fleet, seed, source.load)
    return with_drawn_models(files.trace.jobs, seed) if source.draws_models else files.trace.jobs
