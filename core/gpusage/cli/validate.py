"""`gpusage validate`: what the plugin would do to job scripts, and why; touches nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpusage.cli import documents, options, tables
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_hooks.types import Cluster, Code, Decision, Job, ModelGraph, Rendered, Submission

if TYPE_CHECKING:
    from gpusage.advisor import Advisor

EXAMPLE = """\b
Examples:
  gpusage validate train.sbatch
  gpusage validate train.sbatch serve.sbatch --json
  gpusage slurm status --json > cluster.json; gpusage validate train.sbatch --cluster cluster.json
"""
SCHEMA = "gpusage.validate/1"
MANAGER = "slurm"
MODE_NOTE = "Mode: shown is what 'enforce' would do; the configuration here says '{}', which changes nothing."
ORIGINS = {
    "file": "Cluster of the file",
    "local": "This machine's cluster",
    "example": "Example cluster (name yours with --cluster)",
}
MAXIMUM_SCRIPT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of one script: a decision in the manager's words with notes, or an error of the script."""

    script: str
    decision: Decision | None = None
    rendered: Rendered | None = None
    error: GpuUsageError | None = None
    notes: tuple[str, ...] = ()


@click.command(epilog=EXAMPLE, short_help="What gpusage would do to job scripts, and why.")
@click.argument("scripts", metavar="SCRIPT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--cluster",
    "cluster_file",
    type=click.Path(path_type=Path),
    help="Cluster to decide for, JSON or TOML.  [default: ask the local Slurm, else an example cluster]",
)
@options.json_option
@click.pass_context
def command(context: click.Context, scripts: tuple[Path, ...], cluster_file: Path | None, *, as_json: bool) -> None:
    """Show what gpusage would do to each job SCRIPT, and why.

    Nothing is submitted or changed. The exit status is 1 where a script has an error; a request that is kept as it is,
    is none.
    """
    from gpusage.advisor import make_advisor  # noqa: PLC0415 - start-up time
    from gpusage.cli.cluster_file import find_cluster  # noqa: PLC0415 - as above
    from gpusage.configuration import load_configuration  # noqa: PLC0415 - as above

    configuration = load_configuration()
    advisor = make_advisor(configuration.rules)
    advisor = replace(advisor, settings=configuration.managers)
    cluster, origin = find_cluster(advisor, MANAGER, cluster_file)
    verdicts = [judge(advisor, str(path), cluster) for path in scripts]
    if as_json:
        tables.print_json(_document(verdicts, cluster, origin, configuration.mode))
    else:
        _show_premises(cluster, origin, configuration.mode)
    for verdict in verdicts:
        if verdict.error is not None:
            click.echo(tables.harmless(f"gpusage: error: {verdict.script}: {verdict.error}"), err=True)
        elif not as_json:
            _show(verdict)
    context.exit(1 if any(verdict.error for verdict in verdicts) else 0)


def judge(advisor: Advisor, script: str, cluster: Cluster) -> Verdict:
    """Return what becomes of the job script at the path *script* on *cluster*."""
    try:
        job = _job(advisor, script)
        decision = advisor.decide(job, _graph(advisor, job), cluster)
        decision, rendered = advisor.render(job, decision, cluster)
    except GpuUsageError as error:
        return Verdict(script=script, error=error)
    return Verdict(script=script, decision=decision, rendered=rendered, notes=tuple(_notes(job)))


def _notes(job: Job) -> Iterator[str]:
    """Yield what the decision rests on and the script does not say."""
    wish = job.model_request
    if wish is not None and wish.enabled:
        if wish.assumed:
            yield f"assumed {', '.join(wish.assumed)}"
        if job.caveat:
            yield job.caveat


def _job(advisor: Advisor, script: str) -> Job:
    submission = Submission(manager=MANAGER, script=read_script(script), origin=script)
    job: Job | None = advisor.plugins.hook.parse_submission(submission=submission)
    if job is None:
        message = f"Script {script!r} must be one that a plugin understands; got no answer. Install the Slurm plugin."
        raise RequestError(message)
    return job


def read_script(path: str) -> str:
    """Return the text of the job script at *path*.

    Raises:
        RequestError: It cannot be read, or is larger than Slurm takes.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAXIMUM_SCRIPT_BYTES + 1)
    except OSError as error:
        message = f"Script {path!r} must be a readable file; got: {error.strerror}. Check the path."
        raise RequestError(message) from error
    if len(content) > MAXIMUM_SCRIPT_BYTES:
        message = f"Script {path!r} must be at most 4 MiB, Slurm's own limit; it is longer. Is it a job script?"
        raise RequestError(message)
    return content.decode("utf-8", "replace")


def _graph(advisor: Advisor, job: Job) -> ModelGraph | None:
    """Return the graph of the job's model, read where sbatch would be called: in this folder."""
    wish = job.model_request
    return advisor.read(wish.model, dict(wish.workload.shape)) if wish is not None and wish.enabled else None


def _document(verdicts: Sequence[Verdict], cluster: Cluster, origin: str, mode: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "mode": mode,
        "cluster": documents.cluster(cluster, origin),
        "decisions": [
            documents.decision(verdict.script, verdict.decision, verdict.rendered) | {"notes": list(verdict.notes)}
            for verdict in verdicts
            if verdict.decision and verdict.rendered
        ],
        "errors": [
            {"script": verdict.script, "code": verdict.error.code, "message": str(verdict.error)}
            for verdict in verdicts
            if verdict.error
        ],
    }
    if document["errors"]:
        first = document["errors"][0]
        document["error"] = {"code": first["code"], "message": f"{first['script']}: {first['message']}"}
    return document


def _show_premises(cluster: Cluster, origin: str, mode: str) -> None:
    types = ", ".join(f"{pool.gpu_count} {pool.site_type}" for pool in cluster.pools)
    notes = (*cluster.notes, *cluster.unshared.values())
    tables.show(f"{ORIGINS[origin]}: {types or 'no GPU'}", *(f"  {note}" for note in notes))
    if mode != "enforce":
        tables.show(MODE_NOTE.format(mode))


def _show(verdict: Verdict) -> None:
    if verdict.decision and verdict.rendered:
        tables.show("")
        tables.show_title(verdict.script)
        tables.show(*_lines(verdict.decision, verdict.rendered), *(f"  note: {text}" for text in verdict.notes))


def _lines(decision: Decision, rendered: Rendered) -> list[str]:
    from gpusage.advice import describe_need  # noqa: PLC0415 - start-up time

    change = {
        Code.REWRITE: f"{rendered.before} -> {rendered.after}",
        Code.KEEP: f"{rendered.before} is kept",
        Code.DECLINE: f"{rendered.before} is left as it is",
    }[decision.code]
    need = [f"  {describe_need(decision.need)}"] if decision.need else []
    return [f"  {decision.code.value}: {change}", *need, *(f"  - {reason}" for reason in decision.reasons)]
