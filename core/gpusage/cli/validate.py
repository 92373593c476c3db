"""`gpusage validate`: what the plugin would do to job scripts, and why; touches nothing."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
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
from gpusage.cli.status import describe_limits, unshared_reasons
from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.decisions.outcome import Outcome, describe_change, describe_need, hold_reason
from gpusage.devices.catalogue import CALIBRATED
from gpusage.experience.learned import NOTHING_LEARNED
from gpusage.plugins.loading import installed_managers
from gpusage.policies.share_price import cost
from gpusage.policies.sharing import SharePrice
from gpusage.service.configuration_watch import kill_reason
from gpusage.service.learner import first_runs_in_store, learn_from_store
from gpusage.settings.configuration import CaptureMode
from gpusage.settings.configuration_file import load_configuration
from gpusage.store.opening import open_store
from gpusage_hooks.comment import parse_first_run, parse_model
from gpusage_hooks.errors import DeviceError, GpuUsageError, GraphError
from gpusage_hooks.types import Cluster, Code, DecisionRequest, Submitter

COLUMNS = tables.columns("share", "costs alone", "beside partners", "verdict", left=("verdict",))
COSTS_NOTE = "Costs: how much longer a step takes than on the undivided GPU; in parentheses: the ends for 9 of 10 runs."
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
        if self.outcome is None:
            return ()
        notes = []
        job = self.outcome.job
        if job and job.model_request and job.model_request.enabled:
            if job.model_request.assumed:
                notes.append(f"assumed {', '.join(job.model_request.assumed)}")
            if job.caveat:
                notes.append(job.caveat)
        need = self.outcome.decision.need
        notes += [note for note in need.notes if note.startswith(CALIBRATED)] if need else []
        if self.outcome.mode == "observe" and self.outcome.history_estimates is None:
            notes.append(_OUTSIDE)
        return tuple(notes)


def validate_scripts(  # noqa: PLR0913 - an option each
    context: click.Context,
    scripts: tuple[Path, ...],
    cluster_file: Path | None,
    manager_name: str | None,
    arguments: str,
    *,
    uses_learned: bool,
    as_json: bool,
) -> None:
    """Show what gpusage would do to each job SCRIPT, and why."""
    configuration = load_configuration()
    advisor = make_advisor().configured(configuration)
    if uses_learned:
        with closing(open_store(configuration.store.url)) as store:
            now_s = time.time()
            learned = learn_from_store(store, configuration.learning, now_s)
            learned = replace(learned, first_runs=first_runs_in_store(store, configuration.learning, now_s))
        advisor = replace(advisor, learned=learned)
    read = read_scripts(scripts)
    manager = manager_of(read, installed_managers(), manager_name)
    cluster, origin = find_cluster(advisor, manager, cluster_file)
    cluster = replace(cluster, smallest_shares=advisor.learned.smallest_shares)
    # Without --learned the answer must not depend on who asks.
    history = configuration.learning.history if uses_learned else "off"
    advisor = replace(advisor, enforce_in=configuration.enforce_in, history=history)
    capture = configuration.learning.capture
    words = tuple(shlex.split(arguments))
    validations = [validate(script, cluster, advisor, capture, words) for script in read]
    if as_json:
        tables.print_json(_document(validations, cluster, origin, configuration.mode))
    else:
        types = ", ".join(f"{pool.gpu_count} {pool.site_type or 'without a type'}" for pool in cluster.pools)
        limits = (f"memory limited by {limit}" for limit in describe_limits(cluster.pools))
        notes = (*limits, *cluster.notes, *unshared_reasons(cluster.unshared))
        tables.show(f"{ORIGINS[origin]}: {types or 'no GPU'}", *(f"  {note}" for note in notes))
        why_nothing = hold_reason(configuration.mode, kill_reason(configuration.kill_switch))
        if why_nothing:
            tables.show(MODE_NOTE.format(why_nothing))

    for validation in validations:
        if validation.error is not None:
            click.echo(visible_lines(f"gpusage: error: {validation.script}: {validation.error}"), err=True)
        elif not as_json:
            _show(validation)

    if not as_json and any(validation.prices for validation in validations):
        tables.show("", COSTS_NOTE)
    context.exit(1 if any(validation.error for validation in validations) else 0)


def validate(
    script: Script,
    cluster: Cluster,
    advisor: Advisor,
    capture: CaptureMode = "opt-in",
    arguments: tuple[str, ...] = (),
) -> Validation:
    """Return what becomes of *script* with *arguments* on *cluster*; *capture* tells which jobs show their models."""
    if script.error:
        return Validation(script=script.path, error=script.error)

    try:
        submission = DecisionRequest(
            manager=cluster.manager,
            script=script.text,
            arguments=arguments,
            comment=os.environ.get("GPUSAGE_COMMENT", ""),
            origin=script.path,
        )
        job = advisor.parse(submission)

        # A job that names no model runs as an earlier run of its script showed.
        job = replace(job, shows_model=job.shows_model and capture != "off")
        is_observed = job.shows_model or capture == "all"
        if job.model_request is None and is_observed and job.run_record:
            comment = comment_of_run(runs_folder() / job.run_record, advisor.catalogue) or ""
            first_run = parse_first_run(comment)
            if comment and not first_run:
                job = replace(job, model_request=parse_model(comment), shows_model=False)
            job = replace(job, first_run=first_run)

        # What was learned is of a user: the caller submits the script, and a job without a name has its script's.
        submitter = job.submitter
        if advisor.learned is not NOTHING_LEARNED:
            user, name = submitter.user or str(os.getuid()), submitter.job_name or Path(script.path).name
            submitter = Submitter(fields={"user": user, "account": submitter.account, "job_name": name})
            job = replace(job, submitter=submitter)

        # The model is read where it would be submitted: in this folder.
        request, graph = job.model_request, None
        if request is not None and request.enabled:
            graph = read_graph(advisor, request.model, dict(request.workload.shape))
        outcome = advisor.advise(job, cluster, lambda _job, _request: graph)

        prices: tuple[SharePrice, ...] = ()
        if outcome.job is not None and graph is not None:
            with suppress(GraphError, DeviceError):  # the verdict says it
                of_submitter = replace(advisor, submitter=outcome.job.submitter)
                prices = of_submitter.share_prices(outcome.job, graph, cluster, outcome.decision)
        return Validation(script=script.path, outcome=outcome, prices=prices)
    except GpuUsageError as error:
        return Validation(script=script.path, error=error)


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
        # As any other command with --json: one error at the top.
        first = document["errors"][0]
        document["error"] = {"code": first["code"], "message": f"{first['script']}: {first['message']}"}

    return document


def _show(validation: Validation) -> None:
    """Print the decision on one script, and what each share would cost."""
    if validation.outcome is None:
        return
    decision, rendered = validation.outcome.decision, validation.outcome.rendered
    change = {
        Code.REWRITE: describe_change(rendered.before, rendered.after),
        Code.KEEP: f"{rendered.before} is kept",
        Code.DECLINE: f"{rendered.before} is left as it is",
    }[decision.code]
    need = [f"  {describe_need(decision.need)}"] if decision.need else []
    reasons = (f"  - {reason}" for reason in decision.reasons)
    notes = (f"  note: {text}" for text in validation.notes)

    tables.show("")
    tables.show_title(validation.script)
    tables.show(f"  {decision.code.value}: {change}", *need, *reasons, *notes)
    if not validation.prices:
        return

    # A job without a preference may start on any of several types, each with a share of its own.
    several = sum(price.taken for price in validation.prices) > 1
    taken = "taken, if the job starts on this type" if several else "taken"
    rows = [
        [
            f"{price.gpu}, {price.share_percent} %",
            cost(price.slowdown),
            cost(price.slowdown_with_partners),
            taken if price.taken else price.reason,
        ]
        for price in validation.prices
    ]
    tables.show("")
    tables.show_rows(COLUMNS, rows)
