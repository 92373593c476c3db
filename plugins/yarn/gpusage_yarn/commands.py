"""`gpusage yarn`: what users and admins type."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from gpusage.cli.admin import show_and_make, show_findings
from gpusage.configuration import SiteMode
from gpusage_yarn.submit import submit

_SCHEMA = "gpusage.yarn.install/1"
_CONF_DIR = click.option(
    "--conf-dir",
    type=click.Path(path_type=Path),
    help="Hadoop's configuration.  [default: $YARN_CONF_DIR, $HADOOP_CONF_DIR, else /etc/hadoop/conf]",
)
_ROLE = click.option(
    "--role",
    "roles",
    type=click.Choice(("rm", "node", "client")),
    multiple=True,
    default=("rm", "node"),
    show_default=True,
    help="Who reads that configuration; may be repeated.",
)
_RM = click.option("--rm", "addresses", multiple=True, metavar="URL", help="ResourceManager.  [default: Hadoop's own]")
_YES = click.option("--yes", is_flag=True, help="Make the change instead of only showing it.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


class YarnGroup(click.Group):
    """Imports the sandbox only where it is meant: a submission is a matter of milliseconds."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every command."""
        return sorted([*super().list_commands(ctx), "sandbox"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name."""
        if cmd_name != "sandbox":
            return super().get_command(ctx, cmd_name)
        from gpusage_yarn.sandbox.commands import sandbox  # noqa: PLC0415 - see above

        return sandbox


@click.group(cls=YarnGroup)
def yarn() -> None:
    """Submit to YARN with predictions; install, check and try gpusage for YARN."""


yarn.add_command(submit)


@yarn.command()
@_CONF_DIR
@_ROLE
@click.option("--gpus", type=click.IntRange(0, 64), help="GPUs that each node of this configuration shares.")
@click.option("--mps-command", default="", metavar="PATH", help="Starts MPS daemons on the nodes: node/gpusage-mps.")
@click.option("--mode", type=click.Choice(get_args(SiteMode)), help="What gpusage may do.  [default: observe]")
@_YES
@_JSON
def install(conf_dir: Path | None, mode: SiteMode | None, *, yes: bool, as_json: bool, **typed: Any) -> None:  # noqa: ANN401 - options
    """Show what installing would change in Hadoop's files; with --yes, change it.

    Our jar must lie in share/hadoop/yarn/lib of every host before: --yes is refused where a class of ours would not
    load. Nothing is rewritten at a site that begins with `observe`: decisions are only recorded.

    Example: gpusage yarn install --role node --gpus 4 --yes
    """
    from gpusage_yarn.install import find_site, plan_installation  # noqa: PLC0415 - --help stays quick
    from gpusage_yarn.preflight import require_classes  # noqa: PLC0415 - as above

    roles = frozenset(typed.pop("roles"))
    site = find_site(conf_dir, roles, **typed)
    edits = plan_installation(site, mode)
    if yes:
        require_classes(edits, site.folder)
    restarted = {"rm": "ResourceManager", "node": "NodeManagers"}
    daemons = " and ".join(name for role, name in restarted.items() if role in roles)
    after = f"Now restart {daemons}; then run: gpusage yarn doctor" if daemons else "Now run: gpusage yarn doctor"
    show_and_make(edits, schema=_SCHEMA, yes=yes, as_json=as_json, after=after)


@yarn.command()
def jar() -> None:
    """Print where the jar for Hadoop's daemons is, to copy it; in a checkout it is built first.

    Example: cp "$(gpusage yarn jar)" $HADOOP_HOME/share/hadoop/yarn/lib/
    """
    from gpusage_yarn.sandbox.jar import find_jar  # noqa: PLC0415 - --help stays quick

    click.echo(find_jar())


@yarn.command()
@_CONF_DIR
@_ROLE
@_YES
@_JSON
def uninstall(conf_dir: Path | None, roles: tuple[Any, ...], *, yes: bool, as_json: bool) -> None:
    """Show what uninstalling would change in Hadoop's files; with --yes, change it.

    Each file has the site's own bytes again.

    Example: gpusage yarn uninstall --yes
    """
    from gpusage_yarn.install import find_site, plan_uninstallation  # noqa: PLC0415 - --help stays quick

    edits = plan_uninstallation(find_site(conf_dir, frozenset(roles)))
    after = "Now restart the daemons; only then remove the jar."
    show_and_make(edits, schema=_SCHEMA, yes=yes, as_json=as_json, after=after)


@yarn.command()
@_CONF_DIR
@_RM
@_JSON
@click.pass_context
def doctor(context: click.Context, conf_dir: Path | None, addresses: tuple[str, ...], *, as_json: bool) -> None:
    """Check the installation; each line passes, warns or fails, and says what to do.

    The exit status is 1 where a check fails.

    Example: gpusage yarn doctor
    """
    from gpusage_yarn.doctor import examine  # noqa: PLC0415 - --help stays quick
    from gpusage_yarn.evidence import gather  # noqa: PLC0415 - as above

    evidence = gather(conf_dir, addresses)
    status = show_findings(examine(evidence), evidence.configuration, schema="gpusage.yarn.doctor/1", as_json=as_json)
    context.exit(status)


@yarn.command()
@_RM
@_JSON
def status(addresses: tuple[str, ...], *, as_json: bool) -> None:
    """Show the GPUs of each node label and what is free of them, and what gpusaged does.

    Example: gpusage yarn status
    """
    from gpusage.api import advisor  # noqa: PLC0415 - --help stays quick
    from gpusage.configuration import read_configuration  # noqa: PLC0415 - as above
    from gpusage.service.client import read_status  # noqa: PLC0415 - as above
    from gpusage_yarn.address import SOCKET, require_addresses, sockets  # noqa: PLC0415 - as above
    from gpusage_yarn.cluster import cluster_of, read_view  # noqa: PLC0415 - as above
    from gpusage_yarn.jmx import MOST_NODES, NODES_LIMIT_S, ask_nodes, with_told  # noqa: PLC0415 - as above
    from gpusage_yarn.rest import ResourceManager  # noqa: PLC0415 - as above
    from gpusage_yarn.settings import YarnSettings  # noqa: PLC0415 - as above
    from gpusage_yarn.status import describe  # noqa: PLC0415 - as above

    configuration, broken = read_configuration()
    if broken:
        click.echo(f"gpusage: {broken}", err=True)
    settings = configuration.of_manager(YarnSettings)
    manager = ResourceManager(require_addresses(settings, addresses), patience_s=0)
    view = read_view(manager.get, settings.share_resource)
    sharing = [node for node in view.nodes if node.usable and node.total.share]
    view = with_told(view, ask_nodes(sharing[:MOST_NODES], manager.address.partition(":")[0], NODES_LIMIT_S))
    cluster = cluster_of(view, advisor().catalogue)
    _, said, trouble = read_status(sockets(None if broken else configuration, manager.settings(SOCKET)))
    if as_json:
        document = {"schema": "gpusage.yarn.status/1", "clusters": {"yarn": asdict(cluster)}, "gpusaged": said}
        click.echo(json.dumps(document, indent=1))
    else:
        click.echo(describe(view, cluster, said, trouble))
