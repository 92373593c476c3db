"""`gpusage yarn submit`: predict, decide, submit once, follow to the end."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from gpusage.advisor import Advisor
from gpusage.api import advisor
from gpusage.cli import documents, options, tables
from gpusage.cli.cards.cached_advisor import remembering
from gpusage.cli.cards.job_card import card_of
from gpusage.configuration import Configuration
from gpusage.configuration_file import load_configuration
from gpusage.graphs.card.text import decode
from gpusage.service.kill_switch import kill_reason
from gpusage.verdict import Premises, require_job
from gpusage_hooks.types import ModelRequest, Submission
from gpusage_yarn.address import require_addresses
from gpusage_yarn.application import (
    DEFAULT_CLASSPATH,
    Application,
    command_line,
    describe_files,
    parse_variables,
    require_carriable,
    without_ours,
)
from gpusage_yarn.beside import beside, nodes_of
from gpusage_yarn.cluster import Size, View, read_view
from gpusage_yarn.following import Outcome, Progress, follow, log_tails
from gpusage_yarn.hadoop_xml import SITE, conf_folder, read_settings
from gpusage_yarn.hdfs import find_hdfs
from gpusage_yarn.jmx import ask_nodes, neighbours_of, sample, with_told
from gpusage_yarn.pending import tags_of
from gpusage_yarn.plan import Plan
from gpusage_yarn.proposal import Proposal, master_label, propose, record
from gpusage_yarn.readiness import Wanted, require_listeners, require_ready, settled_view
from gpusage_yarn.request import MANAGER
from gpusage_yarn.rest import ResourceManager
from gpusage_yarn.settings import YarnSettings

RUN_OPTIONS = (
    "batch",
    "mode",
    "precision",
    "optimizer",
    "shape",
    "accumulate",
    "trainable",
    "checkpointing",
    "generate",
    "run_gpus",
    "strategy",
    "compile",
    "wish_slowdown",
    "wish_utilization",
    "wish_step_time",
)
SCHEMA = "gpusage.yarn.submit/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What was typed, beside the command and the model."""

    name: str
    queue: str
    gpu: str
    beside: str
    containers: int
    memory_mib: int
    vcores: int
    env: tuple[str, ...]
    files: tuple[Path, ...]
    addresses: tuple[str, ...]
    rescue: bool
    dry_run: bool


def submit(
    context: click.Context, /, model: str | None, command: tuple[str, ...], *, wait: bool, **typed: Any  # noqa: ANN401 - options
) -> None:  # fmt: skip
    """Run COMMAND on YARN with the share of a GPU that its model needs."""
    as_json = typed.pop("as_json")
    run = {key: typed.pop(key) for key in RUN_OPTIONS}
    line = command_line(command)
    typed["name"] = typed["name"] or (shlex.split(command[0]) if _is_simple(command[0]) else command)[0][:80]
    wishes = Wishes(**typed)
    configuration = load_configuration()
    wish = options.read_requests([model], run)[0] if model else None
    manager = ResourceManager(require_addresses(configuration.of_manager(YarnSettings), wishes.addresses))
    proposal, application = _prepare(manager, configuration, wish, wishes, line)
    _tell(proposal.line())
    if wishes.dry_run:
        _show_dry(proposal, application, as_json=as_json)
        return
    application = replace(application, files=_files(configuration, manager.user, wishes, application))
    identity = manager.submit(application.document)
    if not as_json:
        click.echo(identity)
    outcome = _follow(manager, identity) if wait else None
    if as_json:
        print_document(proposal, application, identity, outcome)
    if outcome:
        _explain_failure(outcome)
        context.exit(outcome.status)


def _prepare(
    manager: ResourceManager, configuration: Configuration, wish: ModelRequest | None, wishes: Wishes, line: str
) -> tuple[Proposal, Application]:
    """Return what to ask for, and the application that does; nothing is sent yet."""
    (variables, ours), files = without_ours(parse_variables(wishes.env)), describe_files(wishes.files)
    require_carriable(line, variables)
    if ours:
        _tell(f"note: --env {', '.join(ours)} is left out: the node says which GPU a container has, and how much of it")
    view, notes = _look(manager, configuration, wishes)
    advised = advisor().configured(configuration)
    proposal = _decide(site_premises(advised, configuration), wish, wishes, manager.user, view)
    for note in notes:
        _tell(f"note: {note}")
    number, trouble = ("", "") if wishes.dry_run else record(proposal, advised, configuration.store.url)
    if trouble and "store.url" in configuration.origins:
        _tell(f"note: this decision is not recorded: {trouble}")
    rescue = wishes.rescue and advised.rules.sharing.rescue
    plan = replace(proposal.plan, containers=wishes.containers, rescue=rescue)
    plan = _towards(plan, view, manager, wishes.beside)
    application = Application(
        command=line,
        plan=plan,
        name=wishes.name,
        queue=wishes.queue,
        master_label=master_label(view, wishes.queue, plan.labels),
        variables=variables,
        files=files,
        classpath=_classpath(manager, configuration),
        tags=tuple(tags_of(plan, number)),
    )
    return replace(proposal, plan=plan), application


def _look(manager: ResourceManager, configuration: Configuration, wishes: Wishes) -> tuple[View, list[str]]:
    """Return the cluster as far as this application may run in it, and what the user should know of it."""
    share = configuration.of_manager(YarnSettings).share_resource
    size = Size(memory_mib=wishes.memory_mib, vcores=wishes.vcores)
    wanted = Wanted(share=share, queue=wishes.queue, label=wishes.gpu, size=size)
    view = settled_view(lambda: read_view(manager.get, share, brief=not wishes.gpu), share, wishes.gpu)
    labels = require_ready(view, wanted)
    reports = ask_nodes(sample(view, labels), manager.address.partition(":")[0])
    bound, notes = require_listeners(view, labels, reports)
    return replace(with_told(bound, reports), neighbours=neighbours_of(bound, manager.address)), notes


def _towards(plan: Plan, view: View, manager: ResourceManager, partner: str) -> Plan:
    """Return *plan* for a node where the application *partner* runs, if one is named and a node of it has room."""
    if not partner:
        return plan
    plan, why_not = beside(plan, view, nodes_of(manager.get, partner))
    if why_not:
        _tell(f"note: it does not go to {partner}: {why_not}")
    return plan


def _files(
    configuration: Configuration, user: str, wishes: Wishes, application: Application
) -> tuple[tuple[str, str], ...]:  # fmt: skip
    """Return where the nodes find each file: in HDFS where there is one, else where it lies."""
    if not wishes.files:
        return ()

    hdfs, why = find_hdfs(conf_folder(configuration.of_manager(YarnSettings).conf_dir), user)
    if why:
        _tell(f"note: {why}")
    return tuple((path.name, hdfs.keep(path)) for path in wishes.files) if hdfs else application.files


def _classpath(manager: ResourceManager, configuration: Configuration) -> str:
    named = "yarn.application.classpath"
    own = read_settings(conf_folder(configuration.of_manager(YarnSettings).conf_dir) / SITE).get(named)
    return manager.settings(named) or own or DEFAULT_CLASSPATH


def site_premises(advisor: Advisor, configuration: Configuration) -> Premises:
    """Return what the verdict rests on: who calls `submit` wants a share, so where no mode is set it is ``enforce``."""
    killed = kill_reason(configuration.kill_switch)
    return Premises(advisor=advisor, mode=configuration.mode_or("enforce"), killed=killed)


def _decide(premises: Premises, wish: ModelRequest | None, wishes: Wishes, user: str, view: View) -> Proposal:
    """Return what to ask for; the model's card is the user's own where it was read before, and so are its needs."""
    fields = {"user": user, "queue": wishes.queue, "label": wishes.gpu, "name": wishes.name}
    fields |= {"memory_mib": str(wishes.memory_mib), "vcores": str(wishes.vcores)}
    submission = Submission(manager=MANAGER, fields=fields, origin=user)
    job = replace(require_job(submission, premises.advisor), model_request=wish)
    card = card_of(wish) if wish else ""
    premises = replace(premises, advisor=remembering(premises.advisor, card))
    size = Size(memory_mib=wishes.memory_mib, vcores=wishes.vcores)
    return propose(premises, job, decode(card) if card else None, view, size)


def _follow(manager: ResourceManager, identity: str) -> Outcome:
    progress = Progress()
    try:
        return follow(manager, identity, progress.show)
    except KeyboardInterrupt:
        progress.end()
        _tell(f"{identity} goes on; end it with: yarn application -kill {identity}")
        raise
    finally:
        progress.end()


def _explain_failure(outcome: Outcome) -> None:
    _tell(f"{outcome.identity} {outcome.state.lower()}, exit status {outcome.status}")
    if not outcome.status:
        for sentence in outcome.starved():
            _tell(sentence)
        return
    tails = list(log_tails(outcome))
    for line in (outcome.reason() if tails else outcome.diagnostics).splitlines():
        click.echo(f"  {line}", err=True)
    for title, text in tails:
        click.echo(click.style(f"-- the last of {title}", dim=True), err=True)
        click.echo(text, err=True)
    if not tails:
        _tell(f"its logs: yarn logs -applicationId {outcome.identity}")


def print_document(proposal: Proposal, application: Application, identity: str, outcome: Outcome | None) -> None:
    """Print one JSON document on a submission."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "application": identity or None,
        **documents.decision(application.command, proposal.verdict.decision, proposal.verdict.rendered),
        "mode": proposal.verdict.mode,
        "plan": asdict(proposal.plan),
    }
    del document["script"]
    if outcome:
        document["end"] = {
            "state": outcome.state,
            "exit_status": outcome.status,
            "diagnostics": outcome.diagnostics,
        }
    tables.print_json(document)


def _show_dry(proposal: Proposal, application: Application, *, as_json: bool) -> None:
    if as_json:
        print_document(proposal, application, "", None)
        return
    plan = proposal.plan
    cap = f", at most {plan.memory_cap_mib} MiB of its memory" if plan.memory_cap_mib else ""
    click.echo(
        f"containers: {plan.containers}, each {plan.share} % of a GPU{cap}, {plan.memory_mib} MiB and "
        f"{plan.vcores} vcores, on {', then '.join(plan.labels)}; nothing was submitted."
    )


def _is_simple(word: str) -> bool:
    try:
        return bool(shlex.split(word))
    except ValueError:
        return False


def _tell(text: str) -> None:
    click.echo(f"gpusage: {text}", err=True)
