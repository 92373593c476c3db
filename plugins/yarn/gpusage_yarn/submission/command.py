"""`gpusage yarn submit`: predict, decide, submit once, follow to the end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from gpusage.cli import documents, options, tables
from gpusage.cli.cards.cached_advisor import with_cache
from gpusage.cli.cards.first_run import learned_of_first_runs
from gpusage.cli.cards.job_card import card_of
from gpusage.decisions.advisor import Advisor, advisor, make_advisor
from gpusage.graphs.card.text import decode
from gpusage.service.configuration_watch import kill_reason
from gpusage.settings.configuration import Configuration
from gpusage.settings.configuration_file import load_configuration
from gpusage_hooks.types import DecisionRequest, ModelRequest
from gpusage_yarn.cluster.configuration import SITE, conf_folder, read_settings, require_addresses
from gpusage_yarn.cluster.jmx import query_nodes, sample_nodes, with_free_gpus
from gpusage_yarn.cluster.resource_manager import ResourceManager
from gpusage_yarn.cluster.snapshot import ClusterSnapshot, ContainerSize, read_snapshot
from gpusage_yarn.cluster.tags import make_tags, require_tags
from gpusage_yarn.settings import MANAGER, YarnSettings
from gpusage_yarn.submission.application import (
    DEFAULT_CLASSPATH,
    Application,
    command_line,
    describe_files,
    parse_variables,
    require_transportable,
    without_reserved,
)
from gpusage_yarn.submission.feasibility import (
    Requirements,
    exclude_unbound_nodes,
    require_feasible,
    require_queue_limit,
    wait_for_nodes,
)
from gpusage_yarn.submission.first_run import record_of, request_of, with_observation
from gpusage_yarn.submission.hdfs import find_hdfs
from gpusage_yarn.submission.monitoring import ApplicationOutcome, Progress, follow, limit_lifetime, log_tails
from gpusage_yarn.submission.planning import (
    PlannedSubmission,
    master_label,
    plan_submission,
    record_decision,
)

SCHEMA = "gpusage.yarn.submit/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """The options of a submission, without the command and the model."""

    name: str
    queue: str
    gpu: str
    containers: int
    memory_mib: int
    vcores: int
    env: tuple[str, ...]
    files: tuple[Path, ...]
    addresses: tuple[str, ...]
    priority: int | None
    tags: tuple[str, ...]
    attempts: int
    lifetime_s: float | None
    rescue: bool
    dry_run: bool
    learns: bool | None


def submit(
    context: click.Context, /, model: str | None, command: tuple[str, ...], *, wait: bool, **typed: Any  # options
) -> None:  # fmt: skip
    """Run COMMAND on YARN with the share of a GPU that its model needs."""
    as_json = typed.pop("as_json")
    run = options.pop_job_options(typed)
    line = command_line(command)
    if not typed["name"]:
        # A command line of one word may hold several; one that no shell would take is its own name.
        words: Sequence[str] = command
        with suppress(ValueError):
            words = shlex.split(command[0]) or command
        typed["name"] = words[0][:80]
    submit_options = SubmitOptions(**typed)
    configuration = load_configuration()

    # Without a model an earlier run of the same command may have shown one; this run then shows its own.
    model_request = options.read_request(model, run) if model else None
    record = None
    if model_request is None:
        record = record_of(line, submit_options.files, configuration.learning.capture, learns=submit_options.learns)
        if record is None:
            submit_options = replace(submit_options, learns=False)  # the site observes no jobs
        else:
            model_request = request_of(record, submit_options.files, advisor().catalogue)

    manager = ResourceManager(require_addresses(configuration.of_manager(YarnSettings), submit_options.addresses))
    planned, application, notes = _prepare_application(manager, configuration, model_request, submit_options, line)
    if record is not None:
        application = replace(application, variables=with_observation(application.variables, record))
    for note in (*(f"note: {note}" for note in notes), planned.line()):
        _print_note(note)
    if submit_options.dry_run:
        _show_dry(planned, application, as_json=as_json)
        return

    if submit_options.files:
        application = _with_uploaded_files(application, configuration, manager.user, submit_options.files)
    identity = manager.submit(application.document)
    if submit_options.lifetime_s is not None:
        _print_note(limit_lifetime(manager, identity, submit_options.lifetime_s))

    if not as_json:
        click.echo(identity)
    outcome = _follow(manager, identity) if wait else None
    if as_json:
        print_document(planned, application, identity, outcome)
    if outcome:
        _explain_failure(outcome)
        context.exit(outcome.status)


def _prepare_application(
    manager: ResourceManager,
    configuration: Configuration,
    model_request: ModelRequest | None,
    submit_options: SubmitOptions,
    line: str,
) -> tuple[PlannedSubmission, Application, list[str]]:
    """Return the planned submission, its application, and notes on both for the user; nothing is sent yet."""
    # What the user wrote is refused before the cluster is asked.
    require_tags(submit_options.tags)
    variables, ours = without_reserved(parse_variables(submit_options.env))
    files = describe_files(submit_options.files)
    require_transportable(line, variables)

    snapshot, notes = _read_cluster(manager, configuration, submit_options)
    if ours:
        why = "the node says which GPU a container has, and how much of it"
        notes.insert(0, f"--env {', '.join(ours)} is left out: {why}")
    advised = make_advisor().configured(configuration)
    deciding = site_advisor(advised, configuration)
    if model_request is not None and model_request.first_run:
        deciding = replace(deciding, learned=learned_of_first_runs(configuration))
    planned = _decide(deciding, model_request, submit_options, manager.user, snapshot)
    share = configuration.of_manager(YarnSettings).share_resource
    require_queue_limit(snapshot, Requirements(share=share, queue=submit_options.queue), planned.plan.share)

    # A store that the site has not named is the user's own, and may be missing without a word.
    number, trouble = ("", "") if submit_options.dry_run else record_decision(planned, advised, configuration.store.url)
    if trouble and "store.url" in configuration.origins:
        notes.append(f"this decision is not recorded: {trouble}")

    rescue = submit_options.rescue and advised.rules.sharing.rescue
    apart = planned.plan.apart and submit_options.containers > 1  # one alone has none to be kept from
    plan = replace(planned.plan, containers=submit_options.containers, rescue=rescue, apart=apart)

    # YARN lowers a priority without a word.
    if submit_options.priority is not None:
        most = manager.settings("yarn.cluster.max-application-priority") or ""
        if most.isdigit() and submit_options.priority > int(most):
            notes.append(f"the priority becomes {most}, the highest here (yarn.cluster.max-application-priority)")

    key = "yarn.application.classpath"
    own = read_settings(conf_folder(configuration.of_manager(YarnSettings).conf_dir) / SITE).get(key)
    application = Application(
        command=line,
        plan=replace(plan, labels=()) if plan.labels == (snapshot.assumed_type,) else plan,  # YARN has no such label
        name=submit_options.name,
        queue=submit_options.queue,
        master_label=master_label(snapshot, submit_options.queue, plan.labels),
        variables=variables,
        files=files,
        classpath=manager.settings(key) or own or DEFAULT_CLASSPATH,
        tags=tuple(make_tags(plan, number, submit_options.tags)),
        attempts=submit_options.attempts,
        priority=submit_options.priority,
    )
    return replace(planned, plan=plan), application, notes


def _read_cluster(
    manager: ResourceManager, configuration: Configuration, submit_options: SubmitOptions
) -> tuple[ClusterSnapshot, list[str]]:
    """Return the cluster as far as this application may run in it, and notes on it for the user."""
    settings = configuration.of_manager(YarnSettings)
    share = settings.share_resource
    size = ContainerSize(memory_mib=submit_options.memory_mib, vcores=submit_options.vcores)
    requirements = Requirements(share=share, queue=submit_options.queue, label=submit_options.gpu, size=size)
    snapshot = wait_for_nodes(
        lambda: read_snapshot(manager.get, settings, brief=not submit_options.gpu), share, submit_options.gpu
    )
    labels = require_feasible(snapshot, requirements)

    # The ResourceManager knows sums over a node's GPUs; the nodes themselves report what is free of each.
    reports = query_nodes(sample_nodes(snapshot, labels), manager.address.partition(":")[0])
    bound, notes = exclude_unbound_nodes(snapshot, labels, reports)
    return with_free_gpus(bound, reports), notes


def _with_uploaded_files(
    application: Application, configuration: Configuration, user: str, paths: Sequence[Path]
) -> Application:
    """Return *application* with its files in HDFS where there is one; else the nodes find them where they lie."""
    hdfs, why = find_hdfs(conf_folder(configuration.of_manager(YarnSettings).conf_dir), user)
    if why:
        _print_note(f"note: {why}")
    return replace(application, files=tuple((path.name, hdfs.upload(path)) for path in paths)) if hdfs else application


def site_advisor(advisor: Advisor, configuration: Configuration) -> Advisor:
    """Return *advisor* in the site's mode: who calls `submit` wants a share, so where none is set it is ``enforce``.

    A share has no more threads than its size: the ResourceManager believes more in gpusaged's answers alone.
    """
    rules = replace(advisor.rules, sharing=replace(advisor.rules.sharing, cap="share"))
    reason = kill_reason(configuration.kill_switch)
    return replace(advisor, mode=configuration.mode_or("enforce"), kill_reason=reason, rules=rules)


def _decide(
    advisor: Advisor,
    model_request: ModelRequest | None,
    submit_options: SubmitOptions,
    user: str,
    snapshot: ClusterSnapshot,
) -> PlannedSubmission:
    """Return the planned submission; card and needs come from the user's cache where the model was read before."""
    # Containers count as one job only where its user says that as many GPUs work together.
    together = model_request.workload.gpus if model_request else 1
    fields = {
        "containers": str(together) if together == submit_options.containers else "1",
        "user": user,
        "queue": submit_options.queue,
        "label": submit_options.gpu,
        "name": submit_options.name,
        "memory_mib": str(submit_options.memory_mib),
        "vcores": str(submit_options.vcores),
        "rescue": str(int(submit_options.rescue)),
    }
    job = advisor.parse(DecisionRequest(manager=MANAGER, fields=fields, origin=user))
    first_run = None
    if model_request is not None and not model_request.model:
        model_request, first_run = None, model_request
    shows_model = model_request is None and bool(submit_options.learns)
    job = replace(job, model_request=model_request, first_run=first_run, shows_model=shows_model)

    card = card_of(model_request) if model_request else ""
    advisor = with_cache(advisor, card) if card else advisor  # a cache has nothing learned
    size = ContainerSize(memory_mib=submit_options.memory_mib, vcores=submit_options.vcores)
    return plan_submission(advisor, job, decode(card) if card else None, snapshot, size)


def _follow(manager: ResourceManager, identity: str) -> ApplicationOutcome:
    progress = Progress()
    try:
        return follow(manager, identity, progress.show)
    except KeyboardInterrupt:
        progress.end()
        _print_note(f"{identity} goes on; end it with: yarn application -kill {identity}")
        raise
    finally:
        progress.end()


def _explain_failure(outcome: ApplicationOutcome) -> None:
    _print_note(f"{outcome.identity} {outcome.state.lower()}, exit status {outcome.status}")
    if not outcome.status:
        for sentence in outcome.out_of_memory_messages():
            _print_note(sentence)
        return

    # The diagnostics repeat the end of the logs, which stand below in full where a node still has them.
    tails = list(log_tails(outcome))
    for line in (outcome.reason() if tails else outcome.diagnostics).splitlines():
        click.echo(f"  {line}", err=True)
    for title, text in tails:
        click.echo(click.style(f"-- the last of {title}", dim=True), err=True)
        click.echo(text, err=True)
    if not tails:
        _print_note(f"its logs: yarn logs -applicationId {outcome.identity}")


def print_document(
    planned: PlannedSubmission, application: Application, identity: str, outcome: ApplicationOutcome | None
) -> None:
    """Print a JSON document on a submission."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "application": identity or None,
        **documents.decision(application.command, planned.outcome.decision, planned.outcome.rendered),
        "mode": planned.outcome.mode,
        "plan": asdict(planned.plan),
    }
    del document["script"]

    if outcome:
        document["end"] = {
            "state": outcome.state,
            "exit_status": outcome.status,
            "diagnostics": outcome.diagnostics,
        }
    tables.print_json(document)


def _show_dry(planned: PlannedSubmission, application: Application, *, as_json: bool) -> None:
    if as_json:
        print_document(planned, application, "", None)
        return
    plan = planned.plan
    click.echo(
        f"containers: {plan.containers}, each {plan.share} % of a GPU, {plan.memory_mib} MiB and "
        f"{plan.vcores} vcores, on {', then '.join(plan.labels)}; nothing was submitted."
    )


def _print_note(text: str) -> None:
    click.echo(f"gpusage: {text}", err=True)
