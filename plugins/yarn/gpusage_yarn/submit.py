"""`gpusage yarn submit`: predict, decide, submit once, follow to the end."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpusage.cli import options
from gpusage_yarn.request import MANAGER
from gpusage_yarn.settings import YarnSettings

if TYPE_CHECKING:
    from gpusage.advisor import Advisor
    from gpusage.configuration import Configuration
    from gpusage.verdict import Premises
    from gpusage_hooks.types import ModelRequest
    from gpusage_yarn.application import Application
    from gpusage_yarn.cluster import View
    from gpusage_yarn.following import Outcome
    from gpusage_yarn.proposal import Proposal
    from gpusage_yarn.rest import ResourceManager

EXAMPLE = """\b
Examples:
  gpusage yarn submit --model resnet50.onnx --batch 64 -- python train.py --epochs 3
  gpusage yarn submit --model bert.onnx,batch=8,mode=infer --containers 2 --detach -- 'python serve.py | tee log'
"""
SCHEMA = "gpusage.yarn.submit/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What was typed, beside the command and the model."""

    name: str
    queue: str
    gpu: str
    containers: int
    memory_mib: int
    vcores: int
    env: tuple[str, ...]
    files: tuple[Path, ...]
    addresses: tuple[str, ...]


@click.command(epilog=EXAMPLE)
@click.option("--model", metavar="MODEL", help="As `gpusage predict` takes it; without one, a whole GPU is asked for.")
@options.workload_options
@click.option("--queue", default="", metavar="NAME", help="[default: by the site's rules]")
@click.option("--gpu", default="", metavar="LABEL", help="Only GPUs of this type, by its node label.")
@click.option("--containers", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Each runs COMMAND.")
@click.option("--memory-mib", type=click.IntRange(1, 1 << 24), default=4096, show_default=True, help="Of a container.")
@click.option("--vcores", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Of a container.")
@click.option("--name", help="[default: the command's first word]")
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="For the command; may be repeated.")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="To lie in the container's folder: through HDFS, or where the nodes see it at this path. May be repeated.",
)
@click.option("--rm", "addresses", multiple=True, metavar="URL", help="ResourceManager.  [default: Hadoop's own]")
@click.option("--wait/--detach", default=True, show_default=True, help="Wait for the end, and take over its status.")
@click.option("--dry-run", is_flag=True, help="Show what would be asked for; submit nothing.")
@options.json_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def submit(
    context: click.Context, /, model: str | None, command: tuple[str, ...], *, wait: bool, dry_run: bool, **typed: Any  # noqa: ANN401 - options
) -> None:  # fmt: skip
    """Run COMMAND on YARN with the share of a GPU that its model needs.

    One word is a shell command as typed, several are run as the words that they are. The exit status is the command's
    own; 143 where the application was killed.
    """
    from gpusage.configuration import load_configuration  # noqa: PLC0415 - --help stays quick
    from gpusage_yarn.address import require_addresses  # noqa: PLC0415 - as above
    from gpusage_yarn.application import command_line  # noqa: PLC0415 - as above
    from gpusage_yarn.rest import ResourceManager  # noqa: PLC0415 - requests is slow to import

    as_json = typed.pop("as_json")
    run = {key: typed.pop(key) for key in ("batch", "mode", "precision", "optimizer", "shape")}
    line = command_line(command)
    typed["name"] = typed["name"] or (shlex.split(command[0]) if _is_simple(command[0]) else command)[0][:80]
    wishes = Wishes(**typed)
    configuration = load_configuration()
    wish = options.read_requests([model], run)[0] if model else None
    manager = ResourceManager(require_addresses(configuration.of_manager(YarnSettings), wishes.addresses))
    proposal, application = _prepare(manager, configuration, wish, wishes, line)
    _tell(proposal.line())
    if dry_run:
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
    from gpusage.api import advisor  # noqa: PLC0415 - start-up time
    from gpusage_yarn.application import (  # noqa: PLC0415 - as above
        Application,
        describe_files,
        parse_variables,
        require_carriable,
        without_ours,
    )
    from gpusage_yarn.proposal import master_label, record  # noqa: PLC0415 - as above

    (variables, ours), files = without_ours(parse_variables(wishes.env)), describe_files(wishes.files)
    require_carriable(line, variables)
    if ours:
        _tell(f"note: --env {', '.join(ours)} is left out: the node says which GPU a container has, and how much of it")
    view, notes = _look(manager, configuration, wishes)
    advised = advisor().configured(configuration)
    proposal = _decide(site_premises(advised, configuration), wish, wishes, manager.user, view)
    for note in notes:
        _tell(f"note: {note}")
    trouble = record(proposal, advised, configuration.store.url)
    if trouble and "store.url" in configuration.origins:
        _tell(f"note: this decision is not recorded: {trouble}")
    plan = replace(proposal.plan, containers=wishes.containers)
    application = Application(
        command=line,
        plan=plan,
        name=wishes.name,
        queue=wishes.queue,
        master_label=master_label(view, wishes.queue, plan.labels),
        variables=variables,
        files=files,
        classpath=_classpath(manager, configuration),
    )
    return replace(proposal, plan=plan), application


def _look(manager: ResourceManager, configuration: Configuration, wishes: Wishes) -> tuple[View, list[str]]:
    """Return the cluster as far as this application may run in it, and what the user should know of it."""
    from gpusage_yarn.cluster import Size, read_view  # noqa: PLC0415 - as above
    from gpusage_yarn.jmx import ask_nodes, sample, with_told  # noqa: PLC0415 - as above
    from gpusage_yarn.readiness import Wanted, require_listeners, require_ready, settled_view  # noqa: PLC0415 - as above

    share = configuration.of_manager(YarnSettings).share_resource
    size = Size(memory_mib=wishes.memory_mib, vcores=wishes.vcores)
    wanted = Wanted(share=share, queue=wishes.queue, label=wishes.gpu, size=size)
    view = settled_view(lambda: read_view(manager.get, share, brief=not wishes.gpu), share, wishes.gpu)
    labels = require_ready(view, wanted)
    told = ask_nodes(sample(view, labels), manager.address.partition(":")[0])
    bound, notes = require_listeners(view, labels, told)
    return with_told(bound, told), notes


def _files(
    configuration: Configuration, user: str, wishes: Wishes, application: Application
) -> tuple[tuple[str, str], ...]:  # fmt: skip
    """Return where the nodes find each file: in HDFS where there is one, else where it lies."""
    if not wishes.files:
        return ()
    from gpusage_yarn.hadoop_xml import conf_folder  # noqa: PLC0415 - as above
    from gpusage_yarn.hdfs import find_hdfs  # noqa: PLC0415 - as above

    hdfs, why = find_hdfs(conf_folder(configuration.of_manager(YarnSettings).conf_dir), user)
    if why:
        _tell(f"note: {why}")
    return tuple((path.name, hdfs.keep(path)) for path in wishes.files) if hdfs else application.files


def _classpath(manager: ResourceManager, configuration: Configuration) -> str:
    from gpusage_yarn.application import DEFAULT_CLASSPATH  # noqa: PLC0415 - as above
    from gpusage_yarn.hadoop_xml import SITE, conf_folder, read_settings  # noqa: PLC0415 - as above

    named = "yarn.application.classpath"
    own = read_settings(conf_folder(configuration.of_manager(YarnSettings).conf_dir) / SITE).get(named)
    return manager.settings(named) or own or DEFAULT_CLASSPATH


def site_premises(advisor: Advisor, configuration: Configuration) -> Premises:
    """Return what the verdict rests on: who calls `submit` wants a share, so where no mode is set it is ``enforce``."""
    from gpusage.service.kill_switch import kill_reason  # noqa: PLC0415 - as above
    from gpusage.verdict import Premises  # noqa: PLC0415 - as above

    killed = kill_reason(configuration.kill_switch)
    return Premises(advisor=advisor, mode=configuration.mode_or("enforce"), killed=killed)


def _decide(premises: Premises, wish: ModelRequest | None, wishes: Wishes, user: str, view: View) -> Proposal:
    """Return what to ask for; the model's card is the user's own where it was read before, and so are its needs."""
    from gpusage.cli.job_card import card_of  # noqa: PLC0415 - as above
    from gpusage.cli.remembered import remembering  # noqa: PLC0415 - as above
    from gpusage.graphs.card.text import decode  # noqa: PLC0415 - as above
    from gpusage.verdict import require_job  # noqa: PLC0415 - as above
    from gpusage_hooks.types import Submission  # noqa: PLC0415 - as above
    from gpusage_yarn.cluster import Size  # noqa: PLC0415 - as above
    from gpusage_yarn.proposal import propose  # noqa: PLC0415 - as above

    fields = {"user": user, "queue": wishes.queue, "label": wishes.gpu, "name": wishes.name}
    submission = Submission(manager=MANAGER, fields=fields, origin=user)
    job = replace(require_job(submission, premises.advisor), model_request=wish)
    card = card_of(wish) if wish else ""
    premises = replace(premises, advisor=remembering(premises.advisor, card))
    size = Size(memory_mib=wishes.memory_mib, vcores=wishes.vcores)
    return propose(premises, job, decode(card) if card else None, view, size)


def _follow(manager: ResourceManager, identity: str) -> Outcome:
    from gpusage_yarn.following import Progress, follow  # noqa: PLC0415 - as above

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
    from gpusage_yarn.following import log_tails  # noqa: PLC0415 - as above

    _tell(f"{outcome.identity} {outcome.state.lower()}, exit status {outcome.status}")
    if not outcome.status:
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
    from gpusage.cli import documents, tables  # noqa: PLC0415 - as above

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
