"""Where the jobs and the GPUs of a simulation come from: files that a user names, or chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from gpusage.cli.cluster_file import any_cluster, example_cluster, gpus_per_node, measured_power_w
from gpusage.cli.user_file import require_readable
from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import PastJob
from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_lab.simulator.fleet import SHARES, Fleet, as_if_installed, fleet_of, with_nodes, with_power
from gpusage_lab.simulator.formats import OWN, Format, find_format
from gpusage_lab.simulator.generated import generated
from gpusage_lab.simulator.jobs import Jobs
from gpusage_lab.simulator.models import drawn_kinds, with_drawn_models
from gpusage_lab.simulator.rows import Row
from gpusage_lab.simulator.scenario import Scenario, scenario_of
from gpusage_lab.simulator.site_pairs import Measured, read_pairs
from gpusage_lab.simulator.trace import WHAT, Trace, trace_of

MANAGER = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a user names; small, so that another process can be told of it.

    Attributes:
        jobs_file: A trace.
        format: Of the trace, by its name in `formats`; ``None`` for that by which it is recognised.
        cluster_file: Our own form, or a manager's; ``None`` means an example.
        count: Jobs to draw where no file is named.
        load: GPU time that drawn jobs ask for, over what there is.
        pairs_file: Pairs of jobs that the site measured; ``None`` where it did not.
        draws_models: Whether jobs without a model have one drawn.
        spread: Whether a job's GPUs are on as many nodes as can be, and not on as few.
        gpus_per_node: Of the types of which the cluster file does not say it; ``None`` for types without nodes.
    """

    jobs_file: Path | None = None
    format: str | None = None
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
    files = _files(source)
    folder = (source.jobs_file or Path("-")).parent
    return scenario_of(_jobs(source, files, seed), files.fleet, files.advisor, folder, seed, files.pairs)


def notes(source: Source, seed: int) -> Iterator[str]:
    """Yield what the figures rest on."""
    files, drawn = _files(source), scenario(source, seed)
    if files.trace is None:
        yield f"The jobs are drawn by chance, seed {seed}; --jobs FILE takes your own."
    elif files.trace.left_out:
        yield f"{files.trace.left_out} jobs of the file asked for no GPU or never ran to an end; they are left out."
    if files.trace is not None and files.trace.elsewhere:
        gpus = ", ".join(f"{count} on {gpus}" for gpus, count in files.trace.elsewhere.most_common())
        yield f"Jobs on GPUs that the cluster does not have are left out: {gpus}."
    if files.format is not None and files.format.name != OWN:
        yield " ".join(filter(None, (f"The jobs are read as of format {files.format.name}.", files.format.note)))
    if any(kind.share_percent < WHOLE_PERCENT for kind in drawn.jobs.kinds):
        yield "Jobs that ask for a part of a GPU have that part under every policy, and the time that they took on it."
    if files.trace is not None and source.draws_models:
        yield "Jobs without a model have one drawn by chance: one for each user, GPU type and number of GPUs."
    if files.undivided:
        yield f"GPUs of {', '.join(files.undivided)} are not divided today; here they are, into {SHARES} shares each."
    unreadable = [*drawn.models.unreadable.values()]
    if unreadable:
        named = len(unreadable) + len(drawn.models.graphs)
        first = f"The first: {unreadable[0]}"
        yield f"{len(unreadable)} of {named} models cannot be read: their jobs count as without a model. {first}"
    if any(kind.model is None for kind in drawn.jobs.kinds):
        yield "Jobs without a model run alike on all GPU types and get what they ask for, as in production."
    measured = drawn.measured_pairs
    if measured is not None:
        yield _pairs_note(measured)
    yield "What happens is predicted, with errors as large as the intervals; docs/simulator.md has all assumptions."
    unmeasured = [one.name for one in files.fleet.types if one.power_w is None]
    if unmeasured:
        yield f"No energy: the cluster file has no measured power_w and idle_power_w of {', '.join(unmeasured)}."


def _pairs_note(measured: Measured) -> str:
    """Say how many of a file's pairs are of the jobs; a model that is written otherwise is none of them."""
    if not measured.used_count:
        return (
            f"None of the {measured.pair_count} measured pairs is of these jobs: 'model' and 'beside' must name their "
            "models with the same options, and 'gpu_type' a type of this cluster."
        )
    count = f"{measured.used_count} of {measured.pair_count} measured pairs"
    return f"{count} are of these jobs, which are as slow beside each other as measured. Policies are not told."


class _Files:
    """What the files of *source* hold."""

    def __init__(self, source: Source) -> None:
        self.advisor = make_advisor()
        self._source = source
        self.fleet, self.undivided = _fleet(source, self.advisor)
        self.format: Format | None = None if source.jobs_file is None else find_format(source.jobs_file, source.format)
        self.pairs = () if source.pairs_file is None else tuple(read_pairs(source.pairs_file))

    @cached_property
    def trace(self) -> Trace | None:
        """Return the jobs of the file that is named, ``None`` where none is."""
        path = self._source.jobs_file
        if path is None or self.format is None:
            return None
        rows = _past_rows(path, self.advisor) if self.format.read is None else self.format.read(path)
        return trace_of(rows, str(path), self.fleet, is_foreign=self.format.name != OWN)


_files = lru_cache(maxsize=1)(_Files)


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
    cluster = example_cluster(MANAGER, catalogue) if path is None else any_cluster(path, MANAGER, advisor)
    installed, undivided = as_if_installed(cluster, catalogue)
    fleet = fleet_of(installed, catalogue)
    if not fleet.types:
        message = f"Cluster file {str(path)!r} must have a pool with at least one GPU; got none. Add one."
        raise RequestError(message)
    # A workload manager's own file tells neither power nor nodes.
    is_ours = path is not None and advisor.hooks.read_cluster(str(path), catalogue) is None
    fleet = with_power(fleet, measured_power_w(path, MANAGER) if path is not None and is_ours else {})
    per_node = gpus_per_node(path, MANAGER) if path is not None and is_ours else {}
    fleet = with_nodes(fleet, per_node, source.gpus_per_node)
    return replace(fleet, spreads_jobs=source.spread), undivided


def _jobs(source: Source, files: _Files, seed: int) -> Jobs:
    if files.trace is None:
        return generated(source.count, drawn_kinds(), files.fleet, seed, source.load)
    return with_drawn_models(files.trace.jobs, seed) if source.draws_models else files.trace.jobs
