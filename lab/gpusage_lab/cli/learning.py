"""`gpusage train` and `gpusage evaluate`: refit the predictors, and score them, on a folder of public measurements."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage.cli import tables
from gpusage.cli.user_file import write_output
from gpusage_lab.cli.scores import show_scores
from gpusage_lab.learning import artifact_scores, artifacts, report, seal, targets
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder, on_one_thread

SCHEMA = "gpusage.evaluation/1"
SEALED = (
    "Step time and memory: one family in four is sealed and left out, so that nobody chooses by it. "
    "With --sealed FILE these are scored too, and the look is counted in FILE."
)


def _targets(names: tuple[str, ...], *others: str) -> list[str]:
    known = (*targets.TARGETS, *others)
    for name in names:
        if name not in known:
            message = f"Target {name!r} must be one of {', '.join(known)}. Name one of these."
            raise click.UsageError(message)
    return list(names or targets.TARGETS)


def train(folder: Path, names: tuple[str, ...], output: Path | None) -> None:
    """Fit everything that gpusage ships, in minutes, seeded: the same folder gives the same bytes."""
    data, chosen = DataFolder(folder), _targets(names)
    artifacts.check_writable(output or artifacts.FOLDER)
    written: dict[str, Path] = {}
    with on_one_thread():
        for number, name in enumerate(chosen, start=1):
            click.echo(f"{name}, {number} of {len(chosen)}", err=True)
            with artifacts.reading(written):  # a target is fitted on what the one before it has just left
                fitted = targets.target(name).fit(data)
            for artifact in fitted:
                path = written[artifact.name] = artifacts.write(artifact, output or artifacts.FOLDER)
                click.echo(f"{name}: {path} ({path.stat().st_size} bytes)")


def evaluate(
    folder: Path,
    names: tuple[str, ...],
    artifact: Path | None,
    counter: Path | None,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Score the predictors on models and GPUs that they were not fitted on, with baselines beside them."""
    if output is not None:
        artifacts.check_writable(output.parent)
    chosen = _targets(names, *targets.SCORED_ALONE)
    fitted = [name for name in chosen if name in targets.TARGETS]
    if counter is None:
        click.echo(SEALED if fitted else "", err=True, nl=bool(fitted))
    else:
        seal.count_evaluation(counter, chosen)
    data = DataFolder(folder, is_sealed=counter is None)
    results = _evaluated(data, fitted, artifact) if fitted else {}
    results |= {name: [*targets.scored_alone(name).evaluate(data)] for name in chosen if name not in fitted}
    if output is not None:
        write_output(output, report.page(results))
    if as_json:
        tables.print_json({"schema": SCHEMA, "targets": report.documents(results)})
        return
    for score_tables in results.values():
        show_scores(score_tables)


def _evaluated(data: DataFolder, names: list[str], artifact: Path | None) -> dict[str, list[ScoreTable]]:
    with on_one_thread():
        if artifact is None:
            return {name: [*targets.target(name).evaluate(data), *artifact_scores.tables(name, data)] for name in names}
        paths = artifacts.artifact_paths(artifact, names)
        artifact_scores.check_readable(paths)
        with artifacts.reading(paths):
            return {name: _scores_of_artifact(name, data) for name in paths}


def _scores_of_artifact(name: str, data: DataFolder) -> list[ScoreTable]:
    return [*artifact_scores.tables(name, data), *artifact_scores.never_fitted(name, data)]
