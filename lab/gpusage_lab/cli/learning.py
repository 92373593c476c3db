"""`gpusage train` and `gpusage evaluate`: refit the predictors, and score them, on a folder of public measurements."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage.cli import tables
from gpusage_lab.history.command import train_history
from gpusage_lab.learning import artifacts, report, splits, targets
from gpusage_lab.measurements.tables import DataFolder, on_one_thread

SCHEMA = "gpusage.evaluation/1"
SEALED = (
    "Step time and memory: one family in four is sealed and left out, so that nobody chooses by it. "
    "With --sealed FILE these are scored too, and the look is counted in FILE."
)


def train(
    folder: Path | None,
    names: tuple[str, ...],
    store_url: str | None,
    output: Path | None,
    *,
    history: bool,
    as_json: bool,
) -> None:
    """Fit the artifacts on the measurements in *folder*, or the history of a store."""
    if history:
        if folder or names:
            message = "--history fits the runs of a store; leave out --data and --target."
            raise click.UsageError(message)
        train_history(store_url, output, as_json=as_json)
        return

    if folder is None:
        message = "Missing option '--data'; or fit this site's own runs with --history."
        raise click.UsageError(message)
    if store_url or as_json:
        message = "--store and --json go with --history."
        raise click.UsageError(message)
    _train_artifacts(DataFolder(folder), _targets(names), output or artifacts.FOLDER)


def _train_artifacts(data: DataFolder, chosen: list[str], output: Path) -> None:
    """Fit everything that gpusage ships, in minutes, seeded: the same folder gives the same bytes."""
    artifacts.check_writable(output)
    written: dict[str, Path] = {}
    with on_one_thread():
        for number, name in enumerate(chosen, start=1):
            click.echo(f"{name}, {number} of {len(chosen)}", err=True)
            # A target is fitted on what the one before it has just left: memory on step times, and so on.
            with artifacts.reading(written):
                fitted = targets.target(name).fit(data)
            for artifact in fitted:
                path = written[artifact.name] = artifacts.write(artifact, output)
                click.echo(f"{name}: {path} ({path.stat().st_size} bytes)")


def evaluate(folder: Path, names: tuple[str, ...], counter: Path | None, *, as_json: bool) -> None:
    """Score the predictors on models and GPUs that they were not fitted on, with baselines beside them."""
    chosen = _targets(names, *targets.SCORED_ALONE)
    if counter is not None:
        splits.count_evaluation(counter, chosen)
    elif any(name in targets.TARGETS for name in chosen):
        click.echo(SEALED, err=True)

    data = DataFolder(folder, is_sealed=counter is None)
    with on_one_thread():
        results = {name: [*targets.scored(name).evaluate(data)] for name in chosen}

    if as_json:
        tables.print_json({"schema": SCHEMA, "targets": report.documents(results)})
        return
    for score_tables in results.values():
        report.show_scores(score_tables)


def _targets(names: tuple[str, ...], *others: str) -> list[str]:
    known = (*targets.TARGETS, *others)
    for name in names:
        if name not in known:
            message = f"Target {name!r} must be one of {', '.join(known)}. Name one of these."
            raise click.UsageError(message)
    return list(names or targets.TARGETS)
