"""`gpusage colocate TARGET --among FILE`, `--running`, `--queue`: which model or job is the best partner on one GPU.

The file has one model a line with its own options, as on the command line; a line that is empty or begins with ``#`` is
left out. Paths count from the file's folder. Of jobs, the need counts that was recorded with their decisions, so that
nobody's model is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from gpusage.cli import documents, options, tables
from gpusage.cli.cards.graph_cache import read_graph
from gpusage.cli.decisions import present
from gpusage.cli.user_file import read_text
from gpusage.decisions.advisor import advisor
from gpusage.decisions.prediction import with_model_settings
from gpusage.policies.share_price import need_alone
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_hooks.types import AnnotatedJob, Colocation, Gpu, GpuNeed, JobState, ModelRequest

SCHEMA = "gpusage.partners/1"
LEGEND = (
    "Work together: of both on one GPU, against one after the other; target, partner's own: what each keeps of its "
    "throughput alone on the GPU. In parentheses: the ends for 9 of 10 pairs."
)
COLUMNS = tables.columns("partner", "work together", "target", "partner's own", "fits", "recommended")
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
    context: click.Context, models: Sequence[str], source: Path | JobState, gpu: str, run: Run, *, as_json: bool
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
    target = options.read_request(models[0], run)
    own = predict_need(target, row, Path())
    missed: list[tuple[AnnotatedJob, str]] = []  # each job with why it is none of the candidates
    if isinstance(source, Path):
        candidates = _partners_in_file(source, own, row, run)
    else:
        jobs = present(source)
        candidates = []
        for job, record in jobs:
            need = record.decision.need if record else None
            if record is not None and need is not None and need.gpu == row.name:
                together = advisor().colocate([own, need_alone(need)], row)
                candidates.append(Partner(record.model or "", together, job))
            else:
                why = "with no record that you may read" if record is None else "predicted for no GPU"
                missed.append((job, f"predicted for {need.gpu}" if need else why))

    # Those that fit and are recommended come first, then those that do most work.
    ranked = sorted(
        candidates,
        key=lambda each: (not each.together.fits, not each.together.recommended, -each.together.throughput_sum.value),
    )
    if as_json:
        rows = [{"job_id": job.job_id, "user": job.user, "why": why} for job, why in missed]
        partners = {"partners": [_document(each) for each in ranked], "left_out": rows}
        tables.print_json({"schema": SCHEMA, "gpu": row.name, "target": target.model, **partners})
    else:
        _show(target, ranked, row, [why for _, why in missed])
    return any(each.together.recommended for each in ranked)


def _partners_in_file(path: Path, own: GpuNeed, gpu: Gpu, run: Run) -> list[Partner]:
    """Return the models of the file at *path*, one a line, beside the target, which needs *own*."""
    partners = []
    for number, text in enumerate(read_text(path, "Candidates file").splitlines(), start=1):
        line = text.strip()
        if not line or line.startswith("#"):
            continue
        try:
            need = predict_need(options.read_request(line, run), gpu, path.parent)
        except GpuUsageError as error:
            message = f"Line {number} of candidates file {str(path)!r} must be a model that can be read; got: {error}"
            raise RequestError(message) from error
        partners.append(Partner(line, advisor().colocate([own, need], gpu)))
    if not partners:
        message = f"Candidates file {str(path)!r} must have at least one model, one per line; got none. Add one."
        raise RequestError(message)
    return partners


def predict_need(request: ModelRequest, gpu: Gpu, folder: Path) -> GpuNeed:
    """Return what *request* needs on *gpu*; the model's path counts from *folder*."""
    graph = read_graph(advisor(), options.resolve_model_path(folder, request.model), dict(request.workload.shape))
    return advisor().predict(graph, with_model_settings(request.workload, request.named, graph), [gpu])[0]


def _document(partner: Partner) -> dict[str, Any]:
    together, job = partner.together, partner.job
    return {
        "model": partner.model,
        **({"job_id": job.job_id, "user": job.user} if job else {}),
        "throughput_sum": documents.interval(together.throughput_sum),
        "target": documents.interval(together.normalised_throughput[0]),
        "partner": documents.interval(together.normalised_throughput[1]),
        "fits": together.fits,
        "recommended": together.recommended,
    }


def _show(target: ModelRequest, ranked: Sequence[Partner], gpu: Gpu, missed: Sequence[str]) -> None:
    """Print *ranked*, and how many jobs are left out for the reasons *missed*."""
    note = ""
    if missed:
        # The commonest reason first: it is the one to cure.
        reasons = ", ".join(f"{count} {why}" for why, count in Counter(missed).most_common())
        number = f"{len(missed)} {'job is' if len(missed) == 1 else 'jobs are'}"
        note = f"{number} left out, with no prediction for {gpu.name} in the store: {reasons}."

    tables.show_title(f"Partners of {target.model} on one {gpu.name}, the best first")
    tables.show("")
    if not ranked:
        tables.show(note or NOBODY)
        return

    tables.show_rows(
        COLUMNS,
        [
            [
                each.name,
                tables.interval_text(each.together.throughput_sum, "x"),
                tables.share_text(each.together.normalised_throughput[0]),
                tables.share_text(each.together.normalised_throughput[1]),
                "yes" if each.together.fits else "no",
                "yes" if each.together.recommended else "no",
            ]
            for each in ranked
        ],
    )

    tables.show("", LEGEND)
    if note:
        tables.show("", note)
