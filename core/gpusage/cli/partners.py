"""`gpusage colocate TARGET --among FILE`, `--running`, `--queue`: which model or job is the best partner on one GPU.

The file has one model a line with its own options, as on the command line; a line that is empty or begins with ``#`` is
left out. Paths count from the file's folder. Of jobs, the need counts that was recorded with their decisions, so that
nobody's model is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from gpusage.cli import documents, figures, options, tables
from gpusage.cli.cards.graph_cache import read_graph
from gpusage.cli.decisions import present
from gpusage.cli.user_file import read_text
from gpusage.decisions.advisor import advisor
from gpusage.decisions.prediction import settled
from gpusage.policies.share_price import need_alone
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_hooks.types import AnnotatedJob, Colocation, DecisionRecord, Gpu, GpuNeed, JobState, ModelRequest


class LeftOut(NamedTuple):
    """One such job, and why it is none of the candidates: a few words that follow its number."""

    job: AnnotatedJob
    why: str


def recorded_need(record: DecisionRecord | None, gpu: Gpu) -> GpuNeed | None:
    """Return what was predicted of a job for *gpu*; ``None`` where nothing was."""
    need = record.decision.need if record else None
    return need if need is not None and need.gpu == gpu.name else None


def left_out(jobs: Iterable[tuple[AnnotatedJob, DecisionRecord | None]], gpu: Gpu) -> list[LeftOut]:
    """Return those of *jobs*, given with their records, of which nothing is predicted for *gpu*."""
    return [LeftOut(job, _left_out_reason(record)) for job, record in jobs if recorded_need(record, gpu) is None]


def note(jobs: Sequence[LeftOut], gpu: Gpu) -> str:
    """Return how many are left out and why, as one sentence; empty where none is."""
    reasons = [f"{count} {why}" for why, count in Counter(each.why for each in jobs).most_common()]
    number = f"{len(jobs)} {'job is' if len(jobs) == 1 else 'jobs are'}"
    return f"{number} left out, with no prediction for {gpu.name} in the store: {', '.join(reasons)}." if jobs else ""


def _left_out_reason(record: DecisionRecord | None) -> str:
    if record is None:
        return "with no record that you may read"
    need = record.decision.need
    return "predicted for no GPU" if need is None else f"predicted for {need.gpu}"


SCHEMA = "gpusage.partners/1"
LEGEND = (
    "Work together: of both on one GPU, against one after the other; target, partner's own: what each keeps of its "
    "throughput alone on the GPU. In parentheses: the ends for 9 of 10 pairs."
)
COLUMNS = (
    tables.Column("partner", is_left=True),
    tables.Column("work together"),
    tables.Column("target"),
    tables.Column("partner's own"),
    tables.Column("fits"),
    tables.Column("recommended"),
)
NOBODY = (
    "None: no workload manager here shows you such a job with a prediction for this GPU in the store. Run this where "
    "the cluster's commands work, as a user who may read the store."
)

Run = Mapping[str, Any]
"""How models are run that do not say it themselves."""


class Partner(NamedTuple):
    """One candidate, and what it and the target do to each other; the target is the first of the two.

    Attributes:
        job: Whose model it is; ``None`` where it is of a file.
    """

    model: str
    together: Colocation
    job: AnnotatedJob | None = None

    @property
    def name(self) -> str:
        """Return how people know it."""
        return f"job {self.job.job_id} of {self.job.user}: {self.model}" if self.job else self.model


def rank(
    context: click.Context,
    models: Sequence[str],
    source: Path | JobState,
    gpu: str,
    run: Run,
    *,
    as_json: bool,
) -> bool:
    """Print the candidates of *source*, the best partner first; return whether one is recommended.

    Args:
        context: Of the command.
        models: The target alone.
        source: A file of models, or the jobs that are in this state now.
        gpu: The GPU that they would share.
        run: The options.
        as_json: Whether JSON is printed.

    Raises:
        GpuUsageError: The file or one of its models cannot be read, or no job's record can.
    """
    if len(models) != 1:
        message = f"Models with --among, --running or --queue must be one, the target; got {len(models)}. Name one."
        raise click.UsageError(message, context)

    row = advisor().catalogue.find(gpu)
    (target,) = options.read_requests(models, run)
    own = _need(target, row, Path())
    jobs = () if isinstance(source, Path) else present(source)
    unranked = _of_file(source, own, row, run) if isinstance(source, Path) else _of_jobs(jobs, own, row)
    ranked, missed = sorted(unranked, key=_order), left_out(jobs, row)
    if as_json:
        partners = {"partners": _documents(ranked), "left_out": _left_out_documents(missed)}
        tables.print_json({"schema": SCHEMA, "gpu": row.name, "target": target.model, **partners})
    else:
        _show(target, ranked, row, note(missed, row))
    return any(each.together.recommended for each in ranked)


def _order(partner: Partner) -> tuple[bool, bool, float]:
    """Return what to sort by: those that fit and are recommended first, then the most work."""
    together = partner.together
    return not together.fits, not together.recommended, -together.throughput_sum.value


def _of_file(path: Path, own: GpuNeed, gpu: Gpu, run: Run) -> Iterator[Partner]:
    return (_partner(line, number, own, gpu, path, run) for number, line in _lines(path))


def _of_jobs(jobs: Iterable[tuple[AnnotatedJob, DecisionRecord | None]], own: GpuNeed, gpu: Gpu) -> Iterator[Partner]:
    """Yield those of *jobs* whose need was recorded for *gpu*."""
    for job, record in jobs:
        need = recorded_need(record, gpu)
        if record is not None and need is not None:
            yield Partner(record.model or "", advisor().colocate([own, need_alone(need)], gpu), job)


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return the models of a file with the numbers of their lines."""
    text = read_text(path, "Candidates file")
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    models = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not models:
        message = f"Candidates file {str(path)!r} must have at least one model, one per line; got none. Add one."
        raise RequestError(message)
    return models


def _partner(line: str, number: int, own: GpuNeed, gpu: Gpu, path: Path, run: Run) -> Partner:
    try:
        (request,) = options.read_requests([line], run)
        need = _need(request, gpu, path.parent)
    except GpuUsageError as error:
        message = f"Line {number} of candidates file {str(path)!r} must be a model that can be read; got: {error}"
        raise RequestError(message) from error
    return Partner(line, advisor().colocate([own, need], gpu))


def _need(request: ModelRequest, gpu: Gpu, folder: Path) -> GpuNeed:
    graph = read_graph(advisor(), options.resolve_model_path(folder, request.model), dict(request.workload.shape))
    return advisor().predict(graph, settled(request.workload, request.named, graph), [gpu])[0]


def _documents(ranked: Sequence[Partner]) -> list[dict[str, Any]]:
    return [
        {
            "model": each.model,
            **({"job_id": each.job.job_id, "user": each.job.user} if each.job else {}),
            "throughput_sum": documents.interval(each.together.throughput_sum),
            "target": documents.interval(each.together.normalised_throughput[0]),
            "partner": documents.interval(each.together.normalised_throughput[1]),
            "fits": each.together.fits,
            "recommended": each.together.recommended,
        }
        for each in ranked
    ]


def _left_out_documents(missed: Sequence[LeftOut]) -> list[dict[str, str]]:
    return [{"job_id": each.job.job_id, "user": each.job.user, "why": each.why} for each in missed]


def _show(target: ModelRequest, ranked: Sequence[Partner], gpu: Gpu, missed: str) -> None:
    tables.show_title(f"Partners of {target.model} on one {gpu.name}, the best first")
    tables.show("")
    if not ranked:
        tables.show(missed or NOBODY)
        return

    tables.show_rows(
        COLUMNS,
        [
            [
                each.name,
                figures.plain(each.together.throughput_sum, "x"),
                figures.share(each.together.normalised_throughput[0]),
                figures.share(each.together.normalised_throughput[1]),
                "yes" if each.together.fits else "no",
                "yes" if each.together.recommended else "no",
            ]
            for each in ranked
        ],
    )

    tables.show("", LEGEND)
    if missed:
        tables.show("", missed)
