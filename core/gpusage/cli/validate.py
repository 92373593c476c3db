"""`gpusage validate`: what the plugin would do to job scripts, and why; touches nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from gpusage.boundary.printable_text import visible_lines
from gpusage.cli import documents, tables
from gpusage.cli.cards.first_run import comment_of_run, runs_folder
from gpusage.cli.cards.graph_cache import read_graph
from gpusage.cli.cluster_file import find_cluster
from gpusage.cli.scripts import Script, manager_of, read_scripts
from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.decisions.outcome import Outcome, describe_change, describe_need, hold_reason
from gpusage.experience.learned import NOTHING_LEARNED, Learned
from gpusage.plugins.loading import installed_managers
from gpusage.policies.share_price import cost
from gpusage.policies.sharing import SharePrice
from gpusage.service.configuration_watch import kill_reason
from gpusage.service.learner import learn_from_store
from gpusage.settings.configuration import CaptureMode, Configuration
from gpusage.settings.configuration_file import load_configuration
from gpusage.store.opening import open_store
from gpusage_hooks.comment import parse_model
from gpusage_hooks.errors import DeviceError, GpuUsageError, GraphError
from gpusage_hooks.types import Cluster, Code, Decision, DecisionRequest, Job, ModelGraph, RenderedDecision, Submitter

COLUMNS = (
    tables.Column("share", is_left=True),
    tables.Column("costs alone"),
    tables.Column("beside partners"),
    tables.Column("verdict", is_left=True),
)
COSTS_NOTE = "Costs: how much longer a step takes than on the whole GPU; in parentheses: the ends for 9 of 10 runs."
SCHEMA = "gpusage.validate/1"
_OUTSIDE = "it may run outside the partitions that 'enforce_in' of gpusage.toml names, so it is observed only"
MODE_NOTE = "Here {}. Below is what mode 'enforce' would do."
ORIGINS = {
    "file": "Cluster of the file",
    "local": "This machine's cluster",
    "example": "Example cluster (name yours with --cluster)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The result for one script: a decision with the cost of shares, or an error in the script."""

    script: str
    outcome: Outcome | None = None
    prices: tuple[SharePrice, ...] = ()
    error: GpuUsageError | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the decision rests on and the script does not say."""
        job = self.outcome.job if self.outcome else None
        notes = tuple(_notes(job)) if job else ()
        is_outside = (
            self.outcome is not None and self.outcome.mode == "observe" and self.outcome.history_estimates is None
        )
        return (*notes, _OUTSIDE) if is_outside else notes


def validate_scripts(
    context: click.Context,
    scripts: tuple[Path, ...],
    cluster_file: Path | None,
    manager_name: str | None,
    *,
    uses_learned: bool,
    as_json: bool,
) -> None:
    """Show what gpusage would do to each job SCRIPT, and why."""
    configuration = load_configuration()
    advisor = make_advisor().configured(configuration)
    advisor = replace(advisor, learned=_learned(configuration)) if uses_learned else advisor
    read = read_scripts(scripts)
    manager = manager_of(read, installed_managers(), manager_name)
    cluster, origin = find_cluster(advisor, manager, cluster_file)
    history = configuration.learning.history if uses_learned else "off"
    advisor = replace(advisor, enforce_in=configuration.enforce_in, history=history)
    capture = configuration.learning.capture
    validations = [validate(script, cluster, advisor, capture) for script in read]
    if as_json:
        tables.print_json(_document(validations, cluster, origin, configuration.mode))
    else:
        _show_premises(cluster, origin, hold_reason(configuration.mode, kill_reason(configuration.kill_switch)))

    for validation in validations:
        if validation.error is not None:
            click.echo(visible_lines(f"gpusage: error: {validation.script}: {validation.error}"), err=True)
        elif not as_json:
            _show(validation)

    if not as_json and any(validation.prices for validation in validations):
        tables.show("", COSTS_NOTE)
    context.exit(1 if any(validation.error for validation in validations) else 0)


def validate(script: Script, cluster: Cluster, advisor: Advisor, capture: CaptureMode = "opt-in") -> Validation:
    """Return what becomes of *script* on *cluster*; *capture* tells which jobs show their models there."""
    if script.error:
        return Validation(script=script.path, error=script.error)

    try:
        submission = DecisionRequest(manager=cluster.manager, script=script.text, origin=script.path)
        job = advisor.parse(submission)
        job = _as_its_run_showed(job, capture, advisor)
        if advisor.learned is not NOTHING_LEARNED:
            job = replace(job, submitter=_caller(job.submitter, script.path))
        graph = _graph(advisor, job)
        outcome = advisor.advise(job, cluster, lambda _job, _request: graph)
        prices = _prices(advisor, outcome, graph, cluster)
        return Validation(script=script.path, outcome=outcome, prices=prices)
    except GpuUsageError as error:
        return Validation(script=script.path, error=error)


def _as_its_run_showed(job: Job, capture: CaptureMode, advisor: Advisor) -> Job:
    """Return *job*, if it names no model, with what an earlier run of its script showed."""
    job = replace(job, shows_model=job.shows_model and capture != "off")
    is_observed = job.shows_model or capture == "all"
    if job.model_request is not None or not (is_observed and job.run_record):
        return job
    comment = comment_of_run(runs_folder() / job.run_record, advisor.catalogue)
    return replace(job, model_request=parse_model(comment), shows_model=False) if comment else job


def _learned(configuration: Configuration) -> Learned:
    """Return what the runs in this host's store show."""
    with closing(open_store(configuration.store.url)) as store:
        return learn_from_store(store, configuration.learning, time.time())


def _caller(submitter: Submitter, script: str) -> Submitter:
    """Return *submitter* as the one who would submit *script*: who calls us; a job without a name has its script's."""
    user, name = submitter.user or str(os.getuid()), submitter.job_name or Path(script).name
    return Submitter(fields={"user": user, "account": submitter.account, "job_name": name})


def _graph(advisor: Advisor, job: Job) -> ModelGraph | None:
    """Return the graph of the job's model, read where it would be submitted: in this folder."""
    model_request = job.model_request
    return (
        read_graph(advisor, model_request.model, dict(model_request.workload.shape))
        if model_request is not None and model_request.enabled
        else None
    )


def _prices(advisor: Advisor, outcome: Outcome, graph: ModelGraph | None, cluster: Cluster) -> tuple[SharePrice, ...]:
    """Return what shares would cost; none where the model is not known or nothing can be predicted for it."""
    if outcome.job is None or graph is None:
        return ()
    with suppress(GraphError, DeviceError):  # the verdict says it
        advisor = replace(advisor, submitter=outcome.job.submitter)
        return advisor.share_prices(outcome.job, graph, cluster, outcome.decision)
    return ()


def _notes(job: Job) -> Iterator[str]:
    """Yield what the decision rests on and the script does not say."""
    model_request = job.model_request
    if model_request is not None and model_request.enabled:
        if model_request.assumed:
            yield f"assumed {', '.join(model_request.assumed)}"
        if job.caveat:
            yield job.caveat


def _document(validations: Sequence[Validation], cluster: Cluster, origin: str, mode: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "mode": mode,
        "cluster": documents.cluster(cluster, origin),
        "decisions": [
            documents.decision(each.script, each.outcome.decision, each.outcome.rendered)
            | {"notes": list(each.notes), "prices": [documents.share_price(price) for price in each.prices]}
            for each in validations
            if each.outcome
        ],
        "errors": [
            {"script": each.script, "code": each.error.code, "message": str(each.error)}
            for each in validations
            if each.error
        ],
    }

    if document["errors"]:
        first = document["errors"][0]
        document["error"] = {"code": first["code"], "message": f"{first['script']}: {first['message']}"}

    return document


def _show_premises(cluster: Cluster, origin: str, why_nothing: str) -> None:
    types = ", ".join(f"{pool.gpu_count} {pool.site_type}" for pool in cluster.pools)
    notes = (*cluster.notes, *cluster.unshared.values())
    tables.show(f"{ORIGINS[origin]}: {types or 'no GPU'}", *(f"  {note}" for note in notes))
    if why_nothing:
        tables.show(MODE_NOTE.format(why_nothing))


def _show(validation: Validation) -> None:
    outcome = validation.outcome
    if outcome:
        tables.show("")
        tables.show_title(validation.script)
        notes = (f"  note: {text}" for text in validation.notes)
        tables.show(*_lines(outcome.decision, outcome.rendered), *notes)

        if validation.prices:
            tables.show("")
            several = sum(price.taken for price in validation.prices) > 1
            taken = "taken, if the job starts on this type" if several else "taken"
            tables.show_rows(COLUMNS, [_row(price, taken) for price in validation.prices])


def _row(price: SharePrice, taken: str) -> list[str]:
    outcome = taken if price.taken else price.reason
    share = f"{price.gpu}, {price.share_percent} %"
    return [share, cost(price.slowdown), cost(price.slowdown_with_partners), outcome]


def _lines(decision: Decision, rendered: RenderedDecision) -> list[str]:
    change = {
        Code.REWRITE: describe_change(rendered.before, rendered.after),
        Code.KEEP: f"{rendered.before} is kept",
        Code.DECLINE: f"{rendered.before} is left as it is",
    }[decision.code]
    need = [f"  {describe_need(decision.need)}"] if decision.need else []
    return [f"  {decision.code.value}: {change}", *need, *(f"  - {reason}" for reason in decision.reasons)]
