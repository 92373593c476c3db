"""`gpusage slurm`: the admin's side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from gpusage.configuration import SiteMode
from gpusage_hooks.errors import RequestError
from gpusage_slurm.sandbox.commands import sandbox

_SLURM_CONF = click.option(
    "--slurm-conf",
    type=click.Path(path_type=Path),
    help="Slurm's configuration file.  [default: $SLURM_CONF, else /etc/slurm/slurm.conf]",
)
_SYSTEMD = click.option(
    "--systemd",
    "unit_folder",
    is_flag=False,
    flag_value=Path("/etc/systemd/system"),
    type=click.Path(path_type=Path, file_okay=False),
    help="Also gpusaged's unit, in this folder.  [with no value: /etc/systemd/system]",
)
_YES = click.option("--yes", is_flag=True, help="Make the change instead of only showing it.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
_STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "blue"}


@click.group()
def slurm() -> None:
    """Install, check and try gpusage for Slurm."""


slurm.add_command(sandbox)


@slurm.command()
@_SLURM_CONF
@click.option("--mode", type=click.Choice(get_args(SiteMode)), help="What gpusage may do.  [default: observe]")
@_SYSTEMD
@click.option("--nodes-ready", is_flag=True, help="gpusage is at this path on every compute node.")
@_YES
@_JSON
def install(
    slurm_conf: Path | None,
    mode: SiteMode | None,
    unit_folder: Path | None,
    *,
    nodes_ready: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show what installing would change at this site; with --yes, change it.

    Nothing is rewritten at a site that begins with `observe`: decisions are only recorded.

    Example: gpusage slurm install --mode advise --systemd --nodes-ready --yes
    """
    from gpusage_slurm.install import find_site, new_task_prolog, plan_installation  # noqa: PLC0415 - quick --help

    edits = plan_installation(find_site(slurm_conf, unit_folder), mode)
    prolog = new_task_prolog(edits)
    if yes and prolog and not nodes_ready:
        message = (
            f"Task prolog {prolog!r} must be on every compute node before slurm.conf names it, because tasks fail "
            "where it is missing; this host cannot see that. Have it there at the same path, then add --nodes-ready."
        )
        raise RequestError(message)
    start = "systemctl enable --now gpusaged" if unit_folder else "gpusaged (or install it with --systemd)"
    after = f"Now run: scontrol reconfigure; {start}; gpusage slurm doctor"
    _show_and_make(edits, yes=yes, as_json=as_json, after=after)


@slurm.command()
@_SLURM_CONF
@_SYSTEMD
@_YES
@_JSON
def uninstall(slurm_conf: Path | None, unit_folder: Path | None, *, yes: bool, as_json: bool) -> None:
    """Show what taking gpusage out would change at this site; with --yes, change it.

    Example: gpusage slurm uninstall --yes
    """
    from gpusage_slurm.install import find_site, plan_uninstallation  # noqa: PLC0415 - --help stays quick

    edits = plan_uninstallation(find_site(slurm_conf, unit_folder))
    after = "Now run: scontrol reconfigure; gpusage slurm uninstall --yes; systemctl disable --now gpusaged"
    _show_and_make(edits, yes=yes, as_json=as_json, after=after)


@slurm.command()
@_SLURM_CONF
@_JSON
@click.pass_context
def doctor(context: click.Context, slurm_conf: Path | None, *, as_json: bool) -> None:
    """Check the installation; each line passes, warns or fails, and says what to do.

    The exit status is 1 where a check fails.

    Example: gpusage slurm doctor
    """
    from gpusage_slurm.doctor import examine  # noqa: PLC0415 - --help stays quick
    from gpusage_slurm.evidence import gather  # noqa: PLC0415 - as above

    evidence = gather(slurm_conf)
    findings = examine(evidence)
    settings = list(evidence.configuration.effective())
    if as_json:
        document = {
            "schema": "gpusage.slurm.doctor/1",
            "checks": [asdict(finding) for finding in findings],
            "configuration": [{"key": key, "value": value, "origin": origin} for key, value, origin in settings],
        }
        click.echo(json.dumps(document, indent=1))
    else:
        for finding in findings:
            verdict = click.style(finding.verdict.upper(), fg=_STYLES[finding.verdict])
            click.echo(
                f"{verdict}  {finding.check}: {finding.found}" + (f"\n      {finding.todo}" * bool(finding.todo))
            )
        click.echo("\nSettings (key = value, origin):")
        for key, value, origin in settings:
            click.echo(f"  {key} = {value!r}  ({origin})")
    context.exit(int(any(finding.verdict == "fail" for finding in findings)))


@slurm.command()
@_JSON
def status(*, as_json: bool) -> None:
    """Show what gpusaged sees: its mode, the cluster, and how many decisions it has made.

    Example: gpusage slurm status
    """
    from gpusage.configuration import load_configuration  # noqa: PLC0415 - --help stays quick
    from gpusage.service.client import ask  # noqa: PLC0415 - as above
    from gpusage_slurm.status import describe  # noqa: PLC0415 - as above

    answer = ask(load_configuration().daemon.socket, {"v": 1, "op": "status"})
    click.echo(json.dumps(answer, indent=1) if as_json else describe(answer))


def _show_and_make(edits: Any, *, yes: bool, as_json: bool, after: str) -> None:  # noqa: ANN401 - tuple of Edit, imported late
    from gpusage_slurm.install import make_edits  # noqa: PLC0415 - --help stays quick

    changing = [edit for edit in edits if edit.changes]
    if yes:
        make_edits(changing)
    if as_json:
        files = [{"path": str(edit.path), "diff": edit.diff()} for edit in changing]
        click.echo(json.dumps({"schema": "gpusage.slurm.install/1", "applied": yes, "files": files}, indent=1))
        return
    for edit in changing:
        click.echo(_coloured(edit.diff()), nl=False)
    if not changing:
        click.echo("Nothing to change.")
    elif yes:
        click.echo(f"Changed {_files(changing)}. {after}")
    else:
        click.echo(f"Would change {_files(changing)}. Add --yes to do it.")


def _files(edits: Sequence[object]) -> str:
    return "1 file" if len(edits) == 1 else f"{len(edits)} files"


def _coloured(diff: str) -> str:
    colours = {"+": "green", "-": "red", "@": "cyan"}
    return "".join(click.style(line, fg=colours.get(line[:1])) for line in diff.splitlines(keepends=True))
